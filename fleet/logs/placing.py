"""When the steps of a log ended: by its own times, or counted from a moment that is known."""

from dataclasses import dataclass
from datetime import datetime

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.ingest.logs import LoggedSteps

SECONDS_PER_DAY = 86_400.0
# Clocks differ a little; what ended later than this ahead of now has a wrong one.
AHEAD_S = 300.0
LONGEST_S = 100 * 365 * SECONDS_PER_DAY
BY_LOG, BY_START, BY_FILE = "log", "start", "file"
TOO_OLD, AHEAD = "too old", "ahead"


@dataclass(frozen=True, slots=True)
class Placed:
    """Ends of steps (n,) in Unix seconds, how they are known, and by how much time was moved."""

    ended_at_s: FloatArray
    by: str
    moved_s: float = 0.0
    why_moved: str = ""


def placed(
    steps: LoggedSteps,
    *,
    started_at: datetime | None,
    file_s: float,
    now_s: float,
    keep_days: float,
) -> Placed:
    """Set steps in time.

    Steps without a time are counted on from those that have one; without any, from the moment
    people give, else back from when the file was written last. What is older than steps are
    kept, or lies ahead, is moved so that it ends now.
    """
    lasted_s = np.cumsum(np.nan_to_num(steps.step_s) * steps.weight)
    if lasted_s[-1:].sum() > LONGEST_S:
        raise ValueError("FILE: its steps take more than a hundred years; give one log alone")
    if steps.is_dated:
        found = Placed(_dated(steps.at_s, lasted_s), BY_LOG)
    elif started_at is not None:
        found = Placed(started_at.timestamp() + lasted_s, BY_START)
    else:
        found = Placed(file_s - lasted_s[-1:].sum() + lasted_s, BY_FILE)
    return _kept(found, now_s=now_s, keep_days=keep_days)


def _dated(at_s: FloatArray, lasted_s: FloatArray) -> FloatArray:
    """Fill in the ends that no line tells: counted on from the nearest that one does."""
    known = np.isfinite(at_s)
    drift_s = at_s[known] - lasted_s[known]
    ends = np.where(known, at_s, lasted_s + np.interp(lasted_s, lasted_s[known], drift_s))
    return np.maximum.accumulate(ends)


def _kept(found: Placed, *, now_s: float, keep_days: float) -> Placed:
    """Move what would be forgotten at once, or has not happened yet."""
    if not len(found.ended_at_s):
        return found
    newest_s = float(found.ended_at_s[-1])
    is_ahead = newest_s > now_s + AHEAD_S
    if not is_ahead and now_s - newest_s < keep_days * SECONDS_PER_DAY:
        return found
    moved_s = now_s - newest_s
    return Placed(found.ended_at_s + moved_s, found.by, moved_s, AHEAD if is_ahead else TOO_OLD)
