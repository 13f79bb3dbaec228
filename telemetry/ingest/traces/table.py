"""Columns as a file gives them, made one Trace: checked, numbered, and in seconds."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.trace import CODE, KINDS, BoolArray, Trace, TraceError

Columns = Mapping[str, NDArray[np.generic]]

MAX_TRACE_S = 86_400.0
# Unix seconds; anything earlier counts from an origin of the trace's own.
UNIX_S = 1e9
WHOLE = ("dp_rank", "stage", "step", "seq_id")
REQUIRED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id")
MAX_INTEGER = 10_000_000


def trace_of(
    columns: Columns,
    kinds: IntArray,
    *,
    tp: int | None = None,
) -> Trace:
    """Return a Trace of checked columns; ``kinds`` are indexes into KINDS."""
    start_s, duration_s = (_seconds(columns, name) for name in ("start_ts", "duration"))
    if (duration_s < 0).any():
        raise _refused("duration", "is negative", duration_s < 0, duration_s)
    if (duration_s > MAX_TRACE_S).any():
        text = "is more than a day; times must be in seconds"
        raise _refused("duration", text, duration_s > MAX_TRACE_S, duration_s)
    dp, stage, step, seq = (_whole(columns, name) for name in WHOLE)
    rank = _optional(columns, "rank", dp * (stage.max() + 1) + stage)
    began_s = float(start_s.min())
    return Trace(
        kind=kinds,
        step=step,
        dp=dp,
        stage=stage,
        rank=rank,
        seq=seq,
        chunk=_optional(columns, "mc", np.zeros_like(seq)),
        microbatch=_optional(columns, "mb_id", np.full_like(seq, -1)),
        start_s=start_s,
        duration_s=duration_s,
        tp=tp,
        began_at_s=began_s if began_s > UNIX_S else None,
    )


def kinds_of(names: list[str], codes: IntArray) -> IntArray:
    """Return indexes into KINDS; ``codes`` are indexes into ``names``."""
    used = np.unique(codes)
    unknown = sorted({names[i] for i in used.tolist()} - set(KINDS))
    if unknown:
        raise TraceError(
            f"optype: {', '.join(map(repr, unknown[:5]))} is no operation known here; "
            f"known are {', '.join(KINDS)}"
        )
    return np.asarray(np.array([CODE.get(name, -1) for name in names])[codes])


def _seconds(columns: Columns, name: str) -> FloatArray:
    """Return a column of seconds, all of them finite."""
    try:
        values = np.asarray(columns[name], "f8")
    except (TypeError, ValueError) as error:
        raise TraceError(f"{name}: must be numbers, seconds") from error
    if not np.isfinite(values).all():
        raise _refused(name, "is not a number", ~np.isfinite(values), values)
    return values


def _whole(columns: Columns, name: str) -> IntArray:
    """Return a column of whole numbers from 0 on."""
    try:
        values = np.asarray(columns[name], "f8")
    except (TypeError, ValueError) as error:
        raise TraceError(f"{name}: must be whole numbers") from error
    bad = ~((values >= 0) & (values <= MAX_INTEGER if name != "step" else np.isfinite(values)))
    if (bad := bad | (values != np.floor(values))).any():
        raise _refused(name, "must be a whole number from 0 on", bad, values)
    whole: IntArray = values.astype("i8")
    return whole


def _optional(
    columns: Columns,
    name: str,
    default: IntArray,
) -> IntArray:
    """Return a column of whole numbers, -1 where unknown; the default where there is none."""
    if name not in columns:
        return default
    try:
        values = np.nan_to_num(np.asarray(columns[name], "f8"), nan=-1.0)
    except (TypeError, ValueError) as error:
        raise TraceError(f"{name}: must be whole numbers") from error
    whole: IntArray = np.clip(values, -1, MAX_INTEGER).astype("i8")
    return whole


def _refused(name: str, why: str, bad: BoolArray, values: FloatArray) -> TraceError:
    """Say which row of which column cannot be."""
    row = int(np.flatnonzero(bad)[0])
    return TraceError(f"{name}: row {row} {why} ({values[row]:g})")
