"""Ingest of recorded traces: Parquet files of operations, and PyTorch profiler's Chrome traces."""

from collections.abc import Sequence
from pathlib import Path

from telemetry.ingest.traces.kineto import GZIP, read_kineto
from telemetry.ingest.traces.operations import read_parquet
from telemetry.ingest.traces.ranks import trace_of_ranks
from telemetry.trace import Trace, TraceError

PARQUET = b"PAR1"
ENDINGS = (".json", ".json.gz", ".parquet")


def read_trace(paths: Sequence[Path]) -> Trace:
    """Read one Parquet file, or the JSON files of one job; of a folder, all its files."""
    files: list[Path] = []
    for path in paths:
        found = [path]
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS))
        if not found:
            raise TraceError(f"{path.name}: holds no file that ends in {', '.join(ENDINGS)}")
        files += found
    heads = {file: _head(file) for file in files}
    if empty := [file.name for file, head in heads.items() if not head]:
        raise TraceError(f"{empty[0]}: is empty; copy it again")
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


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)
