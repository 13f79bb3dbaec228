"""Traces of one row per operation, as Parquet, with the job's layout in a file beside them."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from telemetry.blocks import IntArray
from telemetry.ingest.traces.table import REQUIRED, kinds_of, trace_of
from telemetry.trace import Trace, TraceError

COLUMNS = (*REQUIRED, "rank", "mc", "mb_id")
LAYOUT = re.compile(r"^(\w+)\s*:\s*(\d{1,6})\s*$", re.MULTILINE)


def read_parquet(path: Path) -> Trace:
    """Read a Parquet file; ``<name>.yaml`` beside it may tell the tensor-parallel degree.

    Notes
    -----
    Each row is one operation of the first tensor-parallel rank of a worker, or of all of
    them, which then count as one. Other columns than those known are left alone.
    """
    try:
        names = pq.read_schema(path).names
        if missing := [name for name in REQUIRED if name not in names]:
            raise TraceError(
                f"{path.name}: has no column {', '.join(missing)}; "
                f"needed are {', '.join(REQUIRED)}, of use {', '.join(COLUMNS[len(REQUIRED) :])}"
            )
        table = pq.read_table(path, columns=[name for name in COLUMNS if name in names])
    except (pa.ArrowException, OSError) as error:
        raise TraceError(f"{path.name}: is no whole Parquet file; copy it anew") from error
    if not table.num_rows:
        raise TraceError(f"{path.name}: holds no operation; record at least one whole step")
    for name in REQUIRED:
        if table[name].null_count:
            raise TraceError(f"{name}: has {table[name].null_count} empty rows; fill or drop them")
    kinds = _kinds(table["optype"])
    columns = {name: table[name].to_numpy() for name in table.column_names if name != "optype"}
    return trace_of(columns, kinds, tp=_layout(path).get("tp_size"))


def _kinds(column: pa.ChunkedArray) -> IntArray:
    """Return the kind of each operation from its name."""
    try:
        coded = column.cast(pa.string()).combine_chunks().dictionary_encode()
    except pa.ArrowException as error:
        raise TraceError("optype: must be names of operations") from error
    return kinds_of(coded.dictionary.to_pylist(), coded.indices.to_numpy().astype("i8"))


def _layout(path: Path) -> dict[str, int]:
    """Return the whole numbers of the layout file, where there is one."""
    beside = path.with_suffix(".yaml")
    try:
        return {key: int(value) for key, value in LAYOUT.findall(beside.read_text())}
    except (OSError, UnicodeDecodeError):
        return {}
