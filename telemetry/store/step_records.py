"""How a step becomes bytes: one record of 64-bit floats, exact, all workers side by side."""

import json
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, IntArray
from telemetry.steps import PHASES, Merged, StepBatch
from telemetry.store.packing import DIGEST_BYTES, digest

# Which steps are held is a bit per step, in keys of so many steps each.
STEPS_PER_CHAPTER = 4096
HEAD = 3


def pack_steps(batch: StepBatch) -> tuple[bytes, bytes, list[bytes]]:
    """Return the digest of the workers' names, the names as bytes, and a record per step.

    A record is the digest, then step number, end, tokens, each phase of each worker, and at the
    end the loss, where the batch tells any: without one, records are as they always were.
    """
    names = json.dumps(batch.workers, separators=(",", ":")).encode()
    head = np.stack([batch.step, batch.ended_at_s, batch.tokens], axis=1).astype("<f8")
    phases = np.stack([batch.phases[phase] for phase in PHASES], axis=1).reshape(len(batch), -1)
    loss = [] if batch.told_loss is None else [batch.told_loss[:, None]]
    rows = np.concatenate([head, phases, *loss], axis=1, dtype="<f8")
    key = digest(names)
    return key, names, [key + row.tobytes() for row in rows]


def unpack_steps(
    run: str, records: Sequence[bytes], workers_of: Callable[[bytes], Iterable[str] | None]
) -> StepBatch:
    """Put records together again, in order of step; workers come and go as NaN.

    ``workers_of`` names the workers behind a digest, None where that was lost.
    """
    groups: dict[tuple[bytes, int], list[bytes]] = {}
    for record in records:
        key = (record[:DIGEST_BYTES], len(record) - DIGEST_BYTES)
        groups.setdefault(key, []).append(record[DIGEST_BYTES:])
    named = {digest: workers_of(digest) for digest in {digest for digest, _ in groups}}
    known = {key: tuple(names) for key in groups if (names := named[key[0]]) is not None}
    workers = tuple(dict.fromkeys(name for names in known.values() for name in names))
    if not known:
        return StepBatch.empty(run)
    columns = {name: i for i, name in enumerate(workers)}
    parts = [
        _widen(groups[key], [columns[name] for name in names], len(workers))
        for key, names in known.items()
    ]
    return _batch(run, workers, np.concatenate(parts))


def _widen(records: Sequence[bytes], columns: Sequence[int], n_workers: int) -> FloatArray:
    """Return records as rows that have a column for every worker of the batch, and one of loss."""
    told = HEAD + len(PHASES) * len(columns)
    narrow = np.frombuffer(b"".join(records), "<f8").reshape(len(records), -1)
    if len(columns) == n_workers and narrow.shape[1] > told:
        return narrow
    wide = np.full((len(narrow), HEAD + len(PHASES) * n_workers + 1), np.nan)
    wide[:, :HEAD] = narrow[:, :HEAD]
    phases = wide[:, HEAD:-1].reshape(len(wide), len(PHASES), n_workers)
    phases[:, :, columns] = narrow[:, HEAD:told].reshape(len(wide), len(PHASES), len(columns))
    if narrow.shape[1] > told:
        wide[:, -1] = narrow[:, told]
    return wide


def _batch(run: str, workers: tuple[str, ...], rows: FloatArray) -> StepBatch:
    """Sort rows by step and name their columns."""
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    phases = rows[:, HEAD:-1].reshape(len(rows), len(PHASES), len(workers))
    named = {phase: phases[:, i] for i, phase in enumerate(PHASES)}
    loss = rows[:, -1] if np.isfinite(rows[:, -1]).any() else None
    return StepBatch(run, workers, rows[:, 0].astype(int), rows[:, 1], named, rows[:, 2], loss)


def ended_between(batch: StepBatch, since_s: float, until_s: float) -> StepBatch:
    """Keep the steps that ended in [since_s, until_s)."""
    return steps_where(batch, (batch.ended_at_s >= since_s) & (batch.ended_at_s < until_s))


def in_time(batch: StepBatch) -> StepBatch:
    """Return a batch in order of the steps' ends, which clocks and restarts may mix up."""
    if (np.diff(batch.ended_at_s) >= 0).all():
        return batch
    return _chosen(batch, np.argsort(batch.ended_at_s, kind="stable"))


def steps_where(batch: StepBatch, kept: NDArray[np.bool_]) -> StepBatch:
    """Keep some of a batch's steps."""
    if kept.all():
        return batch
    return _chosen(batch, kept)


def _chosen(batch: StepBatch, rows: NDArray[np.bool_] | IntArray) -> StepBatch:
    """Return some of a batch's steps, or all in another order."""
    phases = {phase: values[rows] for phase, values in batch.phases.items()}
    step, ended_at_s, tokens = batch.step[rows], batch.ended_at_s[rows], batch.tokens[rows]
    loss = None if batch.told_loss is None else batch.told_loss[rows]
    merged = batch.merged and Merged(batch.merged.n_steps[rows], batch.merged.tokens[rows])
    return StepBatch(batch.run, batch.workers, step, ended_at_s, phases, tokens, loss, merged)
