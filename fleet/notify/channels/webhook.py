"""Webhooks: all that is known as JSON, signed so that the receiver can tell it is ours."""

import hashlib
import hmac
from dataclasses import asdict
from datetime import datetime
from typing import Any

import msgspec

from fleet.models import Receiver
from fleet.notify.channels.channel import JSON, Body, encode
from fleet.notify.http import Answer, Door, Request
from fleet.notify.notice import Notice

SCHEME = "v1"


def signature(secret: str, at_s: int, body: bytes) -> str:
    """Sign a body as of a second: HMAC-SHA256 over ``<second>.<body>``, in hexadecimal."""
    signed = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256)
    return f"{SCHEME}={signed.hexdigest()}"


class Webhook:
    """Any program that takes a POST."""

    def render(self, notice: Notice) -> Body:
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
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, door: Door
    ) -> Answer:
        """Post it, signed as of now where there is a secret."""
        written, at_s = encode(body), int(at.timestamp())
        headers = {**JSON, "Idempotency-Key": key, "Trnwatch-Timestamp": str(at_s)}
        if receiver.secret:
            headers["Trnwatch-Signature"] = signature(receiver.secret, at_s, written)
        return door.post(Request(receiver.target, written, headers))

    def confirms(self, answer: Answer) -> bool:
        """Believe whoever answers: what programs say differs."""
        return True
