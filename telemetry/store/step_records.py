"""How a step becomes bytes: one record of 64-bit floats, exact, all workers side by side."""

import json
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray
from telemetry.steps import PHASES, StepBatch
from telemetry.store.packing import DIGEST_BYTES, digest

# Which steps are held is a bit per step, in keys of so many steps each.
STEPS_PER_CHAPTER = 4096
HEAD = 3


def pack_steps(batch: StepBatch) -> tuple[bytes, bytes, list[bytes]]:
    """Return the digest of the workers' names, the names as bytes, and a record per step.

    A record is the digest, then step number, end, tokens, and each phase of each worker.
    """
    names = json.dumps(batch.workers, separators=(",", ":")).encode()
    head = np.stack([batch.step, batch.ended_at_s, batch.tokens], axis=1).astype("<f8")
    phases = np.stack([batch.phases[phase] for phase in PHASES], axis=1).reshape(len(batch), -1)
    rows = np.concatenate([head, phases], axis=1, dtype="<f8")
    key = digest(names)
    return key, names, [key + row.tobytes() for row in rows]


def unpack_steps(
    run: str, records: Sequence[bytes], workers_of: Callable[[bytes], Iterable[str] | None]
) -> StepBatch:
    """Put records together again, in order of step; workers come and go as NaN.

    ``workers_of`` names the workers behind a digest, None where that was lost.
    """
    groups: dict[bytes, list[bytes]] = {}
    for record in records:
        groups.setdefault(record[:DIGEST_BYTES], []).append(record[DIGEST_BYTES:])
    known = {key: tuple(names) for key in groups if (names := workers_of(key)) is not None}
    workers = tuple(dict.fromkeys(name for names in known.values() for name in names))
    if not known:
        return StepBatch.empty(run)
    columns = {name: i for i, name in enumerate(workers)}
    parts = [
        _widen(b"".join(groups[key]), [columns[name] for name in names], len(workers))
        for key, names in known.items()
    ]
    return _batch(run, workers, np.concatenate(parts))


def _widen(records: bytes, columns: Sequence[int], n_workers: int) -> FloatArray:
    """Return records as rows that have a column for every worker of the batch."""
    narrow = np.frombuffer(records, "<f8").reshape(-1, HEAD + len(PHASES) * len(columns))
    if len(columns) == n_workers:
        return narrow
    wide = np.full((len(narrow), HEAD + len(PHASES) * n_workers), np.nan)
    wide[:, :HEAD] = narrow[:, :HEAD]
    phases = wide[:, HEAD:].reshape(len(wide), len(PHASES), n_workers)
    phases[:, :, columns] = narrow[:, HEAD:].reshape(len(wide), len(PHASES), len(columns))
    return wide


def _batch(run: str, workers: tuple[str, ...], rows: FloatArray) -> StepBatch:
    """Sort rows by step and name their columns."""
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    phases = rows[:, HEAD:].reshape(len(rows), len(PHASES), len(workers))
    named = {phase: phases[:, i] for i, phase in enumerate(PHASES)}
    return StepBatch(run, workers, rows[:, 0].astype(int), rows[:, 1], named, rows[:, 2])


def ended_between(batch: StepBatch, since_s: float, until_s: float) -> StepBatch:
    """Keep the steps that ended in [since_s, until_s)."""
    return steps_where(batch, (batch.ended_at_s >= since_s) & (batch.ended_at_s < until_s))


def in_time(batch: StepBatch) -> StepBatch:
    """Return a batch in order of the steps' ends, which clocks and restarts may mix up."""
    if (np.diff(batch.ended_at_s) >= 0).all():
        return batch
    order = np.argsort(batch.ended_at_s, kind="stable")
    phases = {phase: values[order] for phase, values in batch.phases.items()}
    step, ended_at_s, tokens = batch.step[order], batch.ended_at_s[order], batch.tokens[order]
    return StepBatch(batch.run, batch.workers, step, ended_at_s, phases, tokens)


def steps_where(batch: StepBatch, kept: NDArray[np.bool_]) -> StepBatch:
    """Keep some of a batch's steps."""
    if kept.all():
        return batch
    phases = {phase: values[kept] for phase, values in batch.phases.items()}
    step, ended_at_s, tokens = batch.step[kept], batch.ended_at_s[kept], batch.tokens[kept]
    return StepBatch(batch.run, batch.workers, step, ended_at_s, phases, tokens)
