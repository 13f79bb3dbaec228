"""Steps kept for good: every step as the mean over workers, every worker minute by minute."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.steps import PHASES, StepBatch
from telemetry.store.packing import codec, decode, encode

MINUTE_S = 60
# A step's row: its number, its end, its tokens, the phases, and the loss.
STEP, ENDED, TOKENS, FIRST_PHASE = 0, 1, 2, 3
LOSS = FIRST_PHASE + len(PHASES)
N_COLUMNS = LOSS + 1
UNITS_PER_S = 10_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of a run's steps.

    ``steps`` (n_steps, 10), in order of end: number, end in Unix seconds, tokens, each of
    PHASES as the mean over workers, and the loss. ``minutes`` (n_minutes,) rises, and ``n``
    (n_minutes,) steps ended in each; ``means`` (n_minutes, n_workers, 6) seconds, the mean over
    those.
    """

    steps: FloatArray
    minutes: IntArray
    n: IntArray
    workers: tuple[str, ...]
    means: FloatArray

    def between(self, start: int, end: int) -> "Chunk":
        """Keep the steps that ended in [start, end); both are whole minutes."""
        rows = slice(*np.searchsorted(self.steps[:, ENDED], [start, end]))
        kept = (self.minutes >= start) & (self.minutes < end)
        return Chunk(
            self.steps[rows], self.minutes[kept], self.n[kept], self.workers, self.means[kept]
        )


def chunk_of(batch: StepBatch) -> Chunk:
    """Boil a batch, in order of time, down to what is kept for good."""
    minute_of = batch.ended_at_s.astype("i8") // MINUTE_S * MINUTE_S
    minutes, first, n = np.unique(minute_of, return_index=True, return_counts=True)
    columns = [batch.step, batch.ended_at_s, batch.tokens]
    means = []
    for phase in PHASES:
        values = np.asarray(batch.phases[phase], "f8")
        present = ~np.isnan(values)
        known = values if present.all() else np.where(present, values, 0.0)
        columns.append(_ratio(known.sum(axis=1), present.sum(axis=1)))
        sums, counts = (np.add.reduceat(a, first, axis=0) for a in (known, present.astype("i8")))
        means.append(_ratio(sums, counts))
    columns.append(batch.loss)
    return Chunk(np.stack(columns, axis=1), minutes, n, batch.workers, np.stack(means, axis=2))


def _ratio(total: FloatArray, n: IntArray) -> FloatArray:
    """Divide, where there is nothing to divide by NaN."""
    return np.asarray(np.where(n > 0, total, np.nan) / np.maximum(n, 1))


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """Join chunks that share no step; a minute that several have is weighted by steps."""
    steps = np.concatenate([chunk.steps for chunk in chunks])
    minutes = np.unique(np.concatenate([chunk.minutes for chunk in chunks]))
    workers = tuple(dict.fromkeys(name for chunk in chunks for name in chunk.workers))
    place = {name: i for i, name in enumerate(workers)}
    total = np.zeros((len(minutes), len(workers), len(PHASES)))
    weight = np.zeros_like(total, dtype="i8")
    n = np.zeros(len(minutes), "i8")
    for chunk in chunks:
        rows = np.searchsorted(minutes, chunk.minutes)
        where = rows[:, None], [place[name] for name in chunk.workers]
        present = ~np.isnan(chunk.means)
        steps_each = chunk.n[:, None, None]
        total[where] += np.where(present, chunk.means, 0.0) * steps_each
        weight[where] += present * steps_each
        n[rows] += chunk.n
    order = np.argsort(steps[:, ENDED], kind="stable")
    return Chunk(steps[order], minutes, n, workers, _ratio(total, weight))


def minute_means(chunk: Chunk) -> FloatArray:
    """Average a chunk's steps by minute: (n_minutes, 10); number and end are the last step's."""
    minute_of = chunk.steps[:, ENDED].astype("i8") // MINUTE_S * MINUTE_S
    return averaged(chunk.steps, minute_of)


