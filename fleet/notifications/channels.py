"""What each kind of receiver speaks."""

import hashlib
import hmac
import smtplib
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from email.errors import MessageError
from email.message import EmailMessage
from typing import Any, Protocol, Self
from urllib.parse import unquote, urlsplit

import msgspec
from django.conf import settings
from django.template.loader import render_to_string

from fleet.formatting import slack
from fleet.models import Delivery, Receiver
from fleet.notifications.http_client import (
    AddressError,
    HttpClient,
    HttpResult,
    Request,
    UnreachableError,
)
from fleet.notifications.messages import AlertItem, Message

Body = Mapping[str, Any] | list[Any]
JSON = {"Content-Type": "application/json"}


class Channel(Protocol):
    """A form for notifications, and a way of sending them."""

    def render(self, notice: Message) -> Body:
        """Put a notification into the receiver's form, without secrets: it is kept as it is."""
        ...

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, door: HttpClient
    ) -> HttpResult:
        """Send it once; ``key`` is the same at every attempt."""
        ...

    def confirms(self, answer: HttpResult) -> bool:
        """Whether an answer of 2xx is that of such a receiver, and not of something in between."""
        ...


def encode(body: Body) -> bytes:
    """Write a body as it is sent: the same bytes at every attempt."""
    return msgspec.json.encode(body, order="sorted")


def is_page(answer: HttpResult) -> bool:
    """Whether this is a page for people: a portal or a proxy speaks, not the receiver."""
    return answer.body.lstrip()[:1] == b"<"


PATH = "/api/v2/alerts"
# An alert of which nothing more is heard ends by itself after so long: ten re-sendings missed.
VALID_FOR = timedelta(minutes=10)


class Alertmanager:
    """An Alertmanager, which groups, silences and escalates by rules of its own."""

    def render(self, notice: Message) -> Body:
        """State each alert: until when it holds, or when it ended."""
        if notice.kind == Delivery.Kind.TEST:
            return [_test(notice)]
        return [postable(item, kind=notice.kind, now=notice.at) for item in notice.items]

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, door: HttpClient
    ) -> HttpResult:
        """Post it; equal labels are the same alert, so that doubles do no harm."""
        url = receiver.target.rstrip("/").removesuffix(PATH) + PATH
        headers = {**JSON, "Idempotency-Key": key}
        if receiver.secret:
            headers["Authorization"] = f"Bearer {receiver.secret}"
        return door.post(Request(url, encode(body), headers))

    def confirms(self, answer: HttpResult) -> bool:
        """Believe an empty answer, but no page."""
        return not is_page(answer)


def postable(item: AlertItem, *, kind: Delivery.Kind, now: datetime) -> dict[str, Any]:
    """Return an alert as Alertmanager takes it."""
    is_over = kind == Delivery.Kind.RESOLVED
    ends_at = (item.resolved_at or now) if is_over else now + VALID_FOR
    return {
        "labels": item.labels,
        "annotations": {
            "summary": item.summary,
            "description": item.story,
            "rule": item.rule,
            "cause": item.cause_name,
            "onset": item.onset_at.isoformat(),
            "runbook_url": item.runbook_url,
            "frozen_url": item.frozen_url,
        },
        # Alertmanager counts the wait for a group from here.
        "startsAt": item.fired_at.isoformat(),
        "endsAt": ends_at.isoformat(),
        "generatorURL": item.url,
    }


def _test(notice: Message) -> dict[str, Any]:
    """Return an alert that only says that it arrived, and is over in a minute."""
    return {
        "labels": {"alertname": "TrnwatchTest", "severity": "none"},
        "annotations": {"summary": notice.title},
        "startsAt": notice.at.isoformat(),
        "endsAt": (notice.at + timedelta(minutes=1)).isoformat(),
    }


def watchdog(*, base_url: str, now: datetime) -> list[dict[str, Any]]:
    """Return the alert that fires while watching is alive, and ends when it no longer is."""
    return [
        {
            "labels": {"alertname": "Watchdog", "source": "trnwatch"},
            "annotations": {"summary": "trnwatch is running; when this ends, it has stopped."},
            "startsAt": now.isoformat(),
            "endsAt": (now + VALID_FOR).isoformat(),
            "generatorURL": base_url,
        }
    ]


