"""From what workers said of a step to the step: who waited, who moved bytes, when it ended."""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from telemetry.blocks import FloatArray
from telemetry.ingest.step_reports import StepLine
from telemetry.steps import PHASES, StepBatch

# Moments of different machines are comparable where all leave a collective about together.
CLOCKS_AGREE_S = 0.02


class WorkerStep(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """What one worker said of one step, its moments by our clock; None where not told."""

    worker: str
    node: str
    rank: int
    stage: int
    group: str
    n_workers: int
    ended_at_s: float
    step_s: float
    collectives: list[float] | None = None
    arrivals: list[float] | None = None
    input_s: float | None = None
    checkpoint_s: float | None = None
    other_s: float | None = None
    tokens: float | None = None
    loss: float | None = None


def piece_of(said: StepLine, *, correction_s: float) -> WorkerStep:
    """Return a step line as a piece; ``correction_s`` is our clock less the worker's."""
    arrivals = said.arrivals
    return WorkerStep(
        said.worker,
        said.runs_on,
        said.rank or 0,
        said.stage or 0,
        said.group,
        said.n_workers or 0,
        said.ended_at + correction_s,
        said.step_s,
        said.collectives,
        None if arrivals is None else [moment + correction_s for moment in arrivals],
        said.input_s,
        said.checkpoint_s,
        said.other_s,
        said.tokens,
        said.loss,
    )


def assembled(
    run: str,
    steps: Mapping[int, Sequence[WorkerStep]],
    workers: Sequence[str],
    *,
    tokens: float = math.nan,
) -> StepBatch:
    """Put the pieces of some steps together; a worker of which nothing came reads NaN.

    Parameters
    ----------
    steps : the pieces of each step, by its number
    workers : (n_workers,) names of all that belong to the run, in order
    tokens : what a step trains on where nobody says
    """
    order = sorted(steps)
    rows = [_row(steps[number], workers) for number in order]
    values = np.stack(rows) if rows else np.zeros((0, len(PHASES), len(workers)))
    return StepBatch(
        run=run,
        workers=tuple(workers),
        step=np.array(order, int),
        ended_at_s=np.array([_median(p.ended_at_s for p in steps[number]) for number in order]),
        phases={phase: values[:, i] for i, phase in enumerate(PHASES)},
        tokens=np.array([_tokens(steps[number], tokens) for number in order], float),
        told_loss=_loss([steps[number] for number in order]),
    )


def _median(values: Iterable[float]) -> float:
    return float(np.median(np.fromiter(values, float)))


def _tokens(pieces: Sequence[WorkerStep], otherwise: float) -> float:
    """Return the tokens of a step: all say the same, or else most of them are right."""
    told = [piece.tokens for piece in pieces if piece.tokens is not None]
    return _median(told) if told else otherwise


def _loss(steps: Sequence[Sequence[WorkerStep]]) -> FloatArray | None:
    """Return the loss of each step, the mean over those who tell it: (n_steps,); None: nobody."""
    told = [[p.loss for p in pieces if p.loss is not None] for pieces in steps]
    if not any(told):
        return None
    return np.array([math.fsum(each) / len(each) if each else math.nan for each in told])


def _row(pieces: Sequence[WorkerStep], workers: Sequence[str]) -> FloatArray:
    """Return one step: (len(PHASES), n_workers) seconds."""
    place = {name: i for i, name in enumerate(workers)}
    columns = [place[piece.worker] for piece in pieces]
    wait_s, transfer_s = shared(pieces)
    told = [[p.step_s, p.input_s, p.checkpoint_s, p.other_s] for p in pieces]
    step_s, input_s, checkpoint_s, other_s = np.array(told, float).T
    parts = (wait_s, transfer_s, input_s, checkpoint_s, other_s)
    exchange_s = np.array([math.fsum(piece.collectives or ()) for piece in pieces])
    rest_s = step_s - exchange_s - np.nansum(parts[2:], axis=0)
    compute_s = np.maximum(0.0, rest_s)
    row = np.full((len(PHASES), len(workers)), np.nan)
    row[:, columns] = np.stack([compute_s, *parts])
    return row


def shared(pieces: Sequence[WorkerStep]) -> tuple[FloatArray, FloatArray]:
    """Split each worker's gradient exchange into waiting and transferring.

    Parameters
    ----------
    pieces : what the workers of one step said

    Returns
    -------
    wait_s, transfer_s : (len(pieces),) seconds; NaN for workers that told no collective, and for
        one that has nobody to compare with because the others are missing

    Notes
    -----
    All workers of a group leave a collective together, so the last to arrive only transfers:
    ``transfer_s = min over the group``, ``wait_s`` is the rest, collective by collective. Where
    all say when they arrived, and their clocks agree, that tells directly who came last.
    """
    wait_s, transfer_s = np.full((2, len(pieces)), np.nan)
    is_whole = len(pieces) >= max(piece.n_workers for piece in pieces)
    for members in _groups(pieces):
        rows = [i for i in members if pieces[i].collectives is not None]
        if len(rows) > 1 or (rows and is_whole):
            seconds = _table([pieces[i].collectives for i in rows])
            moments = _moments([pieces[i].arrivals for i in rows], seconds)
            moved = _transfer_s(seconds, moments)
            transfer_s[rows] = moved.sum(axis=1)
            wait_s[rows] = (seconds - moved).sum(axis=1)
    return wait_s, transfer_s


def _groups(pieces: Sequence[WorkerStep]) -> list[list[int]]:
    """Return which pieces belong to each data-parallel group."""
    found: dict[tuple[int, str], list[int]] = {}
    for i, piece in enumerate(pieces):
        found.setdefault((piece.stage, piece.group), []).append(i)
    return list(found.values())


def _table(told: Sequence[Sequence[float] | None]) -> FloatArray:
    """Return (n_workers, n_collectives); one column of sums where they count differently."""
    lists = [each or [] for each in told]
    if len({len(each) for each in lists}) == 1 and lists[0]:
        return np.array(lists, float)
    return np.array([[math.fsum(each)] for each in lists], float)


def _moments(told: Sequence[Sequence[float] | None], seconds: FloatArray) -> FloatArray | None:
    """Return when each worker arrived at each collective; None where that cannot be compared."""
    if any(each is None or len(each) != seconds.shape[1] for each in told):
        return None
    moments = np.array(told, float)
    ends = moments + seconds
    return moments if (np.ptp(ends, axis=0) <= CLOCKS_AGREE_S).all() else None


def _transfer_s(seconds: FloatArray, moments: FloatArray | None) -> FloatArray:
    """Return how long each worker transferred in each collective: (n_workers, n_collectives)."""
    if moments is None:
        return np.broadcast_to(seconds.min(axis=0), seconds.shape)
    left = moments + seconds - moments.max(axis=0)
    return np.asarray(np.clip(left, 0.0, seconds))