def averaged(steps: FloatArray, group: IntArray) -> FloatArray:
    """Average consecutive rows of one group; number and end are those of its last row."""
    first = np.flatnonzero(np.diff(group, prepend=group[:1] - 1))
    if not len(first):
        return steps[:0]
    present = ~np.isnan(steps)
    sums = np.add.reduceat(np.where(present, steps, 0.0), first, axis=0)
    rows = _ratio(sums, np.add.reduceat(present.astype("i8"), first, axis=0))
    last = np.append(first[1:], len(steps)) - 1
    rows[:, : ENDED + 1] = steps[last, : ENDED + 1]
    return rows


def step_bytes(steps: FloatArray) -> bytes:
    """Pack steps: numbers and ends as differences, the rest to 0.012 %.

    The bytes are the number of steps, and first number and end (in 0.1 ms) as 64-bit
    integers, then a 32-bit number per step and column, first bytes first, compressed. The
    column of the loss is left out where no step tells one, as in all bytes of earlier versions.
    """
    n_columns = N_COLUMNS if np.isfinite(steps[:, LOSS]).any() else LOSS
    whole = np.rint(steps[:, :TOKENS] * [1, UNITS_PER_S]).astype("<i8")
    first = whole[0] if len(whole) else (0, 0)
    head = np.array([len(steps), *first], "<i8")
    differences = np.diff(whole, axis=0, prepend=whole[:1]).astype("<i4")
    rest = steps[:, TOKENS:n_columns].astype("<f4").view("<u4")
    rest = (rest + 0x400) & np.uint32(0xFFFFF800)
    columns = np.concatenate([differences.view("<u4"), rest], axis=1).T
    planes = np.ascontiguousarray(columns).view("u1").reshape(n_columns, -1, 4)
    return head.tobytes() + codec.compress(planes.transpose(2, 0, 1).tobytes())


def read_steps(data: bytes) -> FloatArray:
    """Return packed steps: (n_steps, 10)."""
    n, number, end = np.frombuffer(data[:24], "<i8").tolist()
    flat = np.frombuffer(codec.decompress(data[24:]), "u1")
    n_columns = len(flat) // (4 * n) if n else LOSS
    planes = flat.reshape(4, n_columns, n)
    columns = np.ascontiguousarray(planes.transpose(1, 2, 0)).view("<u4")[:, :, 0]
    steps = np.full((n, N_COLUMNS), np.nan)
    steps[:, STEP] = number + np.cumsum(columns[STEP].view("<i4"), dtype="i8")
    steps[:, ENDED] = (end + np.cumsum(columns[ENDED].view("<i4"), dtype="i8")) / UNITS_PER_S
    steps[:, TOKENS:n_columns] = columns[TOKENS:].view("<f4").T
    return steps


def minute_bytes(chunk: Chunk) -> bytes:
    """Pack what is kept of each minute: (n_minutes, 9) as 64-bit floats, without the loss."""
    return codec.compress(minute_means(chunk)[:, :LOSS].astype("<f8").tobytes())


def read_minutes(data: bytes) -> FloatArray:
    """Return packed minutes: (n_minutes, 10), of which no loss is known."""
    told = np.frombuffer(codec.decompress(data), "<f8").reshape(-1, LOSS)
    return np.pad(told, ((0, 0), (0, 1)), constant_values=np.nan)


def worker_bytes(chunk: Chunk) -> bytes:
    """Pack each worker's minutes to 0.4 %, with who they are and how many steps there were."""
    header = json.dumps([chunk.workers, chunk.minutes.tolist(), chunk.n.tolist()]).encode()
    codes = encode(chunk.means, "rounded").transpose(2, 1, 0)
    packed = codec.compress(header)
    return len(packed).to_bytes(4, "little") + packed + codec.compress(codes.tobytes())


def read_chunk(steps: FloatArray, workers: bytes) -> Chunk:
    """Return a chunk with these rows, and the workers' minutes that were packed."""
    start = 4 + int.from_bytes(workers[:4], "little")
    names, minutes, n = json.loads(codec.decompress(workers[4:start]))
    codes = np.frombuffer(codec.decompress(workers[start:]), "<u2")
    means = decode(codes.reshape(len(PHASES), len(names), len(minutes)), "rounded")
    return Chunk(
        steps,
        np.array(minutes, "i8"),
        np.array(n, "i8"),
        tuple(names),
        means.transpose(2, 1, 0).astype("f8"),
    )
