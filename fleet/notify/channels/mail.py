"""E-mail, by the server that settings name."""

import smtplib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.errors import MessageError
from email.message import EmailMessage
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from django.conf import settings

from fleet.models import Receiver
from fleet.notify.addresses import AddressError
from fleet.notify.channels.channel import Body
from fleet.notify.http import Answer, Door, UnreachableError
from fleet.notify.notice import Item, Notice

LONGEST_SUBJECT = 200
PORTS = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
PERMANENT = 500  # What SMTP says from here on will not change by trying again.


@dataclass(frozen=True, slots=True)
class PostOffice:
    """The mail server, as its address says."""

    host: str
    port: int
    scheme: str
    user: str
    password: str

    @classmethod
    def of(cls, url: str) -> Self:
        """Read ``smtp+starttls://user:password@host:587``."""
        parts = urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname:
            raise AddressError(
                "mail: TRNWATCH_SMTP_URL must be smtp+starttls://user:password@host"
            )
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(parts.hostname, parts.port or PORTS[parts.scheme], parts.scheme, user, password)

    def open(self, *, timeout_s: float) -> smtplib.SMTP:
        """Connect, with TLS unless the address says plain ``smtp``."""
        context = ssl.create_default_context()
        if self.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                self.host, self.port, timeout=timeout_s, context=context
            )
        else:
            server = smtplib.SMTP(self.host, self.port, timeout=timeout_s)
        if self.scheme == "smtp+starttls":
            server.starttls(context=context)
        if self.user:
            server.login(self.user, self.password)
        return server


class Mail:
    """People, by post."""

    def render(self, notice: Notice) -> Body:
        """Write a letter of plain text."""
        parts = [_told(item) for item in notice.items]
        parts += [
            f"{change.by or 'trnwatch'}: {change.text}" for change in notice.changes if change.text
        ]
        return {
            "subject": " ".join(notice.title.split())[:LONGEST_SUBJECT],
            "text": "\n\n".join([notice.title, *parts, f"All open alerts: {notice.list_url}"]),
        }

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, door: Door
    ) -> Answer:
        """Hand it to the mail server; the message's id is the key, so that doubles are known."""
        if not settings.SMTP_URL:
            raise AddressError("mail: no server is set; see TRNWATCH_SMTP_URL")
        office = PostOffice.of(settings.SMTP_URL)
        try:
            letter = _letter(dict(body), receiver, key=key, at=at)
            with office.open(timeout_s=door.timeout_s) as server:
                refused = server.send_message(letter)
        except smtplib.SMTPRecipientsRefused as error:
            refused = error.recipients
        except smtplib.SMTPResponseException as error:
            raise _refusal(error.smtp_code, error.smtp_error) from error
        except (smtplib.SMTPException, OSError) as error:
            raise UnreachableError(f"{type(error).__name__}: {error}") from error
        except (MessageError, ValueError) as error:
            raise AddressError(f"mail: {error}") from error
        _all_taken(refused)
        return Answer(250, b"accepted")

    def confirms(self, answer: Answer) -> bool:
        """Believe the mail server."""
        return True


def _letter(body: dict[str, Any], receiver: Receiver, *, key: str, at: datetime) -> EmailMessage:
    letter = EmailMessage()
    letter["Subject"] = body["subject"]
    letter["From"] = settings.DEFAULT_FROM_EMAIL
    letter["To"] = receiver.target
    letter["Date"] = at
    letter["Message-ID"] = f"<{key}@trnwatch>"
    letter["Idempotency-Key"] = key
    letter["Auto-Submitted"] = "auto-generated"
    letter.set_content(body["text"])
    return letter


def _all_taken(refused: Mapping[str, tuple[int, bytes]]) -> None:
    """Raise where somebody was refused; those who were not may get the letter twice."""
    if refused:
        code, said = min(refused.values())
        raise _refusal(code, f"{said.decode('utf-8', 'replace')} ({', '.join(refused)})")


def _refusal(code: int, said: bytes | str) -> Exception:
    """Tell a refusal for good from one for now."""
    words = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    text = f"the mail server said {code} {words}"
    return AddressError(text) if code >= PERMANENT else UnreachableError(text)


def _told(item: Item) -> str:
    return "\n".join(
        [
            item.story,
            f"  severity  {item.severity}",
            f"  since     {item.onset_at:%Y-%m-%d %H:%M:%S} UTC",
            f"  alert     {item.url}",
            f"  as it was {item.frozen_url}",
            f"  runbook   {item.runbook_url}",
        ]
    )
