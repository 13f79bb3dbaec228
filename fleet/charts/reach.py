"""How far back a chart goes, at which resolution and from which tier: for its legend."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fleet.charts.windows import Window
from telemetry.series import EVERY_STEP, SOME_STEPS, Stretch
from telemetry.store.tiers import durable_from

MINUTE_S = 60
OF_STEPS = {EVERY_STEP: "every step", SOME_STEPS: "averages of steps"}
ALONE = "each worker's figures are kept here only"


def resolution(every_s: int) -> str:
    """Say in words how finely something is told.

    >>> [resolution(every_s) for every_s in (EVERY_STEP, SOME_STEPS, 1, 60, 1800)]
    ['every step', 'averages of steps', '1 s', '1 min', '30 min']
    """
    if every_s in OF_STEPS:
        return OF_STEPS[every_s]
    return f"{every_s} s" if every_s < MINUTE_S else f"{every_s // MINUTE_S} min"


def reach_of(stretches: Sequence[Stretch]) -> dict[str, Any]:
    """Return what a chart says of its parts; nothing where one tier tells all, in full detail."""
    is_plain = len(stretches) < 2 and all(
        each.tier != "long term" and each.every_s <= MINUTE_S for each in stretches
    )
    if is_plain:
        return {}
    return {
        "reach": [
            {
                "since": each.since,
                "detail": resolution(each.every_s),
                "tier": each.tier,
                "why": each.why,
            }
            for each in stretches
        ]
    }


def reach_in_words(reach: Sequence[dict[str, Any]]) -> str:
    """Say what a chart's parts are, the newest first, in UTC."""
    said = []
    for i, part in enumerate(reach):
        newer = reach[i + 1] if i + 1 < len(reach) else None
        before = f" before {_moment(newer['since'])}" if newer else ""
        source = ", from the long-term store" if part["tier"] == "long term" else ""
        told = f"{part['detail']}{before}{source}"
        said.append(f"nothing{before}: {part['why']}" if part["why"] else told)
    return " · ".join(reversed(said))


def workers_reach(window: Window) -> Sequence[Stretch]:
    """Return what a chart of single workers has of a window: nothing from the long-term store."""
    kept_from = durable_from()
    if kept_from is None or kept_from <= window.start:
        return ()
    untold = Stretch(window.start, MINUTE_S, "long term", ALONE)
    if kept_from >= window.end:
        return (untold,)
    return (untold, Stretch(kept_from, MINUTE_S, "durable"))


def _moment(second: float) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M} UTC"
