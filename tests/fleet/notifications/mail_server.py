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
class Letterbox:
    """Where it is, what it says to each recipient, and what it has."""

    url: str = ""
    refusals: dict[str, str] = field(default_factory=dict)
    letters: list[Message] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)


class Clerk(socketserver.StreamRequestHandler):
    """Speaks as much SMTP as a letter needs."""

    def __init__(self, *args: Any, box: Letterbox) -> None:
        self._box = box
        super().__init__(*args)

    def handle(self) -> None:
        self.say("220 letterbox")
        while line := self.rfile.readline():
            words = line.decode().strip()
            verb = words[:4].upper()
            if verb == "RCPT":
                self.recipient(words)
            elif verb == "DATA":
                self.letter()
            else:
                self.say("221 bye" if verb == "QUIT" else "250 ok")

    def recipient(self, words: str) -> None:
        who = words.partition("<")[2].partition(">")[0]
        self._box.recipients.append(who)
        self.say(self._box.refusals.get(who, "250 ok"))

    def letter(self) -> None:
        self.say("354 go on")
        lines = []
        while (line := self.rfile.readline()).rstrip() != b".":
            lines.append(line)
        self._box.letters.append(message_from_bytes(b"".join(lines)))
        self.say("250 taken")

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@contextmanager
def a_letterbox() -> Iterator[Letterbox]:
    """Run a mail server for as long as the block lasts."""
    box = Letterbox()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), partial(Clerk, box=box)) as server:
        server.daemon_threads = True
        box.url = f"smtp://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield box
        server.shutdown()
        thread.join()
