"""Chunks: some of a run's steps and their means by minute, packed for the database."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from telemetry.blocks import FloatArray, IntArray
from telemetry.steps import PHASES, StepBatch, is_reported
from telemetry.store.packing import codec, decode, encode
from telemetry.units import MINUTE_S

# Columns of a step's row: number, end, tokens, phases, loss, other communication.
STEP, ENDED, TOKENS, FIRST_PHASE = 0, 1, 2, 3
LOSS = FIRST_PHASE + len(PHASES)
OTHER_COMM = LOSS + 1
N_COLUMNS = OTHER_COMM + 1
UNITS_PER_S = 10_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of a run's steps.

    ``steps`` (n_steps, 11), in order of end: number, end in Unix seconds, tokens, each of
    PHASES as the mean over workers, the loss, and other communication. ``minutes`` (n_minutes,)
    rises, and ``n`` (n_minutes,) steps ended in each; ``means`` (n_minutes, n_workers, 6)
    seconds, the mean over those.
    """

    steps: FloatArray
    minutes: IntArray
    n: IntArray
    workers: tuple[str, ...]
    means: FloatArray

    def between(self, start: int, end: int) -> "Chunk":
        """Select the steps that ended in [start, end); both are whole minutes."""
        rows = slice(*np.searchsorted(self.steps[:, ENDED], [start, end]))
        kept = (self.minutes >= start) & (self.minutes < end)
        return Chunk(
            self.steps[rows], self.minutes[kept], self.n[kept], self.workers, self.means[kept]
        )


def chunk_of(batch: StepBatch) -> Chunk:
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
    columns += [batch.loss, batch.other_comm_s]
    return Chunk(np.stack(columns, axis=1), minutes, n, batch.workers, np.stack(means, axis=2))


def _ratio(total: FloatArray, n: IntArray) -> FloatArray:
    """Divide; NaN where ``n`` is 0."""
    return np.asarray(np.where(n > 0, total, np.nan) / np.maximum(n, 1))


def join_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """Join chunks that share no step; a minute in several chunks is weighted by steps."""
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
    """Average a chunk's steps by minute: (n_minutes, 11); number and end are the last step's."""
    minute_of = chunk.steps[:, ENDED].astype("i8") // MINUTE_S * MINUTE_S
    return average_groups(chunk.steps, minute_of)


def average_groups(steps: FloatArray, group: IntArray) -> FloatArray:
    """Average consecutive rows of each group; number and end are those of its last row."""
    first = np.flatnonzero(np.diff(group, prepend=group[:1] - 1))
    if not len(first):
        return steps[:0]
    present = np.isfinite(steps)
    sums = np.add.reduceat(np.where(present, steps, 0.0), first, axis=0)
    rows = _ratio(sums, np.add.reduceat(present.astype("i8"), first, axis=0))
    last = np.append(first[1:], len(steps)) - 1
    rows[:, : ENDED + 1] = steps[last, : ENDED + 1]
    # Where no loss is finite, it is the last one that was reported.
    of_loss = steps[:, LOSS]
    reported = np.where(is_reported(of_loss), np.arange(len(steps)), -1)
    newest = np.maximum.reduceat(reported, first)
    lost = ~np.isfinite(rows[:, LOSS]) & (newest >= 0)
    rows[lost, LOSS] = of_loss[newest[lost]]
    return rows


def encode_steps(steps: FloatArray) -> bytes:
    """Pack steps: numbers and ends as differences, the rest rounded to 0.012 %.

    The bytes are the number of steps, first number and first end (in 0.1 ms) as 64-bit
    integers, then a 32-bit number per step and column, byte-shuffled and compressed. The last
    columns are left out if no step has a value, as in earlier versions.
    """
    has_value = np.flatnonzero(is_reported(steps[:, LOSS:]).any(axis=0))
    n_columns = LOSS + int(has_value.max(initial=-1)) + 1
    whole = np.rint(steps[:, :TOKENS] * [1, UNITS_PER_S]).astype("<i8")
    first = whole[0] if len(whole) else (0, 0)
    head = np.array([len(steps), *first], "<i8")
    differences = np.diff(whole, axis=0, prepend=whole[:1]).astype("<i4")
    rest = steps[:, TOKENS:n_columns].astype("<f4").view("<u4")
    rest = (rest + 0x400) & np.uint32(0xFFFFF800)
    columns = np.concatenate([differences.view("<u4"), rest], axis=1).T
    planes = np.ascontiguousarray(columns).view("u1").reshape(n_columns, -1, 4)
    return head.tobytes() + codec.compress(planes.transpose(2, 0, 1).tobytes())


def decode_steps(data: bytes) -> FloatArray:
    """Unpack steps: (n_steps, 11)."""
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


def encode_minutes(chunk: Chunk) -> bytes:
    """Pack a chunk's minutes: (n_minutes, 9) as 64-bit floats, without the last columns."""
    return codec.compress(minute_means(chunk)[:, :LOSS].astype("<f8").tobytes())


def decode_minutes(data: bytes) -> FloatArray:
    """Unpack minutes: (n_minutes, 11), with the loss and other communication NaN."""
    stored = np.frombuffer(codec.decompress(data), "<f8").reshape(-1, LOSS)
    return np.pad(stored, ((0, 0), (0, N_COLUMNS - LOSS)), constant_values=np.nan)


def encode_workers(chunk: Chunk) -> bytes:
    """Pack each worker's minutes, rounded to 0.4 %, with their names and step counts."""
    header = json.dumps([chunk.workers, chunk.minutes.tolist(), chunk.n.tolist()]).encode()
    codes = encode(chunk.means, "rounded").transpose(2, 1, 0)
    packed = codec.compress(header)
    return len(packed).to_bytes(4, "little") + packed + codec.compress(codes.tobytes())


def decode_chunk(steps: FloatArray, workers: bytes) -> Chunk:
    """Return a chunk of these steps and of packed workers' minutes."""
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
