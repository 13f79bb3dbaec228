"""The payload of a notification for each kind of receiver."""

import base64
import hashlib
import hmac
import logging
import smtplib
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from email.errors import MessageError
from email.message import EmailMessage
from typing import Any, Protocol, Self, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from django.conf import settings
from django.template.loader import render_to_string
from django.utils.module_loading import import_string

from fleet.alerts.runbooks import LINK, PLACES
from fleet.formatting import slack
from fleet.models import Receiver
from fleet.notifications.http_client import (
    AddressError,
    HttpClient,
    HttpResult,
    Request,
    UnreachableError,
)
from fleet.notifications.messages import KIND, AlertItem, Message
from fleet.notifications.web_push import push_request
from telemetry.errors import LARGEST_SECOND, whole_number

log = logging.getLogger(__name__)

Body = Mapping[str, Any] | list[Any]
JSON = {"Content-Type": "application/json"}


def encode(body: Body) -> bytes:
    """Encode a body as JSON: the same bytes at every attempt."""
    return msgspec.json.encode(body, order="sorted")


class Channel(Protocol):
    def render(self, message: Message) -> Body:
        """Convert a message to the receiver's form. The result is stored: no secrets."""
        ...

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, client: HttpClient
    ) -> HttpResult:
        """Send it once; ``key`` is the same at every attempt."""
        ...

    def confirms(self, answer: HttpResult) -> bool:
        """Whether a 2xx answer is from the receiver itself, not from a proxy or a portal."""
        ...


class HttpChannel:
    def request(self, receiver: Receiver, body: Body, at: datetime) -> Request:
        return Request(receiver.target, encode(body), dict(JSON))

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, client: HttpClient
    ) -> HttpResult:
        request = self.request(receiver, body, at)
        request.headers["Idempotency-Key"] = key
        return client.post(request)

    def confirms(self, answer: HttpResult) -> bool:
        """Accept any answer that is not an HTML page."""
        return answer.body.lstrip()[:1] != b"<"


SIGNATURE_SCHEME = "v1"


class Webhook(HttpChannel):
    def render(self, message: Message) -> Body:
        """Include everything that is known, under stable names."""
        body: dict[str, Any] = msgspec.to_builtins(
            {
                "version": 1,
                "id": message.key,
                "kind": message.kind.value,
                "title": message.title,
                "sent_about": message.at,
                "alerts": [asdict(item) for item in message.items],
                "changes": [asdict(change) for change in message.changes],
            }
        )
        for alert in body["alerts"]:
            alert["id"] = alert.pop("pk")
        return body

    def request(self, receiver: Receiver, body: Body, at: datetime) -> Request:
        """Sign the body and the current second, if there is a secret."""
        encoded, at_s = encode(body), int(at.timestamp())
        headers = {**JSON, "Trnwatch-Timestamp": str(at_s)}
        if receiver.secret:
            headers["Trnwatch-Signature"] = signature(receiver.secret, at_s, encoded)
        return Request(receiver.target, encoded, headers)

    def confirms(self, answer: HttpResult) -> bool:
        """Accept any answer: what programs return differs."""
        return True


def signature(secret: str, at_s: int, body: bytes) -> str:
    """Sign a body at a second: HMAC-SHA256 over ``<second>.<body>``, in hexadecimal."""
    signed = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256)
    return f"{SIGNATURE_SCHEME}={signed.hexdigest()}"


# Slack takes 150 characters in a header, 3,000 in a section (the template cuts the story),
# and 50 blocks.
LONGEST_HEADER, LONGEST_SECTION, LONGEST_ALT = 150, 2_900, 1_900
MOST_ITEMS = 10
ACKNOWLEDGE = "acknowledge"
BAD_REQUEST = 400
# Slack's signature of a click, and how old it may be.
SLACK_SIGNATURE, SLACK_WITHIN_S = "v0", 300


