"""A mail server that accepts or refuses messages as configured."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from functools import partial
from typing import Any


@dataclass
class MailSink:
    """Its address, its reply to each recipient, and the messages it received."""

    url: str = ""
    refusals: dict[str, str] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)


class MailHandler(socketserver.StreamRequestHandler):
    """The part of SMTP that one message needs."""

    def __init__(self, *args: Any, mailbox: MailSink) -> None:
        self._mailbox = mailbox
        super().__init__(*args)

    def handle(self) -> None:
        self.say("220 test")
        while line := self.rfile.readline():
            command = line.decode().strip()
            verb = command[:4].upper()
            if verb == "RCPT":
                self.recipient(command)
            elif verb == "DATA":
                self.read_message()
            else:
                self.say("221 bye" if verb == "QUIT" else "250 ok")

    def recipient(self, command: str) -> None:
        who = command.partition("<")[2].partition(">")[0]
        self._mailbox.recipients.append(who)
        self.say(self._mailbox.refusals.get(who, "250 ok"))

    def read_message(self) -> None:
        self.say("354 go on")
        lines = []
        while (line := self.rfile.readline()).rstrip() != b".":
            lines.append(line)
        self._mailbox.messages.append(message_from_bytes(b"".join(lines)))
        self.say("250 taken")

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@contextmanager
def serve_mail() -> Iterator[MailSink]:
    """Run a mail server for as long as the block lasts."""
    mailbox = MailSink()
    with socketserver.ThreadingTCPServer(
        ("127.0.0.1", 0), partial(MailHandler, mailbox=mailbox)
    ) as server:
        server.daemon_threads = True
        mailbox.url = f"smtp://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield mailbox
        server.shutdown()
        thread.join()
