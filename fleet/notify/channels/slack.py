"""Slack's incoming webhooks, and the many that take the same form."""

from datetime import datetime
from typing import Any

from fleet.models import Delivery, Receiver
from fleet.notify.channels.channel import JSON, Body, encode, is_page
from fleet.notify.http import Answer, Door, Request
from fleet.notify.notice import Item, Notice

# Slack takes 150 characters in a header, 3,000 in a section, and 50 blocks.
LONGEST_HEADER = 150
LONGEST_STORY = 2_400
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

    def render(self, notice: Notice) -> Body:
        """Say it in one line for the phone, and with links and the story below."""
        title = f"{MARKS[notice.kind]} {notice.title}"
        blocks: list[dict[str, Any]] = [_header(title)]
        blocks += [_section(_told(item, notice)) for item in notice.items[:MOST_ITEMS]]
        if (more := len(notice.items) - MOST_ITEMS) > 0:
            blocks.append(_section(f"and {more} more: <{notice.list_url}|all open alerts>"))
        blocks.append(_small(f"{escape(notice.who or 'trnwatch')} · {_date(notice.at)}"))
        return {"text": escape(title), "blocks": blocks}

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, door: Door
    ) -> Answer:
        """Post it; Slack has no notion of a key, but what stands between may."""
        headers = {**JSON, "Idempotency-Key": key}
        return door.post(Request(receiver.target, encode(body), headers))

    def confirms(self, answer: Answer) -> bool:
        """Believe ``ok`` and its like, but no page."""
        return not is_page(answer)


def escape(text: str) -> str:
    """Write text so that Slack reads no links, mentions or marks into it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _told(item: Item, notice: Notice) -> str:
    links = [
        f"<{item.url}|Open>",
        f"<{item.frozen_url}|As it was>",
        f"<{item.runbook_url}|Runbook>",
    ]
    if notice.kind == Delivery.Kind.ACKNOWLEDGED:
        said = next((c.text for c in reversed(notice.changes) if c.text), "")
        return f"*{escape(item.headline)}*\n{escape(said)}\n{' · '.join(links)}"
    story = escape(item.story)[:LONGEST_STORY]
    return f"*{escape(item.headline)}* ({item.severity})\n{story}\n{' · '.join(links)}"


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
