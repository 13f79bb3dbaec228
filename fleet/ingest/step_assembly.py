"""What workers said of steps, until a step is whole or nobody is waited for any longer.

Everything lies in Redis and may be done twice, so any process may end at any line: a piece is
kept once, and a step handed on again is the same step.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from fleet.ingest.runs import tokens_of
from fleet.models import Run
from fleet.runs.state import KEEP_S, LAST, Member, members_of, run_key
from telemetry.ingest.step_assembly import WorkerStep, assembled
from telemetry.steps import StepBatch
from telemetry.store import durable
from telemetry.store.hot import HotStore
from telemetry.store.packing import steps_where

# What ended longer ago than this the regular roll-up may have passed already.
ROLLED_UP_S = 240.0
# The hot tier's own clock is the data's: keep clear of its edge.
EDGE_S = 60.0

PENDING = "steps-in:pending"
# A worker of which nothing comes for so long after the first is not waited for.
WAIT_S = 10.0
# Where nobody says how many workers there are, whoever reports soon after belongs to the step.
GATHER_S = 2.0
PIECES_KEEP_S = 900
HANDED_ON = b""


def keep_steps(
    hot: HotStore | None, batch: StepBatch, *, now_s: float, amends: bool = False
) -> int:
    """Keep a run's steps, each once, and return how many of them were new to the hot tier.

    With ``amends`` steps that the hot tier holds are told anew: some of their workers were late.

    Without a hot store (a finished log, say) they go straight to the durable tier, as do those
    that are too old for the hot one.
    """
    age_s = now_s - batch.ended_at_s
    n_new = 0
    if hot is not None:
        is_recent = age_s < hot.keep_s - EDGE_S
        n_new = hot.append_steps(steps_where(batch, is_recent), amends=amends)
        batch = steps_where(batch, age_s > ROLLED_UP_S)
    if len(batch):
        durable.write_steps(steps_where(batch, np.isfinite(batch.ended_at_s)))
    return n_new


Step = tuple[str, str, int]


def _name(step: Step) -> str:
    return "\n".join(map(str, step))


def _step(name: bytes) -> Step:
    run, session, number = name.decode().split("\n")
    return run, session, int(number)


def keep_pieces(
    hot: HotStore, pieces: Sequence[tuple[Step, WorkerStep]], *, now_s: float
) -> tuple[int, list[Step]]:
    """Keep pieces; return how many of them were new, and the steps that are whole by now."""
    commands: list[tuple[object, ...]] = []
    for step, piece in pieces:
        name = _name(step)
        key = f"steps-in:step:{name}"
        commands += [
            ("ZADD", PENDING, "NX", now_s, name),
            ("HSETNX", key, piece.worker, msgspec.msgpack.encode(piece)),
            ("EXPIRE", key, PIECES_KEEP_S),
            ("HLEN", key),
            ("HEXISTS", key, HANDED_ON),
        ]
    answers = hot.execute_all(commands)
    is_new, n_held, is_late = answers[1::5], answers[3::5], answers[4::5]
    whole, known = set(), []
    for (step, piece), new, n, late in zip(pieces, is_new, n_held, is_late, strict=True):
        if late and not new:
            known.append(_name(step))
        elif late or 0 < piece.n_workers <= n:
            whole.add(step)
    if known:
        hot.execute("ZREM", PENDING, *known)
    return sum(is_new), sorted(whole)


def overdue(hot: HotStore, *, now_s: float) -> list[Step]:
    """Return the steps whose workers have been waited for long enough."""
    early = [_step(name) for name in hot.execute("ZRANGEBYSCORE", PENDING, "-inf", now_s - WAIT_S)]
    recent = [
        _step(name)
        for name in hot.execute("ZRANGEBYSCORE", PENDING, f"({now_s - WAIT_S}", now_s - GATHER_S)
    ]
    return early + [step for step in recent if not _is_counted(hot, step)]


def _is_counted(hot: HotStore, step: Step) -> bool:
    """Whether somebody says how many workers a step has."""
    return any(piece.n_workers for piece in _pieces(hot, [step])[step])


def _pieces(hot: HotStore, steps: Sequence[Step]) -> dict[Step, list[WorkerStep]]:
    """Return what was said of some steps."""
    held = hot.execute_all(("HGETALL", f"steps-in:step:{_name(step)}") for step in steps)
    return {
        step: [
            msgspec.msgpack.decode(packed, type=WorkerStep)
            for worker, packed in sorted(_pairs(answer))
            if worker != HANDED_ON
        ]
        for step, answer in zip(steps, held, strict=True)
    }


def _pairs(answer: Mapping[bytes, bytes] | Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Return the fields of a hash, in whichever way the client reads one."""
    if isinstance(answer, Mapping):
        return answer.items()
    return zip(answer[::2], answer[1::2], strict=True)


