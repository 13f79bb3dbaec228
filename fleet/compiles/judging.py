"""Why a graph was compiled: for the first time, announced, again, amid training, or beside."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet.compiles.history import History, compile_of
from fleet.models import CompileEvent
from telemetry.compiles import HIT, MISS, Compile, KeyChange, key_changes

Verdict = CompileEvent.Verdict
# Processes of one start ask for a graph at about the same time; later it is another start.
SAME_START_S = 600.0
# In its first steps a job traces and compiles its graphs; one that is new later surprises.
FIRST_STEPS = 10


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict and, where nobody had announced the compile, what changed since which event."""

    verdict: str = ""
    change: Mapping[str, Any] | None = None


def judged(
    event: Compile,
    history: History,
    *,
    trained_from_s: float | None,
    others: Mapping[str, CompileEvent],
) -> Judged:
    """Say why a graph was compiled.

    Parameters
    ----------
    event : what was compiled, or found: that needs no reason
    history : what the run had asked for before
    trained_from_s : Unix seconds since when the run trains; None where it does not yet
    others : by graph, the last event of another run of the team

    Notes
    -----
    The same key compiled by another process within ten minutes is one start whose processes do
    not share a cache. Whatever else of the run's own was there before is compiled ``again``.
    """
    if event.outcome != MISS or event.is_planned:
        return Judged(Verdict.PLANNED if event.outcome == MISS else "")
    before = next(history.of(event), None) if event.graph else None
    if before is not None:
        if _is_beside(before, event):
            return Judged(Verdict.BESIDE)
        return Judged(Verdict.AGAIN, change_of(before, event))
    if trained_from_s is not None and event.at_s >= trained_from_s:
        last = history.last()
        return Judged(Verdict.AMID, change_of(last, event) if last else {"parts": []})
    if (other := others.get(event.graph)) is not None and event.graph:
        return Judged(Verdict.AGAIN, change_of(compile_of(other), event, run=other.run.name))
    return Judged(Verdict.FIRST)


def _is_beside(before: Compile, event: Compile) -> bool:
    """Whether another process compiled the very same just before, or does so still."""
    if before.outcome == HIT or before.process == event.process:
        return False
    begun_apart_s = event.at_s - before.at_s
    ended_apart_s = begun_apart_s - (0.0 if math.isnan(before.seconds) else before.seconds)
    return before.module == event.module and not ended_apart_s > SAME_START_S


def change_of(before: Compile, after: Compile, *, run: str = "") -> dict[str, Any]:
    """Return what changed as an event keeps it: plain JSON."""
    return {
        "parts": [as_kept(part) for part in key_changes(before, after)],
        "before_s": None if math.isnan(before.at_s) else before.at_s,
        "before": before.outcome,
        "run": run,
    }


def as_kept(part: KeyChange) -> dict[str, str]:
    """Return one part of a key as it is kept."""
    return {"what": part.what, "before": part.before[:500], "after": part.after[:500]}
