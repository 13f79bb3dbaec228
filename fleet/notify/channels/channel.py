"""What every kind of receiver must be able to do."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec

from fleet.models import Receiver
from fleet.notify.http import Answer, Door
from fleet.notify.notice import Notice

Body = Mapping[str, Any] | list[Any]
JSON = {"Content-Type": "application/json"}


class Channel(Protocol):
    """A form for notifications, and a way of sending them."""

    def render(self, notice: Notice) -> Body:
        """Put a notification into the receiver's form, without secrets: it is kept as it is."""
        ...

    def send(
        self, receiver: Receiver, body: Body, *, key: str, at: datetime, door: Door
    ) -> Answer:
        """Send it once; ``key`` is the same at every attempt."""
        ...

    def confirms(self, answer: Answer) -> bool:
        """Whether an answer of 2xx is that of such a receiver, and not of something in between."""
        ...


def encode(body: Body) -> bytes:
    """Write a body as it is sent: the same bytes at every attempt."""
    return msgspec.json.encode(body, order="sorted")


def is_page(answer: Answer) -> bool:
    """Whether this is a page for people: a portal or a proxy speaks, not the receiver."""
    return answer.body.lstrip()[:1] == b"<"
