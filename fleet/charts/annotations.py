"""What was said to have happened, as marks on charts over time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from fleet.charts.figures import Event, Figure, Heat
from fleet.charts.windows import Window
from fleet.models import Annotation
from fleet.models.annotation import moment_of

MOST = 40
Drawn = TypeVar("Drawn", Figure, Figure | Heat, bytes | Figure | Heat)


def annotated(
    drawn: Drawn, window: Window, *, run: int | None = None, node: int | None = None
) -> Drawn:
    """Return a chart with what is said of its run, its node or everything, by their keys.

    Bars have no moments to mark, and a heat map has no room for words. A chart that was frozen
    as JSON is marked with what has been said since, too.
    """
    if isinstance(drawn, bytes):
        return _marked(drawn, said_within(window, run=run, node=node))
    if isinstance(drawn, Heat) or drawn.labels:
        return drawn
    return replace(drawn, events=[*drawn.events, *said_within(window, run=run, node=node)])


def said_within(window: Window, *, run: int | None, node: int | None) -> Sequence[Event]:
    """Return the newest annotations of a window, the oldest first."""
    within = Annotation.objects.within(moment_of(window.start), moment_of(window.end))
    said = within.about(run=run, node=node).order_by("-at", "-pk")[:MOST]
    return [(each.at.timestamp(), f"{each.kind}: {each.text}", each.kind) for each in said][::-1]


def _marked(frozen: bytes, events: Sequence[Event]) -> bytes:
    figure: dict[str, Any] = msgspec.json.decode(frozen)
    if not events or figure.get("labels") or "series" not in figure:
        return frozen
    return msgspec.json.encode(figure | {"events": [*figure.get("events", ()), *events]})
