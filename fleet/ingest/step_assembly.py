"""Steps in the making: workers' reports wait in Redis until a step is complete or overdue.

Every operation may be repeated, so a process may end at any time: a report is stored once, and a
step that is assembled again is the same step.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from fleet.ingest.runs import tokens_of
from fleet.models import Run
from fleet.runs.state import KEEP_S, LAST, Member, members_of, run_key
from telemetry.ingest.step_assembly import WorkerStep, assemble_steps
from telemetry.steps import StepBatch
from telemetry.store import durable
from telemetry.store.hot import HotStore
from telemetry.store.packing import steps_where

# The regular roll-up may have passed steps that ended longer ago than this.
ROLLED_UP_S = 240.0
# A margin to the hot tier's retention, which is relative to the newest data.
EDGE_S = 60.0

PENDING = "steps-in:pending"
# How long a step waits for more workers after its first report.
WAIT_S = 10.0
# The same if no report has the number of workers.
GATHER_S = 2.0
WORKER_STEPS_KEEP_S = 900
ASSEMBLED = b""


def store_steps(
    hot: HotStore | None, batch: StepBatch, *, now_s: float, amends: bool = False
) -> int:
    """Store steps in hot and durable tier; return how many were new to the hot tier.

    With ``amends`` stored steps are replaced, because reports of late workers arrived.

    Without ``hot`` all steps go to the durable tier, otherwise only those that are too old for
    the hot tier.
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


def store_worker_steps(
    hot: HotStore, worker_steps: Sequence[tuple[Step, WorkerStep]], *, now_s: float
) -> tuple[int, list[Step]]:
    """Store worker steps; return how many were new, and the steps to assemble.

    A repeat with a better time replaces the first copy, and its step is assembled again.
    """
    commands: list[tuple[object, ...]] = []
    for step, worker_step in worker_steps:
        name = _name(step)
        key = f"steps-in:step:{name}"
        commands += [
            ("ZADD", PENDING, "NX", now_s, name),
            ("HSETNX", key, worker_step.worker, msgspec.msgpack.encode(worker_step)),
            ("EXPIRE", key, WORKER_STEPS_KEEP_S),
            ("HLEN", key),
            ("HEXISTS", key, ASSEMBLED),
        ]
    answers = hot.execute_all(commands)
    is_new, n_held, is_late = answers[1::5], answers[3::5], answers[4::5]
    is_late_by_step = dict(zip((step for step, _ in worker_steps), is_late, strict=True))
    repeated = [each for each, new in zip(worker_steps, is_new, strict=True) if not new]
    moved = _replace_moved(hot, repeated)
    whole, known = {step for step in moved if is_late_by_step[step]}, []
    for (step, worker_step), new, n, late in zip(
        worker_steps, is_new, n_held, is_late, strict=True
    ):
        if late and not new:
            known.append(_name(step))
        elif late or 0 < worker_step.n_workers <= n:
            whole.add(step)
    if known:
        hot.execute("ZREM", PENDING, *known)
    return sum(is_new), sorted(whole)


def _replace_moved(hot: HotStore, repeated: Sequence[tuple[Step, WorkerStep]]) -> list[Step]:
    """Replace stored reports that a repeat places better; return their steps."""
    held = hot.execute_all(
        ("HGET", f"steps-in:step:{_name(step)}", repeat.worker) for step, repeat in repeated
    )
    moved = [
        (step, repeat)
        for (step, repeat), packed in zip(repeated, held, strict=True)
        if packed and msgspec.msgpack.decode(packed, type=WorkerStep).is_improved_by(repeat)
    ]
    hot.execute_all(
        ("HSET", f"steps-in:step:{_name(step)}", repeat.worker, msgspec.msgpack.encode(repeat))
        for step, repeat in moved
    )
    return [step for step, _ in moved]


def overdue(hot: HotStore, *, now_s: float) -> list[Step]:
    """Return the steps that have waited long enough."""
    early = [_step(name) for name in hot.execute("ZRANGEBYSCORE", PENDING, "-inf", now_s - WAIT_S)]
    recent = [
        _step(name)
        for name in hot.execute("ZRANGEBYSCORE", PENDING, f"({now_s - WAIT_S}", now_s - GATHER_S)
    ]
    return early + [step for step in recent if not _is_counted(hot, step)]


