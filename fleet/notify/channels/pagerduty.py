"""PagerDuty's Events API v2: one incident per alert, opened, taken and closed under one key."""

from datetime import datetime
from typing import Any

import msgspec

from fleet.models import Delivery, Receiver
from fleet.notify.channels.channel import JSON, Body, encode
from fleet.notify.http import Answer, Door, Request
from fleet.notify.notice import Item, Notice

EVENTS_URL = "https://events.pagerduty.com/v2/enqueue"
LONGEST_SUMMARY = 1024
SEVERITIES = {"page": "critical", "warn": "warning"}
ACTIONS = {Delivery.Kind.ACKNOWLEDGED: "acknowledge", Delivery.Kind.RESOLVED: "resolve"}
# What is not about an alert, and how urgent it is.
OURSELVES = {Delivery.Kind.UNDELIVERED: "warning", Delivery.Kind.TEST: "info"}


class PagerDuty:
    """A service of PagerDuty, or what speaks like it."""

    def render(self, notice: Notice) -> Body:
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
                {"href": item.frozen_url, "text": "As it was then"},
                {"href": item.runbook_url, "text": "Runbook"},
            ],
            "payload": _payload(item, notice),
        }

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, door: Door
    ) -> Answer:
        """Post it with the integration key, which is kept nowhere else."""
        written = encode({**dict(body), "routing_key": receiver.secret})
        headers = {**JSON, "Idempotency-Key": key}
        return door.post(Request(receiver.target or EVENTS_URL, written, headers))

    def confirms(self, answer: Answer) -> bool:
        """Believe an answer of PagerDuty's form only."""
        try:
            said = msgspec.json.decode(answer.body)
        except msgspec.DecodeError:
            return False
        return isinstance(said, dict) and said.get("status") == "success"


def _payload(item: Item, notice: Notice) -> dict[str, Any]:
    drill = "DRILL: " if item.is_drill else ""
    payload: dict[str, Any] = {
        "summary": f"{drill}{item.words}"[:LONGEST_SUMMARY],
        "source": item.node or item.run or "trnwatch",
        "severity": SEVERITIES.get(item.severity, "error"),
        "timestamp": item.onset_at.isoformat(),
        "class": item.rule,
        "custom_details": {
            "cause": item.cause_name,
            "story": item.story,
            "victims": item.n_victims,
            "what": notice.mark.lower(),
        },
    }
    if item.run:
        payload["group"] = item.run
    if item.device is not None:
        payload["component"] = f"{item.cause_name} {item.device}"
    return payload


def _about_ourselves(notice: Notice) -> dict[str, Any]:
    """Open an incident about trnwatch itself."""
    severity = OURSELVES[notice.kind]
    payload = {"summary": notice.title, "source": "trnwatch", "severity": severity}
    return {
        "event_action": "trigger",
        "dedup_key": f"trnwatch-{notice.key}",
        "payload": payload,
    }
