"""Parquet traces of one row per operation."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from importers.traces.ranks import UNIX_S
from importers.traces.trace import CODE, KINDS, BoolArray, Trace, TraceError
from telemetry.blocks import FloatArray, IntArray

# Columns of a Parquet trace. Times are Unix seconds, or count from any origin.
WHOLE = ("dp_rank", "stage", "step", "seq_id")
REQUIRED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id")
COLUMNS = (*REQUIRED, "rank", "mc", "mb_id")
LAYOUT = re.compile(r"^(\w+)\s*:\s*(\d{1,6})\s*$", re.MULTILINE)
MAX_TRACE_S = 86_400.0
MAX_INTEGER = 10_000_000
Columns = Mapping[str, NDArray[np.generic]]


def read_parquet(path: Path) -> Trace:
    """Read a Parquet file; ``<name>.yaml`` next to it may have the tensor-parallel degree.

    Each row is one operation of the first tensor-parallel rank of a worker, or of all of them,
    which then count as one. Unknown columns are ignored.
    """
    try:
        names = pq.read_schema(path).names
        if missing := [name for name in REQUIRED if name not in names]:
            raise TraceError(
                f"{path.name}: has no column {', '.join(missing)}; required are "
                f"{', '.join(REQUIRED)}, optional {', '.join(COLUMNS[len(REQUIRED) :])}"
            )
        table = pq.read_table(path, columns=[name for name in COLUMNS if name in names])
    except (pa.ArrowException, OSError) as error:
        raise TraceError(f"{path.name}: is not a complete Parquet file; copy it again") from error
    if not table.num_rows:
        raise TraceError(f"{path.name}: has no operations; record at least one complete step")
    for name in REQUIRED:
        if table[name].null_count:
            raise TraceError(f"{name}: has {table[name].null_count} empty rows; fill them")
    try:
        coded = table["optype"].cast(pa.string()).combine_chunks().dictionary_encode()
    except pa.ArrowException as error:
        raise TraceError("optype: must be names of operations") from error
    kinds = kinds_of(coded.dictionary.to_pylist(), coded.indices.to_numpy().astype("i8"))
    columns = {name: table[name].to_numpy() for name in table.column_names if name != "optype"}
    layout: dict[str, str] = {}
    with suppress(OSError, UnicodeDecodeError):
        layout = dict(LAYOUT.findall(path.with_suffix(".yaml").read_text()))
    return trace_of(columns, kinds, tp=int(layout["tp_size"]) if "tp_size" in layout else None)


def trace_of(columns: Columns, kinds: IntArray, *, tp: int | None) -> Trace:
    """Check columns and return them as a Trace; ``kinds`` are indexes into KINDS."""
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
            f"optype: {', '.join(map(repr, unknown[:5]))} is unknown; known are {', '.join(KINDS)}"
        )
    return np.asarray(np.array([CODE.get(name, -1) for name in names])[codes])


def _floats(columns: Columns, name: str, rule: str) -> FloatArray:
    try:
        return np.asarray(columns[name], "f8")
    except (TypeError, ValueError) as error:
        raise TraceError(f"{name}: must be {rule}") from error


def _seconds(columns: Columns, name: str) -> FloatArray:
    values = _floats(columns, name, "numbers, seconds")
    if not np.isfinite(values).all():
        raise _refused(name, "is not a number", ~np.isfinite(values), values)
    return values


def _whole(columns: Columns, name: str) -> IntArray:
    values = _floats(columns, name, "whole numbers")
    bad = ~((values >= 0) & (values <= MAX_INTEGER if name != "step" else np.isfinite(values)))
    if (bad := bad | (values != np.floor(values))).any():
        raise _refused(name, "must be a whole number, 0 or more", bad, values)
    whole: IntArray = values.astype("i8")
    return whole


def _optional(columns: Columns, name: str, default: IntArray) -> IntArray:
    """Return a column of whole numbers, -1 where unknown."""
    if name not in columns:
        return default
    values = np.nan_to_num(_floats(columns, name, "whole numbers"), nan=-1.0)
    whole: IntArray = np.clip(values, -1, MAX_INTEGER).astype("i8")
    return whole


def _refused(name: str, why: str, bad: BoolArray, values: FloatArray) -> TraceError:
    row = int(np.flatnonzero(bad)[0])
    return TraceError(f"{name}: row {row} {why} ({values[row]:g})")