def _is_counted(hot: HotStore, step: Step) -> bool:
    """Whether a report has the step's number of workers."""
    return any(worker_step.n_workers for worker_step in _worker_steps(hot, [step])[step])


def _worker_steps(hot: HotStore, steps: Sequence[Step]) -> dict[Step, list[WorkerStep]]:
    """Return what was report of some steps."""
    held = hot.execute_all(("HGETALL", f"steps-in:step:{_name(step)}") for step in steps)
    return {
        step: [
            msgspec.msgpack.decode(packed, type=WorkerStep)
            for worker, packed in sorted(_pairs(answer))
            if worker != ASSEMBLED
        ]
        for step, answer in zip(steps, held, strict=True)
    }


def _pairs(answer: Mapping[bytes, bytes] | Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Return the fields of a hash, in whichever way the client reads one."""
    if isinstance(answer, Mapping):
        return answer.items()
    return zip(answer[::2], answer[1::2], strict=True)


def store_assembled(
    hot: HotStore, steps: Sequence[Step], *, now_s: float, rows: Mapping[str, Run]
) -> int:
    """Give steps to the store, complete or not; return how many of them were new.

    ``rows`` are the runs by name, as far as they are known. Steps of a start that begins again
    before where the run had come are counted on, not over.
    """
    found = _worker_steps(hot, steps)
    amends = any(
        hot.execute_all(("HEXISTS", f"steps-in:step:{_name(s)}", ASSEMBLED) for s in steps)
    )
    by_session: dict[tuple[str, str], dict[int, list[WorkerStep]]] = {}
    for (run, session, number), worker_steps in found.items():
        if worker_steps:
            by_session.setdefault((run, session), {})[number] = worker_steps
    n_new = 0
    for (run, session), by_step in by_session.items():
        row = rows.get(run)
        shift = _shift(hot, run, session, by_step, row)
        members = members_of(hot, run, session)
        batch = assemble_steps(
            run,
            {number + shift: worker_steps for number, worker_steps in by_step.items()},
            _workers(members, by_step),
            tokens=tokens_of(row) if row else math.nan,
        )
        n_new += store_steps(hot, batch, now_s=now_s, amends=amends)
        hot.execute("ZADD", LAST, "GT", max(by_step) + shift, run)
    _mark_assembled(hot, steps, [step for step in steps if found[step]])
    return n_new


def _workers(
    members: Mapping[str, Member], by_step: Mapping[int, Sequence[WorkerStep]]
) -> list[str]:
    """Return all workers of a session in order; those missing in Redis come last."""
    heard = {
        worker_step.worker: None
        for worker_steps in by_step.values()
        for worker_step in worker_steps
    }
    return list({**dict.fromkeys(members), **heard})


def _shift(
    hot: HotStore,
    run: str,
    session: str,
    by_step: Mapping[int, Sequence[WorkerStep]],
    row: Run | None,
) -> int:
    """Return the offset of a session's step numbers, so that the run's numbers always rise.

    If Redis lost the run's last step, its row has it.
    """
    key, field = run_key(run), f"shift:{session}"
    held = hot.execute("HGET", key, field)
    if held is not None:
        return int(held)
    first, last = min(by_step), hot.execute("ZSCORE", LAST, run)
    shift = 0 if last is None else max(0, int(float(last)) + 1 - first)
    if last is None and row is not None:
        is_same = row.session == session
        shift = row.step_shift if is_same else max(0, row.last_step + bool(row.last_step) - first)
    began_s = min(worker_step.ended_at_s - worker_step.step_s for worker_step in by_step[first])
    hot.execute_all(
        [
            ("HSETNX", key, field, shift),
            ("HSETNX", key, f"began:{session}", began_s),
            ("HSETNX", key, f"first:{session}", first + shift),
            ("EXPIRE", key, KEEP_S),
        ]
    )
    return int(hot.execute("HGET", key, field))


def _mark_assembled(hot: HotStore, steps: Sequence[Step], handed_on: Sequence[Step]) -> None:
    """Mark steps as assembled; further worker reports are late and amend them."""
    commands: list[tuple[object, ...]] = [
        ("HSET", f"steps-in:step:{_name(step)}", ASSEMBLED, "1") for step in handed_on
    ]
    hot.execute_all([*commands, *(("ZREM", PENDING, _name(step)) for step in steps)])
