"""Which kind of file a trace is, by its first bytes rather than its name."""

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from telemetry.blocks import IntArray
from telemetry.ingest.traces.kernels import trace_of_ranks
from telemetry.ingest.traces.kineto import GZIP, read_kineto
from telemetry.ingest.traces.table import REQUIRED, kinds_of, trace_of
from telemetry.trace import Trace, TraceError

COLUMNS = (*REQUIRED, "rank", "mc", "mb_id")
LAYOUT = re.compile(r"^(\w+)\s*:\s*(\d{1,6})\s*$", re.MULTILINE)

PARQUET = b"PAR1"
ENDINGS = (".json", ".json.gz", ".parquet")


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


def read_trace(paths: Sequence[Path]) -> Trace:
    """Read a trace: one Parquet file, or JSON files of one job; a folder stands for its files."""
    files = [file for path in paths for file in _files(path)]
    heads = {file: _head(file) for file in files}
    if empty := [file.name for file, head in heads.items() if not head]:
        raise TraceError(f"{empty[0]}: is empty; copy it anew")
    parquet = [file for file, head in heads.items() if head == PARQUET]
    if parquet and len(files) > 1:
        raise TraceError(f"{parquet[0].name}: a Parquet trace is one file; give it alone")
    if parquet:
        return read_parquet(parquet[0])
    for file, head in heads.items():
        if head[:2] != GZIP and head.lstrip()[:1] not in (b"{", b"["):
            raise TraceError(
                f"{file.name}: is neither Parquet nor JSON (gzipped or not); give a trace of "
                "one row per operation, or PyTorch profiler's Chrome trace"
            )
    return trace_of_ranks([each for file in files for each in read_kineto(file)])


def _files(path: Path) -> list[Path]:
    """Return the traces in a folder, or the file itself."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS))
    if not found:
        raise TraceError(f"{path.name}: holds no file that ends in {', '.join(ENDINGS)}")
    return found


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)
