"""Which kind of file a trace is, by its first bytes rather than its name."""

from collections.abc import Sequence
from pathlib import Path

from telemetry.ingest.traces.kernels import trace_of_ranks
from telemetry.ingest.traces.kineto import GZIP, read_kineto
from telemetry.ingest.traces.parquet import read_parquet
from telemetry.trace import Trace, TraceError

PARQUET = b"PAR1"
ENDINGS = (".json", ".json.gz", ".parquet")


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
