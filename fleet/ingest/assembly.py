"""Steps in parts: what workers reported waits in Redis until the whole step is assembled."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from fleet.ingest.runs import tokens_of
from fleet.models import Run
from fleet.runs.state import KEEP_S, LAST, members_of, run_key, tokens_field
from telemetry.ingest.lines import RefusedError
from telemetry.ingest.step_assembly import WorkerStep, assemble_steps, is_same_count, tokens_range
from telemetry.steps import StepBatch
from telemetry.store import durable
from telemetry.store.connection import pairs
from telemetry.store.hot import HotStore
from telemetry.store.packing import steps_where

# The regular roll-up may have passed steps that ended longer ago than this.
ROLLED_UP_S = 240.0
# A margin to the hot tier's retention, which is relative to the newest data.
EDGE_S = 60.0
PENDING, TOTALS = "steps-in:pending", "totals:tokens"
# Phases of a run that has ended.
OVER = (Run.Phase.FINISHED, Run.Phase.FAILED)
# How long a step waits for more workers after its first report.
WAIT_S = 10.0
# The same if no report has the number of workers.
GATHER_S = 2.0
# So much longer waits a step of the past: after an outage workers replay one after the other, and
# what is rolled up does not change.
REPLAY_S = 120.0
WORKER_STEPS_KEEP_S = 900
ASSEMBLED = b""
# Run, session and number.
Step = tuple[str, str, int]


def store_worker_steps(
    hot: HotStore, worker_steps: Sequence[tuple[Step, WorkerStep]], *, now_s: float
) -> tuple[int, list[Step], dict[int, RefusedError]]:
    """Store worker steps; return how many were new, the steps to assemble, and what is refused.

    A repeat with a better time replaces the first copy, and its step is assembled again. Another
    step with the number of a stored one is refused: why, by its place.
    """
    is_past = [each.ended_at_s < now_s - ROLLED_UP_S for _, each in worker_steps]
    # One after the other: all at once they take many times a request's bytes.
    answers = hot.execute_all(
        command
        for (step, worker_step), past in zip(worker_steps, is_past, strict=True)
        for command in (
            ("ZADD", PENDING, "NX", now_s + REPLAY_S * past, _name(step)),
            ("HSETNX", _key(step), worker_step.worker, msgspec.msgpack.encode(worker_step)),
            ("EXPIRE", _key(step), WORKER_STEPS_KEEP_S),
            ("HLEN", _key(step)),
            ("HEXISTS", _key(step), ASSEMBLED),
        )
    )
    is_new, n_held, is_late = answers[1::5], answers[3::5], answers[4::5]
    is_late_by_step = dict(zip((step for step, _ in worker_steps), is_late, strict=True))
    repeated = [i for i, new in enumerate(is_new) if not new]
    packed = hot.execute_all(
        ("HGET", _key(worker_steps[i][0]), worker_steps[i][1].worker) for i in repeated
    )
    stored = {
        i: msgspec.msgpack.decode(each, type=WorkerStep)
        for i, each in zip(repeated, packed, strict=True)
        if each
    }
    others = {
        i: _why_other(worker_steps[i], before)
        for i, before in stored.items()
        if worker_steps[i][1].is_other_than(before) or worker_steps[i][1].is_of_namesake_of(before)
    }
    moved = [
        worker_steps[i]
        for i, before in stored.items()
        if i not in others and before.is_improved_by(worker_steps[i][1])
    ]
    hot.execute_all(
        ("HSET", _key(step), repeat.worker, msgspec.msgpack.encode(repeat))
        for step, repeat in moved
    )
    whole, known = {step for step, _ in moved if is_late_by_step[step]}, []
    for (step, worker_step), new, n, late in zip(
        worker_steps, is_new, n_held, is_late, strict=True
    ):
        if late and not new:
            known.append(_name(step))
        elif late or 0 < worker_step.n_workers <= n:
            whole.add(step)
    if known:
        hot.execute("ZREM", PENDING, *known)
    return sum(is_new), sorted(whole), others


def _why_other(sent: tuple[Step, WorkerStep], stored: WorkerStep) -> RefusedError:
    (_, session, number), worker_step = sent
    if not worker_step.is_other_than(stored):
        return RefusedError(
            "worker",
            f"{stored.worker} has reported another step {number} at the same time: it is not "
            f"stored. Give each process a name of its own, such as {stored.node}/1",
        )
    later_s = worker_step.later_s(stored)
    return RefusedError(
        "session",
        f"{session!r} has step {number} of {stored.worker} already, which ended "
        f"{abs(later_s):,.0f} s {'before' if later_s > 0 else 'after'} this one: it is not "
        "stored. Give each start of the job a session of its own, and number steps on from one "
        "epoch to the next",
    )


def overdue(hot: HotStore, *, now_s: float) -> list[Step]:
    """Return the steps that have waited long enough."""
    early = [_step(name) for name in hot.execute("ZRANGEBYSCORE", PENDING, "-inf", now_s - WAIT_S)]
    recent = [
        _step(name)
        for name in hot.execute("ZRANGEBYSCORE", PENDING, f"({now_s - WAIT_S}", now_s - GATHER_S)
    ]
    reports = _worker_steps(hot, recent)
    return early + [step for step in recent if not any(r.n_workers for r in reports[step])]


def _worker_steps(hot: HotStore, steps: Sequence[Step]) -> dict[Step, list[WorkerStep]]:
    answers = hot.execute_all(("HGETALL", _key(step)) for step in steps)
    return {
        step: [
            msgspec.msgpack.decode(packed, type=WorkerStep)
            for worker, packed in sorted(pairs(answer))
            if worker != ASSEMBLED
        ]
        for step, answer in zip(steps, answers, strict=True)
    }


def store_assembled(
    hot: HotStore, steps: Sequence[Step], *, now_s: float, rows: Mapping[str, Run]
) -> int:
    """Assemble and store steps, complete or not; return how many were new.

    ``rows`` are the known runs by name. Step numbers that a restart repeats are shifted, so that
    the run's numbers rise.
    """
    steps_of = _worker_steps(hot, steps)
    was_stored = hot.execute_all(("HEXISTS", _key(step), ASSEMBLED) for step in steps)
    again = {step for step, was in zip(steps, was_stored, strict=True) if was}
    by_session: dict[tuple[str, str], dict[int, list[WorkerStep]]] = {}
    for (run, session, number), worker_steps in steps_of.items():
        if worker_steps:
            by_session.setdefault((run, session), {})[number] = worker_steps
    n_new = 0
    for (run, session), by_step in by_session.items():
        row = rows.get(run)
        shift = _shift(hot, run, session, by_step)
        # Workers that are missing in Redis come last.
        reporting = (r.worker for worker_steps in by_step.values() for r in worker_steps)
        workers = dict.fromkeys([*members_of(hot, run, session), *reporting])
        batch = assemble_steps(
            run,
            {number + shift: worker_steps for number, worker_steps in by_step.items()},
            [*workers],
            tokens=tokens_of(row) if row else math.nan,
            n_nodes=row.n_nodes if row else 1,
        )
        amended = [number + shift for number in by_step if (run, session, number) in again]
        n_new += _store_steps(hot, batch, now_s=now_s, amended=amended)
        hot.execute("ZADD", LAST, "GT", max(by_step) + shift, run)
        lowest, highest = tokens_range(by_step[max(by_step)])
        if not (math.isnan(lowest) or is_same_count(lowest, highest)):
            counts = f"{lowest:.0f} {highest:.0f}"
            hot.execute("HSET", run_key(run), tokens_field(session), counts)
    # Further reports are late, and amend the step.
    hot.execute_all(
        [
            *(("HSET", _key(step), ASSEMBLED, "1") for step in steps if steps_of[step]),
            *(("ZREM", PENDING, _name(step)) for step in steps),
        ]
    )
    return n_new


def _shift(
    hot: HotStore, run: str, session: str, by_step: Mapping[int, Sequence[WorkerStep]]
) -> int:
    """Return the offset of a session's step numbers, so that the run's numbers always rise.

    Redis may have lost what the run's row knows: all of it, or that of the last hour.
    """
    key, field = run_key(run), f"shift:{session}"
    stored = hot.execute("HGET", key, field)
    if stored is not None:
        return int(stored)
    first, last = min(by_step), hot.execute("ZSCORE", LAST, run)
    row = Run.objects.filter(name=run).first()
    last_step = max(-1 if last is None else int(float(last)), (row.last_step if row else 0) or -1)
    shift = max(0, last_step + 1 - first)
    if row is not None and row.session == session and row.phase in (Run.Phase.TRAINING, *OVER):
        shift = row.step_shift
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


def _store_steps(hot: HotStore, batch: StepBatch, *, now_s: float, amended: Sequence[int]) -> int:
    """Store steps; return how many were new. Those too old for the hot tier are stored durably.

    ``amended`` are the numbers of those that were stored before.
    """
    age_s = now_s - batch.ended_at_s
    is_hot = age_s < hot.keep_s - EDGE_S
    n_new = hot.append_steps(steps_where(batch, is_hot), amends=bool(amended))
    is_old = (age_s > ROLLED_UP_S) & np.isfinite(batch.ended_at_s)
    durable.write_steps(steps_where(batch, is_old))
    # The hot tier counts its own.
    is_counted = is_old & ~is_hot & ~np.isin(batch.step, amended)
    if is_counted.any():
        n_tokens = float(np.nansum(batch.tokens[is_counted]))
        hot.execute("HINCRBYFLOAT", TOTALS, batch.run, n_tokens)
    return n_new


def _name(step: Step) -> str:
    return "\n".join(map(str, step))


def _key(step: Step) -> str:
    return f"steps-in:step:{_name(step)}"


def _step(name: bytes) -> Step:
    run, session, number = name.decode().split("\n")
    return run, session, int(number)
