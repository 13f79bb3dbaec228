"""Which kind of file a trace is, by its first bytes rather than its name."""

from collections.abc import Sequence
from pathlib import Path

from telemetry.ingest.traces.parquet import read_parquet
from telemetry.trace import Trace, TraceError

PARQUET = b"PAR1"


def read_trace(paths: Sequence[Path]) -> Trace:
    """Read a trace: one Parquet file."""
    with paths[0].open("rb") as file:
        head = file.read(4)
    if head == PARQUET:
        return read_parquet(paths[0])
    raise TraceError(f"{paths[0].name}: is no Parquet file")