def is_from_slack(secret: str, *, at: str, signed: str, body: bytes, now_s: float) -> bool:
    """Whether a request is signed with an app's signing secret, a few minutes ago at most."""
    at_s = whole_number(at, most=LARGEST_SECOND)
    if not secret or at_s is None or abs(now_s - at_s) > SLACK_WITHIN_S:
        return False
    base = f"{SLACK_SIGNATURE}:{at}:".encode() + body
    made = hmac.new(secret.encode(), base, hashlib.sha256).hexdigest()
    return hmac.compare_digest(f"{SLACK_SIGNATURE}={made}".encode(), signed.encode())


MARKS = {
    KIND.FIRING: ":red_circle:",
    KIND.REPEATED: ":red_circle:",
    KIND.CHANGED: ":large_orange_circle:",
    KIND.ACKNOWLEDGED: ":eyes:",
    KIND.MARKED_FALSE: ":no_entry_sign:",
    KIND.RESOLVED: ":white_check_mark:",
    KIND.UNDELIVERED: ":warning:",
    KIND.TEST: ":wave:",
}


class Slack(HttpChannel):
    def render(self, message: Message) -> Body:
        """Write one line for push notifications, and blocks with links and the full text."""
        title = f"{MARKS[message.kind]} {message.title}"
        header = _cut(title, LONGEST_HEADER)
        sections = [
            render_to_string(
                "notifications/slack_alert.txt", {"item": item, "message": message}
            ).rstrip("\n")
            for item in message.items[:MOST_ITEMS]
        ]
        if (more := len(message.items) - MOST_ITEMS) > 0:
            sections.append(f"and {more} more: <{message.list_url}|all open alerts>")
        # Slack writes the time in the reader's time zone, or else the text after the bar.
        at = message.at
        date = f"<!date^{int(at.timestamp())}^{{date_short_pretty}} {{time_secs}}"
        footer = f"{slack(message.by or 'trnwatch')} · {date}|{at:%Y-%m-%d %H:%M:%S} UTC>"
        if message.is_open and len(message.items) == 1 and message.items[0].do_now:
            sections.append(f"*Do now*\n{slack_steps(message.items[0].do_now)}"[:LONGEST_SECTION])
        blocks: list[dict[str, Any]] = [
            {"type": "header", "text": {"type": "plain_text", "text": header, "emoji": True}},
            *({"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in sections),
        ]
        if message.items and message.items[0].image_url.startswith("https:"):
            item = message.items[0]
            alt = f"Chart: {item.verdict}"[:LONGEST_ALT]
            blocks.append({"type": "image", "image_url": item.image_url, "alt_text": alt})
        if message.is_open and message.has_buttons:
            blocks += [_buttons(item) for item in message.items[:MOST_ITEMS]]
        blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": footer}]})
        return {"text": slack(title), "blocks": blocks}

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, client: HttpClient
    ) -> HttpResult:
        """Send it; without its chart where Slack cannot fetch that and refuses the message."""
        answer = super().send(receiver, body, key=key, at=at, client=client)
        blocks = [each for each in dict(body)["blocks"] if each["type"] != "image"]
        if answer.status != BAD_REQUEST or len(blocks) == len(dict(body)["blocks"]):
            return answer
        plain_body = {**dict(body), "blocks": blocks}
        return super().send(receiver, plain_body, key=key, at=at, client=client)


def _buttons(item: AlertItem) -> dict[str, Any]:
    """Buttons whose clicks Slack posts to the page ``slack-interaction``."""
    label = {"type": "plain_text", "text": "Acknowledge"}
    button = {"type": "button", "action_id": ACKNOWLEDGE, "value": str(item.pk), "text": label}
    return {"type": "actions", "elements": [button | {"style": "primary"}]}


def slack_steps(markdown: str) -> str:
    r"""Convert the steps of a runbook to Slack's markup: bold, links, and where commands are run.

    >>> slack_steps("1. **Stop** [it](https://a/b):\n\n   ```slurm\n   scancel 7\n   ```\n")
    '1. *Stop* <https://a/b|it>:\n\nSlurm:\n```\nscancel 7\n```'
    """
    text = LINK.sub(lambda link: f"<{link[2]}|{link[1]}>" if link[2] else link[0], slack(markdown))
    lines = []
    for line in text.replace("**", "*").splitlines():
        fence = line.strip().removeprefix("```") if line.strip().startswith("```") else None
        if fence:
            lines += [f"{PLACES.get(fence, fence)}:", "```"]
        else:
            lines.append(line.removeprefix("   "))
    return "\n".join(lines).strip()


EVENTS_URL = "https://events.pagerduty.com/v2/enqueue"
LONGEST_SUMMARY = 1024
SEVERITIES = {"page": "critical", "warn": "warning"}
ACTIONS = {KIND.ACKNOWLEDGED: "acknowledge", KIND.RESOLVED: "resolve"}
# Messages about trnwatch itself, and their severity.
ABOUT_TRNWATCH = {KIND.UNDELIVERED: "warning", KIND.TEST: "info"}


class PagerDuty(HttpChannel):
    """A service of PagerDuty, by its Events API v2."""

    def render(self, message: Message) -> Body:
        """Trigger, acknowledge or resolve the incident of the one alert of the message."""
        if message.kind in ABOUT_TRNWATCH:
            severity = ABOUT_TRNWATCH[message.kind]
            return {
                "event_action": "trigger",
                "dedup_key": f"trnwatch-{message.key}",
                "payload": {"summary": message.title, "source": "trnwatch", "severity": severity},
            }
        [item] = message.items
        drill = "DRILL: " if item.is_drill else ""
        action = ACTIONS.get(message.kind, "trigger")
        event: dict[str, Any] = {"event_action": action, "dedup_key": f"trnwatch-alert-{item.pk}"}
        if action != "trigger":
            return event
        is_public = item.image_url.startswith("https:")
        image = {"src": item.image_url, "href": item.frozen_url, "alt": item.verdict}
        return event | {
            "client": "trnwatch",
            "images": [image] if is_public else [],
            "client_url": item.url,
            "links": [
                {"href": item.url, "text": "Open alert"},
                {"href": item.frozen_url, "text": "Charts at that time"},
                {"href": item.runbook_url, "text": "Runbook"},
            ],
            "payload": {
                "summary": f"{drill}{item.summary}"[:LONGEST_SUMMARY],
                "source": item.node or item.run or "trnwatch",
                "severity": SEVERITIES.get(item.severity, "error"),
                "timestamp": item.onset_at.isoformat(),
                "class": item.rule,
                "custom_details": {
                    "cause": item.cause_name,
                    "story": item.story,
                    "run": item.run,
                    "node": item.node,
                    "since": item.onset_at.isoformat(),
                    "victims": item.n_victims,
                    "do_now": item.do_now,
                    "what": message.label.lower(),
                },
                **({"group": item.run} if item.run else {}),
                **({} if item.device is None else {"component": f"{item.part} {item.device}"}),
            },
        }

    def request(self, receiver: Receiver, body: Body, at: datetime) -> Request:
        """Add the integration key, which the stored body does not contain."""
        encoded = encode({**dict(body), "routing_key": receiver.secret})
        return Request(receiver.target or EVENTS_URL, encoded, dict(JSON))

    def confirms(self, answer: HttpResult) -> bool:
        """Accept only an answer in PagerDuty's form."""
        try:
            reply = msgspec.json.decode(answer.body)
        except msgspec.DecodeError:
            return False
        return isinstance(reply, dict) and reply.get("status") == "success"


PATH = "/api/v2/alerts"
# Alertmanager ends an alert that is not sent again for so long: ten refreshes missed.
VALID_FOR = timedelta(minutes=10)


class Alertmanager(HttpChannel):
    """An Alertmanager, which groups, silences and escalates by its own rules."""

    def render(self, message: Message) -> Body:
        """List each alert with the time until which it is valid, or when it ended."""
        if message.kind == KIND.TEST:
            return [
                {
                    "labels": {"alertname": "TrnwatchTest", "severity": "none"},
                    "annotations": {"summary": message.title},
                    "startsAt": message.at.isoformat(),
                    "endsAt": (message.at + timedelta(minutes=1)).isoformat(),
                }
            ]
        is_resolved = message.kind == KIND.RESOLVED
        return [postable(item, is_resolved=is_resolved, now=message.at) for item in message.items]

    def request(self, receiver: Receiver, body: Body, at: datetime) -> Request:
        """Post to the API below the receiver's address. Equal labels are the same alert."""
        url = receiver.target.rstrip("/").removesuffix(PATH) + PATH
        bearer = {"Authorization": f"Bearer {receiver.secret}"} if receiver.secret else {}
        return Request(url, encode(body), {**JSON, **bearer})


def postable(item: AlertItem, *, is_resolved: bool, now: datetime) -> dict[str, Any]:
    """Convert an alert to Alertmanager's form."""
    ends_at = (item.resolved_at or now) if is_resolved else now + VALID_FOR
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


def watchdog(*, base_url: str, now: datetime) -> list[dict[str, Any]]:
    """Build the Watchdog alert: it fires while trnwatch evaluates rules, and ends otherwise."""
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
# The name of the chart within a mail.
CHART = "chart@trnwatch"
PORTS = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
# SMTP codes from here on are permanent: trying again does not help.
PERMANENT = 500


class Mail:
    def render(self, message: Message) -> Body:
        """Write it as text and as HTML, with the chart as base64 where there is one."""
        context = {"message": message, "image": f"cid:{CHART}" if message.image else ""}
        return {
            "subject": " ".join(message.title.split())[:LONGEST_SUBJECT],
            "text": render_to_string("notifications/mail.txt", context).rstrip("\n"),
            "html": render_to_string("notifications/mail.html", context),
            "image": base64.b64encode(message.image).decode() if message.image else "",
        }

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, client: HttpClient
    ) -> HttpResult:
        """Send by SMTP. The message's id is the key, so that duplicates are recognised."""
        if not settings.SMTP_URL:
            raise AddressError("mail: no server is set; see TRNWATCH_SMTP_URL")
        server, fields = MailServer.of(settings.SMTP_URL), dict(body)
        try:
            mail = EmailMessage()
            mail["Subject"] = fields["subject"]
            mail["From"] = settings.DEFAULT_FROM_EMAIL
            mail["To"] = receiver.target
            mail["Date"] = at
            mail["Message-ID"] = f"<{key}@trnwatch>"
            mail["Idempotency-Key"] = key
            mail["Auto-Submitted"] = "auto-generated"
            mail.set_content(fields["text"])
            _add_html(mail, fields)
            with server.open(timeout_s=client.timeout_s) as connection:
                refused = connection.send_message(mail)
        except smtplib.SMTPRecipientsRefused as error:
            refused = error.recipients
        except smtplib.SMTPResponseException as error:
            raise _refusal(error.smtp_code, error.smtp_error) from error
        except (smtplib.SMTPException, OSError) as error:
            raise UnreachableError(f"{type(error).__name__}: {error}") from error
        except (MessageError, ValueError) as error:
            raise AddressError(f"mail: {error}") from error
        if refused:
            # The recipients that were accepted may get the mail twice.
            code, text = min(refused.values())
            raise _refusal(code, f"{text.decode('utf-8', 'replace')} ({', '.join(refused)})")
        return HttpResult(250, b"accepted")

    def confirms(self, answer: HttpResult) -> bool:
        return True