def hand_on(hot: HotStore, steps: Sequence[Step], *, now_s: float, rows: Mapping[str, Run]) -> int:
    """Give steps to the store, complete or not; return how many of them were new.

    ``rows`` are the runs by name, as far as they are known. Steps of a start that begins again
    before where the run had come are counted on, not over.
    """
    found = _pieces(hot, steps)
    amends = any(
        hot.execute_all(("HEXISTS", f"steps-in:step:{_name(s)}", HANDED_ON) for s in steps)
    )
    by_session: dict[tuple[str, str], dict[int, list[WorkerStep]]] = {}
    for (run, session, number), pieces in found.items():
        if pieces:
            by_session.setdefault((run, session), {})[number] = pieces
    n_new = 0
    for (run, session), told in by_session.items():
        row = rows.get(run)
        shift = _shift(hot, run, session, told, row)
        members = members_of(hot, run, session)
        batch = assembled(
            run,
            {number + shift: pieces for number, pieces in told.items()},
            _workers(members, told),
            tokens=tokens_of(row) if row else math.nan,
        )
        n_new += keep_steps(hot, batch, now_s=now_s, amends=amends)
        hot.execute("ZADD", LAST, "GT", max(told) + shift, run)
    _done(hot, steps, [step for step in steps if found[step]])
    return n_new


def _workers(members: Mapping[str, Member], told: Mapping[int, Sequence[WorkerStep]]) -> list[str]:
    """Return all workers of a session in order, those that Redis has forgotten at the end."""
    heard = {piece.worker: None for pieces in told.values() for piece in pieces}
    return list({**dict.fromkeys(members), **heard})


def _shift(
    hot: HotStore,
    run: str,
    session: str,
    told: Mapping[int, Sequence[WorkerStep]],
    row: Run | None,
) -> int:
    """Return what is added to a session's step numbers, so that the run's only ever rise.

    Should Redis have lost how far the run had come, its row says.
    """
    key, field = run_key(run), f"shift:{session}"
    held = hot.execute("HGET", key, field)
    if held is not None:
        return int(held)
    first, last = min(told), hot.execute("ZSCORE", LAST, run)
    shift = 0 if last is None else max(0, int(float(last)) + 1 - first)
    if last is None and row is not None:
        is_same = row.session == session
        shift = row.step_shift if is_same else max(0, row.last_step + bool(row.last_step) - first)
    began_s = min(piece.ended_at_s - piece.step_s for piece in told[first])
    hot.execute_all(
        [
            ("HSETNX", key, field, shift),
            ("HSETNX", key, f"began:{session}", began_s),
            ("HSETNX", key, f"first:{session}", first + shift),
            ("EXPIRE", key, KEEP_S),
        ]
    )
    return int(hot.execute("HGET", key, field))


def _done(hot: HotStore, steps: Sequence[Step], handed_on: Sequence[Step]) -> None:
    """Wait no longer for these; a piece that comes yet is late."""
    commands: list[tuple[object, ...]] = [
        ("HSET", f"steps-in:step:{_name(step)}", HANDED_ON, "1") for step in handed_on
    ]
    hot.execute_all([*commands, *(("ZREM", PENDING, _name(step)) for step in steps)])