LONGEST_SUBJECT = 200
PORTS = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
PERMANENT = 500  # What SMTP says from here on will not change by trying again.


@dataclass(frozen=True, slots=True)
class MailServer:
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

    def render(self, notice: Message) -> Body:
        """Write a letter of plain text."""
        return {
            "subject": " ".join(notice.title.split())[:LONGEST_SUBJECT],
            "text": render_to_string("notifications/mail.txt", {"message": notice}).rstrip("\n"),
        }

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, door: HttpClient
    ) -> HttpResult:
        """Hand it to the mail server; the message's id is the key, so that doubles are known."""
        if not settings.SMTP_URL:
            raise AddressError("mail: no server is set; see TRNWATCH_SMTP_URL")
        office = MailServer.of(settings.SMTP_URL)
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
        return HttpResult(250, b"accepted")

    def confirms(self, answer: HttpResult) -> bool:
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


EVENTS_URL = "https://events.pagerduty.com/v2/enqueue"
LONGEST_SUMMARY = 1024
SEVERITIES = {"page": "critical", "warn": "warning"}
ACTIONS = {Delivery.Kind.ACKNOWLEDGED: "acknowledge", Delivery.Kind.RESOLVED: "resolve"}
# What is not about an alert, and how urgent it is.
OURSELVES = {Delivery.Kind.UNDELIVERED: "warning", Delivery.Kind.TEST: "info"}


class PagerDuty:
    """A service of PagerDuty, or what speaks like it."""

    def render(self, notice: Message) -> Body:
        """Trigger, acknowledge or resolve the incident of the one alert this is about."""
        if notice.kind in OURSELVES:
            return _about_ourselves(notice)
        [item] = notice.items
        action = ACTIONS.get(notice.kind, "trigger")
        event: dict[str, Any] = {"event_action": action, "dedup_key": f"trnwatch-alert-{item.pk}"}
        if action != "trigger":
            return event
        return event | {
            "client": "trnwatch",
            "client_url": item.url,
            "links": [
                {"href": item.url, "text": "Open alert"},
                {"href": item.frozen_url, "text": "Charts at that time"},
                {"href": item.runbook_url, "text": "Runbook"},
            ],
            "payload": _payload(item, notice),
        }

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, door: HttpClient
    ) -> HttpResult:
        """Post it with the integration key, which is kept nowhere else."""
        written = encode({**dict(body), "routing_key": receiver.secret})
        headers = {**JSON, "Idempotency-Key": key}
        return door.post(Request(receiver.target or EVENTS_URL, written, headers))

    def confirms(self, answer: HttpResult) -> bool:
        """Believe an answer of PagerDuty's form only."""
        try:
            said = msgspec.json.decode(answer.body)
        except msgspec.DecodeError:
            return False
        return isinstance(said, dict) and said.get("status") == "success"


def _payload(item: AlertItem, notice: Message) -> dict[str, Any]:
    drill = "DRILL: " if item.is_drill else ""
    payload: dict[str, Any] = {
        "summary": f"{drill}{item.summary}"[:LONGEST_SUMMARY],
        "source": item.node or item.run or "trnwatch",
        "severity": SEVERITIES.get(item.severity, "error"),
        "timestamp": item.onset_at.isoformat(),
        "class": item.rule,
        "custom_details": {
            "cause": item.cause_name,
            "story": item.story,
            "victims": item.n_victims,
            "what": notice.label.lower(),
        },
    }
    if item.run:
        payload["group"] = item.run
    if item.device is not None:
        payload["component"] = f"{item.cause_name} {item.device}"
    return payload


def _about_ourselves(notice: Message) -> dict[str, Any]:
    """Open an incident about trnwatch itself."""
    severity = OURSELVES[notice.kind]
    payload = {"summary": notice.title, "source": "trnwatch", "severity": severity}
    return {
        "event_action": "trigger",
        "dedup_key": f"trnwatch-{notice.key}",
        "payload": payload,
    }