def _add_html(mail: EmailMessage, fields: Mapping[str, Any]) -> None:
    """Add the HTML with its chart; a body stored by an earlier release has none."""
    if "html" not in fields:
        return
    mail.add_alternative(fields["html"], subtype="html")
    if fields["image"]:
        html = cast("list[EmailMessage]", mail.get_payload())[1]
        image = base64.b64decode(fields["image"])
        html.add_related(image, "image", "png", cid=f"<{CHART}>", filename="chart.png")


@dataclass(frozen=True, slots=True)
class MailServer:
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
        """Connect, with TLS unless the scheme is plain ``smtp``."""
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


def _refusal(code: int, reply: bytes | str) -> Exception:
    """Distinguish a permanent refusal from a temporary one."""
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
    message = f"the mail server answered {code} {text}"
    return AddressError(message) if code >= PERMANENT else UnreachableError(message)


APPRISE = "apprise.Apprise"
APPRISE_URL = "apprise.utils.parse.parse_url"
# The services that may be named, by scheme, and the parameters that each may have. Their hosts
# are fixed in Apprise, and no parameter here names a host or a file. Apprise knows more of both:
# `smtp`, `relay`, `template`, `keyfile`, and `redirect`, `verify`, `store` for every service.
SERVICES: Mapping[str, frozenset[str]] = {
    scheme: frozenset(parameters.split())
    for schemes, parameters in (
        ("discord", "thread ping"),
        ("gchat", "thread"),
        ("ifttt", "to"),
        ("ilert", "priority"),
        ("opsgenie", "priority region tags entity alias to"),
        ("pagertree", "urgency tags"),
        ("pbul", "to"),
        ("pover", "priority sound expire interval to"),
        ("signl4", "service location alerting_scenario filtering external_id status"),
        ("splunk victorops", "route"),
        ("tgram", "to thread topic silent preview"),
        ("twilio", "from to"),
        ("vonage nexmo", "from to"),
        ("workflow workflows", "id workflow sig signature route api-version ver powerautomate pa"),
        ("wxteams webex", "to"),
        ("dingtalk", "to"),
        *((each, "") for each in ("feishu", "firehydrant", "incidentio", "lark", "spike")),
    )
    for scheme in schemes.split()
}
# Microsoft Teams: a workflow has a host of its own, below one of these.
WORKFLOW_HOSTS = (".logic.azure.com", ".api.powerplatform.com")


