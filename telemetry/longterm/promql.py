"""Questions to a Prometheus-compatible store: escaped, bounded, and tired of one that is away."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode

import msgspec

from telemetry.longterm.endpoint import Endpoint, UnreachableError
from telemetry.store.source import LongTermError

log = logging.getLogger(__name__)

QUERY_RANGE = "/api/v1/query_range"
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
# A store that did not answer is left alone for so long: a page asks for many charts at once.
REST_S = 10.0
MOST_BYTES = 32 << 20
TIMEOUT_S = 8.0
LONGEST_WHY = 120
# Readers are told what is missing; the log says of which address and why.
STORE = "the long-term store"
AWAY = f"{STORE} does not answer"


class Found(msgspec.Struct):
    """One series of an answer: its labels, and (second, value as text) pairs."""

    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Data(msgspec.Struct):
    result: list[Found]


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""


@dataclass
class PromQL:
    """Asks one store; an error is one of LongTermError, whatever went wrong."""

    endpoint: Endpoint
    clock: Callable[[], float] = time.monotonic
    _rests_until: float = field(default=-math.inf, init=False)

    def query_range(self, query: str, *, start: int, end: int, step_s: int) -> list[Found]:
        """Return what a query gives at start, start + step, … up to end, both included."""
        if self.clock() < self._rests_until:
            raise LongTermError(AWAY)
        # Where the store would move start and end to whole steps, nocache keeps it from that.
        asked = {"query": query, "start": start, "end": end, "step": step_s, "nocache": 1}
        try:
            answer = self.endpoint.post(QUERY_RANGE, urlencode(asked).encode(), FORM)
        except UnreachableError as error:
            log.warning("%s", error)
            self._rests_until = self.clock() + REST_S
            raise LongTermError(AWAY) from error
        try:
            told = msgspec.json.decode(answer.body, type=_Answer)
        except (msgspec.DecodeError, UnicodeError):
            log.warning("%s: %s %s", self.endpoint.shown, answer.status, answer.said)
            raise LongTermError(f"{STORE} answers no PromQL ({answer.status})") from None
        if told.status != "success" or told.data is None:
            log.warning("%s: %s %s", self.endpoint.shown, answer.status, answer.said)
            why = told.error[:LONGEST_WHY] or answer.status
            raise LongTermError(f"{STORE} refuses: {why}")
        return told.data.result


def selector(name: str, **labels: str) -> str:
    r"""Return a selector of series; whatever the labels hold, it stays inside its quotes.

    >>> selector("up", node='a"} or {b="')
    'up{node="a\\"} or {b=\\""}'
    """
    pairs = ",".join(f'{label}="{_quoted(value)}"' for label, value in labels.items())
    return f"{name}{{{pairs}}}"


def _quoted(value: str) -> str:
    """Escape what ends a string or changes it; what is no Unicode text is replaced."""
    plain = value.encode("utf-8", "replace").decode()
    return plain.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
