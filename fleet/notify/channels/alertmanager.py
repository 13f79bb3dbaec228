"""Alertmanager's API v2: labels that stay the same while an alert lasts, and when it ends."""

from datetime import datetime, timedelta
from typing import Any

from fleet.models import Delivery, Receiver
from fleet.notify.channels.channel import JSON, Body, encode, is_page
from fleet.notify.http import Answer, Door, Request
from fleet.notify.notice import Item, Notice

PATH = "/api/v2/alerts"
# An alert of which nothing more is heard ends by itself after so long: ten re-sendings missed.
VALID_FOR = timedelta(minutes=10)


class Alertmanager:
    """An Alertmanager, which groups, silences and escalates by rules of its own."""

    def render(self, notice: Notice) -> Body:
        """State each alert: until when it holds, or when it ended."""
        if notice.kind == Delivery.Kind.TEST:
            return [_test(notice)]
        return [postable(item, kind=notice.kind, now=notice.at) for item in notice.items]

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, door: Door
    ) -> Answer:
        """Post it; equal labels are the same alert, so that doubles do no harm."""
        url = receiver.target.rstrip("/").removesuffix(PATH) + PATH
        headers = {**JSON, "Idempotency-Key": key}
        if receiver.secret:
            headers["Authorization"] = f"Bearer {receiver.secret}"
        return door.post(Request(url, encode(body), headers))

    def confirms(self, answer: Answer) -> bool:
        """Believe an empty answer, but no page."""
        return not is_page(answer)


def postable(item: Item, *, kind: Delivery.Kind, now: datetime) -> dict[str, Any]:
    """Return an alert as Alertmanager takes it."""
    is_over = kind == Delivery.Kind.RESOLVED
    ends_at = (item.resolved_at or now) if is_over else now + VALID_FOR
    return {
        "labels": item.labels,
        "annotations": {
            "summary": item.words,
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


def _test(notice: Notice) -> dict[str, Any]:
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
            "annotations": {"summary": "trnwatch watches; worry when this stops."},
            "startsAt": now.isoformat(),
            "endsAt": (now + VALID_FOR).isoformat(),
            "generatorURL": base_url,
        }
    ]