class Apprise:
    """A service in SERVICES, by an address in the form of Apprise."""

    def render(self, message: Message) -> Body:
        context = {"message": message}
        text = render_to_string("notifications/mail.txt", context).rstrip("\n")
        return {
            "title": message.title,
            "body": text.partition("\n")[2].strip(),
            "type": (
                "success"
                if message.kind == KIND.RESOLVED
                else "failure"
                if message.items
                else "info"
            ),
        }

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, client: HttpClient
    ) -> HttpResult:
        """Send it once. Apprise reports only whether it worked; its log has the reason."""
        service, fields = apprise_service(receiver.target), dict(body)
        service.socket_connect_timeout = service.socket_read_timeout = client.timeout_s / 2
        try:
            is_sent = service.notify(
                body=fields["body"], title=fields["title"], notify_type=fields["type"]
            )
        except TypeError as error:
            raise AddressError(f"target: {error}") from error
        if not is_sent:
            raise UnreachableError("the service did not accept it; the sender's log says why")
        return HttpResult(OK, b"accepted")

    def confirms(self, answer: HttpResult) -> bool:
        return True


OK = 200


def check_service(target: str) -> str:
    """Return the scheme of an address of Apprise; AddressError where it may not be used.

    Errors name no part of an address that can be secret.
    """
    scheme, separator, rest = target.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in SERVICES:
        raise AddressError(
            f"target: is not an address of {', '.join(sorted(SERVICES))}, such as opsgenie://key. "
            "For another service use a webhook, Slack-compatible webhook or mail."
        )
    given = {
        name.strip().lower()
        for name, _ in parse_qsl(rest.partition("?")[2], keep_blank_values=True)
    }
    _check_parameters(scheme, given)
    return scheme


