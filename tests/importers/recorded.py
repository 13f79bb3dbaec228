"""Recorded traces with a published answer, or synthetic ones where they are absent."""

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from importers.traces.trace import KINDS, Trace
from tests.importers.made_traces import Job

NAMES = {
    "step": "step",
    "dp": "dp_rank",
    "stage": "stage",
    "rank": "rank",
    "seq": "seq_id",
    "chunk": "mc",
    "microbatch": "mb_id",
    "start_s": "start_ts",
    "duration_s": "duration",
}


@dataclass(frozen=True)
class Answer:
    """What is known of a trace: figures within 1 %, shares within 0.01."""

    cause: str
    culprit: str | None
    step_s: float
    slowdown_ratio: float
    m_w: float
    m_s: float


# As published with "Understanding Stragglers in Large Model Training Using What-if Analysis".
PUBLISHED = {"AR": Answer("one_worker", "rank0-dp0-stage0", 46.34, 1.973, 1.002, 0.0)}
# A replica's first stage that takes 2.5 times as long, calculated operation by operation.
MADE = Answer("one_worker", "rank0-dp0-stage0", 12.5015, 1.6831, 1.0675, -0.0108)


def recorded_traces() -> list[Path | None]:
    """Return the published traces of TRNWATCH_TRACE_DIR, or None for one to be made."""
    folder = os.environ.get("TRNWATCH_TRACE_DIR", "")
    found = sorted(Path(folder).glob("*.parquet")) if folder else []
    return [path for path in found if path.stem in PUBLISHED] or [None]


def made_job() -> Job:
    slow = lambda _step, dp, stage, _micro: 2.5 if (dp, stage) == (0, 0) else 1.0  # noqa: E731
    return Job(steps=4, noise=0.01, work=slow, seed=7)


def write_parquet(trace: Trace, path: Path, **changed: pa.Array) -> Path:
    """Write a trace as one row per operation; ``changed`` replaces columns, None drops them."""
    columns = {column: pa.array(getattr(trace, name)) for name, column in NAMES.items()}
    names = list(KINDS)
    columns["optype"] = pa.array([names[kind] for kind in trace.kind]).dictionary_encode()
    columns = {name: column for name, column in (columns | changed).items() if column is not None}
    pq.write_table(pa.table(columns), path)
    return path


def trace_file(recorded: Path | None, folder: Path) -> tuple[Path, Answer]:
    """Return a trace's file and its answer."""
    if recorded is not None:
        return recorded, PUBLISHED[recorded.stem]
    return write_parquet(made_job().trace(), folder / "made.parquet"), MADE