# Slack takes 150 characters in a header, 3,000 in a section (the template cuts the story),
# and 50 blocks.
LONGEST_HEADER = 150
MOST_ITEMS = 10
MARKS = {
    Delivery.Kind.FIRING: ":red_circle:",
    Delivery.Kind.REPEATED: ":red_circle:",
    Delivery.Kind.CHANGED: ":large_orange_circle:",
    Delivery.Kind.ACKNOWLEDGED: ":eyes:",
    Delivery.Kind.RESOLVED: ":white_check_mark:",
    Delivery.Kind.UNDELIVERED: ":warning:",
    Delivery.Kind.TEST: ":wave:",
}


class Slack:
    """A channel of people."""

    def render(self, notice: Message) -> Body:
        """Say it in one line for the phone, and with links and the story below."""
        title = f"{MARKS[notice.kind]} {notice.title}"
        blocks: list[dict[str, Any]] = [_header(title)]
        blocks += [_section(_alert_text(item, notice)) for item in notice.items[:MOST_ITEMS]]
        if (more := len(notice.items) - MOST_ITEMS) > 0:
            blocks.append(_section(f"and {more} more: <{notice.list_url}|all open alerts>"))
        blocks.append(_small(f"{slack(notice.by or 'trnwatch')} · {_date(notice.at)}"))
        return {"text": slack(title), "blocks": blocks}

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, door: HttpClient
    ) -> HttpResult:
        """Post it; Slack has no notion of a key, but what stands between may."""
        headers = {**JSON, "Idempotency-Key": key}
        return door.post(Request(receiver.target, encode(body), headers))

    def confirms(self, answer: HttpResult) -> bool:
        """Believe ``ok`` and its like, but no page."""
        return not is_page(answer)


def _alert_text(item: AlertItem, message: Message) -> str:
    context = {"item": item, "message": message}
    return render_to_string("notifications/slack_alert.txt", context).rstrip("\n")


def _header(text: str) -> dict[str, Any]:
    cut = text if len(text) <= LONGEST_HEADER else f"{text[: LONGEST_HEADER - 1]}…"
    return {"type": "header", "text": {"type": "plain_text", "text": cut, "emoji": True}}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def _small(text: str) -> dict[str, Any]:
    return {"type": "context", "elements": [{"type": "mrkdwn", "text": text}]}


def _date(at: datetime) -> str:
    """Write a moment in the reader's own zone, or in UTC where that cannot be."""
    form = "{date_short_pretty} {time_secs}"
    return f"<!date^{int(at.timestamp())}^{form}|{at:%Y-%m-%d %H:%M:%S} UTC>"


SCHEME = "v1"


def signature(secret: str, at_s: int, body: bytes) -> str:
    """Sign a body as of a second: HMAC-SHA256 over ``<second>.<body>``, in hexadecimal."""
    signed = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256)
    return f"{SCHEME}={signed.hexdigest()}"


class Webhook:
    """Any program that takes a POST."""

    def render(self, notice: Message) -> Body:
        """Tell everything, in names that stay put."""
        told: dict[str, Any] = msgspec.to_builtins(
            {
                "version": 1,
                "id": notice.key,
                "kind": notice.kind.value,
                "title": notice.title,
                "sent_about": notice.at,
                "alerts": [asdict(item) for item in notice.items],
                "changes": [asdict(change) for change in notice.changes],
            }
        )
        for alert in told["alerts"]:
            alert["id"] = alert.pop("pk")
        return told

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, door: HttpClient
    ) -> HttpResult:
        """Post it, signed as of now where there is a secret."""
        written, at_s = encode(body), int(at.timestamp())
        headers = {**JSON, "Idempotency-Key": key, "Trnwatch-Timestamp": str(at_s)}
        if receiver.secret:
            headers["Trnwatch-Signature"] = signature(receiver.secret, at_s, written)
        return door.post(Request(receiver.target, written, headers))

    def confirms(self, answer: HttpResult) -> bool:
        """Believe whoever answers: what programs say differs."""
        return True


CHANNELS: dict[str, Channel] = {
    Receiver.Kind.WEBHOOK: Webhook(),
    Receiver.Kind.SLACK: Slack(),
    Receiver.Kind.PAGERDUTY: PagerDuty(),
    Receiver.Kind.ALERTMANAGER: Alertmanager(),
    Receiver.Kind.EMAIL: Mail(),
}

__all__ = ["CHANNELS", "Channel"]