def _check_parameters(scheme: str, given: Iterable[str]) -> None:
    if refused := sorted(set(given) - SERVICES[scheme]):
        known = ", ".join(sorted(SERVICES[scheme])) or "none"
        raise AddressError(
            f"target: {scheme}:// may not have the parameter {refused[0][:40]!r}. Remove it; "
            f"allowed: {known}."
        )


def refusal_of(receiver: Receiver) -> str:
    """Say why nothing is sent to a stored receiver of Apprise; empty if it may be used."""
    if receiver.kind != Receiver.Kind.APPRISE:
        return ""
    try:
        check_service(receiver.target)
    except AddressError as error:
        return str(error).removeprefix("target: ")
    return ""


def apprise_service(target: str) -> Any:
    """Open an address of Apprise; AddressError where it is invalid or may not be used."""
    scheme = check_service(target)
    # Its import takes 0.3 s, and few processes need it.
    parsed = import_string(APPRISE_URL)(target, default_schema="unknown", verify_host=False)
    # Apprise's own reading of the address counts, where it differs from ours.
    _check_parameters(scheme, parsed["qsd"] if parsed else ())
    service = import_string(APPRISE).instantiate(target) if parsed else None
    if service is None or scheme not in service.schemas():
        raise AddressError(f"target: is no valid address of {scheme}://; see Apprise's manual")
    host, port = str(getattr(service, "host", "")).lower(), getattr(service, "port", None)
    is_workflow = scheme.startswith("workflow")
    if is_workflow and not (host.endswith(WORKFLOW_HOSTS) and port in (None, 443)):
        raise AddressError(
            f"target: {scheme}:// must have a host below {' or '.join(WORKFLOW_HOSTS)}, "
            "on port 443"
        )
    service.redirects = False
    return service


# A push service takes 4,096 bytes, of which 103 are not text. In JSON a character may take six.
LONGEST_PUSH_TITLE, LONGEST_PUSH_TEXT, LONGEST_TAG = 120, 400, 100
RINGS = frozenset({KIND.FIRING, KIND.REPEATED, KIND.UNDELIVERED, KIND.TEST})


class WebPush(HttpChannel):
    """A browser of a person, through the push service of its vendor, which cannot read it."""

    def render(self, message: Message) -> Body:
        """Write a title, a few lines, and where a tap leads.

        ``tag``: a later message about the same alerts replaces it. ``rings``: it makes itself
        heard. ``stays``: it is shown until it is tapped.
        """
        text = render_to_string("notifications/push.txt", {"message": message})
        title, _, lines = text.strip().partition("\n")
        pks = " ".join(str(item.pk) for item in message.items)
        return {
            "title": _cut(" ".join(title.split()), LONGEST_PUSH_TITLE),
            "text": _cut(lines.strip(), LONGEST_PUSH_TEXT),
            "url": message.items[0].url if len(message.items) == 1 else message.list_url,
            "tag": f"alerts {pks}"[:LONGEST_TAG] if pks else message.kind.value,
            "rings": message.kind in RINGS,
            "stays": message.is_open and any(item.severity == "page" for item in message.items),
        }

    def request(self, receiver: Receiver, body: Body, at: datetime) -> Request:
        fields = dict(body)
        return push_request(receiver, encode(body), topic=fields["tag"], is_urgent=fields["rings"])


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


CHANNELS: dict[str, Channel] = {
    Receiver.Kind.WEBHOOK: Webhook(),
    Receiver.Kind.SLACK: Slack(),
    Receiver.Kind.PAGERDUTY: PagerDuty(),
    Receiver.Kind.ALERTMANAGER: Alertmanager(),
    Receiver.Kind.EMAIL: Mail(),
    Receiver.Kind.APPRISE: Apprise(),
    Receiver.Kind.PUSH: WebPush(),
}
