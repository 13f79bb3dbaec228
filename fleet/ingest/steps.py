"""Ingest of training jobs: step reports of workers become runs and steps.

Reports wait in Redis until their step is complete or overdue. Every operation may be repeated, so
a process may end at any time: a report is stored once, and a step that is assembled again is the
same step.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from django.conf import settings

from fleet.ingest.jobs import JobGuard, OtherJobError
from fleet.ingest.rows import store_labels
from fleet.ingest.runs import (
    MAX_KNOWN,
    REFRESH_S,
    SessionResolver,
    assign_node,
    known_name,
    refresh_run,
    starts_key,
    tokens_of,
)
from fleet.models import Node, Run
from fleet.runs.agent_requests import is_allowed
from fleet.runs.annotations import annotate_phase
from fleet.runs.compiles import FIRST_STEPS, store_compiles
from fleet.runs.state import (
    CLOCKS,
    KEEP_S,
    LAST,
    LAST_REPORT,
    NODES,
    Member,
    RunState,
    members_of,
    recently_reporting_runs,
    run_key,
    sessions_key,
    state_of,
    tokens_field,
    watching_s,
    workers_key,
)
from telemetry.compiles import Compile
from telemetry.detect.standstill import DEAD_S
from telemetry.ingest.lines import Refusals, RefusedError
from telemetry.ingest.step_assembly import (
    WorkerStep,
    assemble_steps,
    is_same_count,
    tokens_range,
    worker_step_of,
)
from telemetry.ingest.step_reports import (
    BeatLine,
    CompileLine,
    EndLine,
    RunLine,
    StepLine,
    StepReport,
    WorkerLine,
    read_step_line,
)
from telemetry.ingest.timing import ClockOffset
from telemetry.steps import StepBatch
from telemetry.store import durable
from telemetry.store.connection import pairs
from telemetry.store.hot import HotStore
from telemetry.store.node_state import AGENT_REQUEST
from telemetry.store.packing import steps_where
from telemetry.store.refused import RUN_IN_LINE
from telemetry.units import DAY_S

# How the names of EC2's instances begin; a training job names its node so by default.
INSTANCE_ID = "i-"
# A worker's steps do not overlap. One that seems this many times as long as the time since the one
# before is in milliseconds, 1,000 times as many; a clock that is set back may show a few times.
# Senders may give ends in whole seconds.
UNIT_RATIO, WHOLE_S = 100.0, 1.0
# A clock that is off by more than this is corrected.
SKEW_S = 2.0
UPDATED_FIELDS = (
    "session",
    "step_shift",
    "starts",
    "n_workers",
    "heard_at",
    "phase",
    "phase_progress_ratio",
    "phase_since",
    "end_reason",
    "finished_at",
    "paid_until",
    "last_step",
    "n_tokens",
)
# Counts change with every step; pages read them from the steps, so the row may lag.
COUNT_EVERY_S = 10
# A silent job counts as failed after this time; a compiling one may be silent for longer.
LOST_S = 30 * 60.0
LOST_COMPILING_S = 6 * 3600.0
# After the first worker has ended, the others have this long to report their end.
END_GRACE_S = 60.0
LOOK_BACK_S = LOST_COMPILING_S + 3600.0
BASES, TOTALS = "steps-in:tokens", "totals:tokens"
OVER = (Run.Phase.FINISHED, Run.Phase.FAILED)
# The regular roll-up may have passed steps that ended longer ago than this.
ROLLED_UP_S = 240.0
# Redis that knows reports only up to this long before the row's newest is an older copy.
OLDER_S = 60.0
# A margin to the hot tier's retention, which is relative to the newest data.
EDGE_S = 60.0

PENDING = "steps-in:pending"
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


@dataclass(slots=True)
class StepIngestResult(Refusals):
    n_accepted: int = 0
    n_repeated: int = 0
    n_steps: int = 0
    skew_s: float = 0.0
    # For how long the senders are asked to read the runtime's trace.
    trace_s: float = 0.0
    # Whether a run is new and its facts are unknown.
    wants_run: bool = False
    # Lines that are not kept: whether their job is another one is not known yet.
    n_waiting: int = 0
    # Runs that refused lines name, empty for none, how many, and why.
    refused_of_runs: list[tuple[str, int, str]] = field(default_factory=list)

    def refuse_line(self, number: int, line: bytes, error: RefusedError) -> None:
        self.refuse(error.at(number))
        named = RUN_IN_LINE.search(line)
        run = "" if named is None else named[1].decode("utf-8", "replace")
        self.refused_of_runs.append((run, 1, str(error)))

    def response(self) -> dict[str, Any]:
        requested = {"trace_s": math.ceil(self.trace_s)} if self.trace_s > 0 else {}
        requested |= {"wants_run": True} if self.wants_run else {}
        return requested | {
            "accepted": self.n_accepted,
            "repeated": self.n_repeated,
            "clock_skew_s": round(self.skew_s, 3),
            "n_refused": self.n_refused,
            "refused": [asdict(each) for each in self.refused],
        }


class StepIngest:
    """Reads step reports; caches runs, nodes and clocks of this process."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._runs: dict[str, tuple[float, Run]] = {}
        self._tied: dict[tuple[str, str, str], float] = {}
        self._starts = SessionResolver(monotonic)
        self._jobs = JobGuard()
        # By worker: its last step, and when it ended by its own clock.
        self._ends: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._names: dict[str, tuple[float, str]] = {}
        self._clocks: dict[str, ClockOffset] = {}
        self._kept_clocks: dict[str, str] = {}

    def deliver(
        self,
        hot: HotStore,
        lines: Iterable[bytes],
        *,
        arrived_s: float,
        sent_s: float | None = None,
        up_s: float | None = None,
        first_line: int = 1,
    ) -> StepIngestResult:
        """Take lines that arrived together; what is whole goes on into the store.

        ``up_s`` are, with ``sent_s``, the seconds since the sender's machine booted.
        Nothing is half kept: a call that fails may be made again.
        """
        outcome, taken = StepIngestResult(), dict[int, StepReport]()
        # A sender's own clock, as of the moment of sending.
        delay_s = 0.0 if sent_s is None else arrived_s - sent_s
        numbered = [(n, line) for n, line in enumerate(lines, first_line) if line.strip()]
        for number, line, report in self._read(
            hot, numbered, outcome, now_s=arrived_s, delay_s=delay_s
        ):
            try:
                if isinstance(report, RunLine) and report.at is not None:
                    report.at += delay_s
                outcome.wants_run |= self._admit(hot, report, arrived_s)
            except RefusedError as error:
                outcome.refuse_line(number, line, error)
            else:
                taken[number] = report
        for report in taken.values():
            # After the reports of workers, which create their nodes.
            if isinstance(report, RunLine) and report.node and report.node_labels:
                store_labels(report.node, report.node_labels)
        outcome.skew_s, offset_s = self._observe_clock(
            hot, [*taken.values()], arrived_s=arrived_s, sent_s=sent_s, up_s=up_s
        )
        self._keep(hot, taken, outcome, now_s=arrived_s, offset_s=offset_s)
        outcome.n_accepted += outcome.n_waiting
        return outcome

    def _read(
        self,
        hot: HotStore,
        lines: Sequence[tuple[int, bytes]],
        outcome: StepIngestResult,
        *,
        now_s: float,
        delay_s: float,
    ) -> list[tuple[int, bytes, StepReport]]:
        """Read lines; leave out those of a job that has, or may have, another one's name."""
        read: list[tuple[int, bytes, StepReport]] = []
        others: dict[str, OtherJobError | None] = {}
        for number, line in lines:
            try:
                report = self._with_known_node(read_step_line(line), now_s=now_s)
                if isinstance(report, StepLine):
                    self._check_unit(report)
                if isinstance(report, WorkerLine):
                    session = report.session
                    report.session = self._starts.session_of(hot, report, now_s=now_s)
                    if not self._jobs.admits(hot, report, session, now_s=now_s, delay_s=delay_s):
                        others.setdefault(report.run, None)
                        outcome.n_waiting += 1
                        continue
            except RefusedError as error:
                outcome.refuse_line(number, line, error)
                if isinstance(error, OtherJobError):
                    others[error.run] = error
            else:
                read.append((number, line, report))
        if not others:
            return read
        # The facts of a job come with what its workers say.
        kept = []
        for number, line, report in read:
            if not (isinstance(report, RunLine) and report.run in others):
                kept.append((number, line, report))
            elif (of_other := others[report.run]) is not None:
                outcome.refuse_line(number, line, of_other)
            else:
                outcome.n_waiting += 1
                outcome.wants_run = True
        return kept

    def _check_unit(self, report: StepLine) -> None:
        """Refuse a step that lasted much longer than since the worker's step before ended."""
        key = (report.run, report.session, report.worker)
        number, ended_at = self._ends.get(key, (report.step, report.ended_at))
        if len(self._ends) >= MAX_KNOWN:
            self._ends.clear()
        self._ends[key] = (report.step, report.ended_at)
        since_s = report.ended_at - ended_at
        if report.step > number and 0 <= since_s < report.step_s / UNIT_RATIO - WHOLE_S:
            reason = (
                f"is {report.step_s:g}, but step {number} of {report.worker} ended {since_s:.3g} "
                "s before this one: give seconds, not milliseconds"
            )
            raise RefusedError("step_s", reason)

    def _with_known_node(self, report: StepReport, *, now_s: float) -> StepReport:
        """Replace the instance id of a node by the node's name, where that is known."""
        name = report.runs_on if isinstance(report, WorkerLine) else None
        name = name or (report.node if isinstance(report, RunLine) else None)
        if name is None or not name.startswith(INSTANCE_ID):
            return report
        at_s, known = self._names.get(name, (-REFRESH_S, name))
        if self._monotonic() - at_s >= REFRESH_S:
            known = known_name(name, now=datetime.fromtimestamp(now_s, UTC))
            if len(self._names) >= MAX_KNOWN:
                self._names.clear()
            self._names[name] = (self._monotonic(), known)
        if known != name:
            report.node = known
        return report

    def _admit(self, hot: HotStore, report: StepReport, now_s: float) -> bool:
        """Create or update the rows of run and node; refuses what is not allowed.

        Returns whether the run is new and its facts are unknown.
        """
        now, is_new = datetime.fromtimestamp(now_s, UTC), False
        since_s, run = self._runs.get(report.run, (-REFRESH_S, None))
        is_fresh = self._monotonic() - since_s < REFRESH_S
        if isinstance(report, RunLine):
            run = self._remember(refresh_run(report, now=now))
        elif run is None or not is_fresh:
            run = self._remember(
                refresh_run(RunLine(run=report.run, session=report.session), now=now)
            )
            is_new = run.heard_at == now
        keep_days = settings.DURABLE_KEEP_DAYS
        if isinstance(report, StepLine) and report.ended_at < now_s - keep_days * DAY_S:
            raise RefusedError("ended_at", f"is older than {keep_days} days")
        if isinstance(report, WorkerLine):
            # Assign its node to the run, at most every ``REFRESH_S``.
            key, at_s = (report.run, report.session, report.worker), self._monotonic()
            if at_s - self._tied.get(key, -REFRESH_S) >= REFRESH_S:
                assign_node(hot, run, report, now=now)
                if len(self._tied) >= MAX_KNOWN:
                    self._tied.clear()
                self._tied[key] = at_s
        return is_new

    def _remember(self, run: Run) -> Run:
        if len(self._runs) >= MAX_KNOWN:
            self._runs.clear()
        self._runs[run.name] = (self._monotonic(), run)
        return run

    def _observe_clock(
        self,
        hot: HotStore,
        taken: Sequence[StepReport],
        *,
        arrived_s: float,
        sent_s: float | None,
        up_s: float | None,
    ) -> tuple[float, float]:
        """Return the correction of the sender's times, and the offset it follows from.

        Without a sending time only a clock that is ahead can be recognised.
        """
        if sent_s is None:
            newest = max((s.ended_at for s in taken if isinstance(s, StepLine)), default=0.0)
            off_s = min(0.0, arrived_s - newest)
            return off_s if off_s < -SKEW_S else 0.0, math.inf
        node = next((report.runs_on for report in taken if isinstance(report, WorkerLine)), None)
        if node is None:
            return 0.0, math.inf
        clock = self._clocks.get(node)
        if clock is None:
            # Restored from Redis on first use.
            clock = ClockOffset(ahead_s=SKEW_S, behind_s=SKEW_S)
            stored = hot.execute("HGET", CLOCKS, node)
            clock.restore(stored.decode() if stored else "", arrived_s)
            if len(self._clocks) >= MAX_KNOWN:
                self._clocks.clear()
                self._kept_clocks.clear()
            self._clocks[node] = clock
        if up_s is not None:
            clock.follow_boot(sent_s - up_s, arrived_s - sent_s)
        clock.observe(arrived_s - sent_s, arrived_s, may_wait=True)
        # Store the estimate if it changed by a second or more.
        rounded = f"{clock.offset_s:.0f} {clock.epoch_s:.0f}"
        if clock.is_known and self._kept_clocks.get(node) != rounded:
            hot.execute("HSET", CLOCKS, node, clock.dump())
            self._kept_clocks[node] = rounded
        return clock.correction_s, clock.offset_s

    def _keep(
        self,
        hot: HotStore,
        numbered: Mapping[int, StepReport],
        outcome: StepIngestResult,
        *,
        now_s: float,
        offset_s: float,
    ) -> None:
        """Keep reports, by the number of their line."""
        if not numbered:
            return
        taken = [*numbered.values()]
        trace_until_s = _save_members(hot, taken, now_s=now_s)
        if is_allowed("trace"):
            outcome.trace_s = max(0.0, trace_until_s - now_s)
        store_reported_compiles(hot, taken, correction_s=outcome.skew_s, now_s=now_s)
        worker_steps = [
            (
                (report.run, report.session, report.step),
                worker_step_of(report, correction_s=outcome.skew_s, offset_s=offset_s),
            )
            for report in taken
            if isinstance(report, StepLine)
        ]
        n_new, whole, others = (
            store_worker_steps(hot, worker_steps, now_s=now_s) if worker_steps else (0, [], {})
        )
        lines = [number for number, report in numbered.items() if isinstance(report, StepLine)]
        for i, error in others.items():
            outcome.refuse(error.at(lines[i]))
            outcome.refused_of_runs.append((worker_steps[i][0][0], 1, str(error)))
        if whole:
            rows = {name: run for name, (_, run) in dict(self._runs).items()}
            outcome.n_steps = store_assembled(hot, whole, now_s=now_s, rows=rows)
        outcome.n_repeated = len(worker_steps) - n_new - len(others)
        outcome.n_accepted = len(taken) - len(worker_steps) + n_new


def store_reported_compiles(
    hot: HotStore, taken: Iterable[StepReport], *, correction_s: float, now_s: float
) -> None:
    by_run: dict[str, list[CompileLine]] = {}
    for report in taken:
        if isinstance(report, CompileLine):
            by_run.setdefault(report.run, []).append(report)
    if not by_run:
        return
    now = datetime.fromtimestamp(now_s, UTC)
    for run in Run.objects.filter(name__in=by_run):
        events = [_compile(report, correction_s=correction_s) for report in by_run[run.name]]
        store_compiles(run, events, now=now, trained_from=_trained_from(hot, run))


def _trained_from(hot: HotStore, run: Run) -> datetime | None:
    """Return from when on a new graph is unexpected; None during the first steps."""
    if run.phase != Run.Phase.TRAINING:
        return None
    steps = hot.steps(run.name, since_s=run.phase_since.timestamp())
    if len(steps) < FIRST_STEPS:
        return None
    return datetime.fromtimestamp(float(steps.ended_at_s[FIRST_STEPS - 1]), UTC)


def _compile(report: CompileLine, *, correction_s: float) -> Compile:
    return Compile(
        module=report.module,
        outcome=report.outcome,
        at_s=report.at + correction_s,
        seconds=math.nan if report.seconds is None else report.seconds,
        rank=report.rank,
        process=f"{report.session}:{report.worker}",
        compiler=report.compiler,
        flags=report.flags,
        cache=report.cache,
        shape=report.shape,
        is_planned=report.planned,
    )


def _save_members(hot: HotStore, taken: Sequence[StepReport], *, now_s: float) -> float:
    """Store what workers said last.

    Returns until when those that trace on request are asked to, in Unix seconds; 0 for not.
    """
    latest: dict[tuple[str, str, str], Member] = {}
    for report in taken:
        if isinstance(report, WorkerLine):
            key = (report.run, report.session, report.worker)
            latest[key] = _member(report, latest.get(key), now_s)
    commands: list[tuple[object, ...]] = []
    on_request: set[str] = set()
    for run, session in {(run, session) for run, session, _ in latest}:
        known = members_of(hot, run, session)
        mine = {w: m for (r, s, w), m in latest.items() if (r, s) == (run, session)}
        for worker, member in mine.items():
            merged = _merge_members(known.get(worker), member)
            packed = msgspec.msgpack.encode(merged)
            if merged.traces_on_request:
                on_request.add(run)
            commands += [
                ("HSET", workers_key(run, session), worker, packed),
                ("ZADD", NODES, "GT", now_s, member.node),
            ]
        commands += [
            ("EXPIRE", workers_key(run, session), KEEP_S),
            ("EXPIRE", starts_key(run), KEEP_S),
            ("ZADD", sessions_key(run), "NX", now_s, session),
            ("EXPIRE", sessions_key(run), KEEP_S),
            ("ZADD", LAST_REPORT, "GT", now_s, run),
        ]
    reads = [("GET", AGENT_REQUEST.format(kind="trace", subject=run)) for run in on_request]
    requests = hot.execute_all([*commands, *reads])[len(commands) :]
    return max(
        (msgspec.json.decode(request)["until_s"] for request in requests if request), default=0.0
    )


def _member(report: WorkerLine, before: Member | None, now_s: float) -> Member:
    new = Member(
        node=report.runs_on,
        rank=report.rank or 0,
        stage=report.stage or 0,
        n_workers=report.n_workers or 0,
        heard_s=now_s,
    )
    if isinstance(report, StepLine):
        new = msgspec.structs.replace(new, step=report.step)
    elif isinstance(report, BeatLine):
        new = msgspec.structs.replace(
            new,
            n_dropped=report.n_dropped,
            runtime_trace=report.runtime_trace,
            activity=report.activity,
            since_s=now_s - report.activity_s,
        )
    elif isinstance(report, EndLine):
        new = msgspec.structs.replace(new, ended=1 + report.failed, reason=report.reason)
    return _merge_members(before, new)


def _merge_members(before: Member | None, new: Member) -> Member:
    """Merge a member's new state into the known one: an end stays, counts never decrease."""
    if before is None:
        return new
    return msgspec.structs.replace(
        new,
        n_workers=new.n_workers or before.n_workers,
        step=max(new.step, before.step),
        ended=max(new.ended, before.ended),
        reason=new.reason or before.reason,
        n_dropped=max(new.n_dropped, before.n_dropped),
        runtime_trace=new.runtime_trace or before.runtime_trace,
        since_s=new.since_s or before.since_s,
        back_s=new.heard_s if new.heard_s - before.heard_s > DEAD_S else before.back_s,
    )


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


def update_reported_runs(hot: HotStore, *, now: datetime, watcher: int = 0, of: int = 1) -> None:
    """Assemble overdue steps and update the rows of a watcher's reported runs."""
    now_s = now.timestamp()
    names = recently_reporting_runs(hot, since_s=now_s - LOOK_BACK_S)
    if not names:
        return
    reported = list(Run.objects.filter(name__in=names).exclude(session=""))
    runs = [run for run in reported if run.pk % of == watcher]
    others = {run.name for run in reported} - {run.name for run in runs}
    waited_for = [step for step in overdue(hot, now_s=now_s) if step[0] not in others]
    if waited_for:
        store_assembled(hot, waited_for, now_s=now_s, rows={run.name: run for run in runs})
    is_count_due = int(now_s) % COUNT_EVERY_S == 0
    changed = []
    listened_s = watching_s(hot, now_s=now_s)
    for run in runs:
        state = state_of(hot, run.name)
        if state is None:
            continue
        was, since, counted = run.phase, run.phase_since, (run.last_step, run.n_tokens)
        update_run(run, state, now=now, listened_s=math.inf if listened_s is None else listened_s)
        # The first start of a job is not annotated; a restart is.
        if run.phase != was and (counted[0] or run.phase in OVER):
            # Who was silent and goes on has trained since long before.
            at = run.phase_since if run.phase_since >= since else run.heard_at
            annotate_phase(run, was=was, at=at or now)
        is_other = (run.phase, run.phase_since) != (was, since)
        if is_other and run.phase == Run.Phase.TRAINING:
            release_nodes(hot, run, state)
        if is_other or is_count_due:
            total, stored = hot.execute_all(
                [("HGET", TOTALS, run.name), ("HGET", BASES, run.name)]
            )
            count, base = float(total or 0.0), float(stored or 0.0)
            if stored is None or count + base < run.n_tokens:
                # Redis was emptied, or is older than the row: what it counts comes after that.
                base = run.n_tokens - (0.0 if stored is None else count)
                hot.execute("HSET", BASES, run.name, base)
            run.n_tokens = int(count + base)
            is_active = run.finished_at is None
            if is_other or is_active or counted != (run.last_step, run.n_tokens):
                changed.append(run)
    if changed:
        Run.objects.bulk_update(changed, UPDATED_FIELDS)


def release_nodes(hot: HotStore, run: Run, state: RunState) -> None:
    """Let go of the nodes of the start before that have no part in this one."""
    here = {member.node for member in state.members.values()}
    for session in hot.execute("ZREVRANGE", sessions_key(run.name), 1, 1):
        before = {each.node for each in members_of(hot, run.name, session.decode()).values()}
        Node.objects.filter(run=run, name__in=before - here).update(run=None)


def update_run(run: Run, state: RunState, *, now: datetime, listened_s: float = math.inf) -> None:
    """Update a run from its workers' state; counts never decrease.

    Silence counts for as long as we have ``listened_s``. Who reports after it has gone on.
    """
    if run.heard_at is not None and state.heard_s < run.heard_at.timestamp() - OLDER_S:
        # Redis is an older copy, and knows nothing of the job since.
        state = RunState(run.session, {}, run.heard_at.timestamp())
    heard_at = datetime.fromtimestamp(state.heard_s, UTC)
    run.heard_at = heard_at
    # If it falls silent, it is paid up to now.
    run.paid_until = max(run.paid_until or heard_at, heard_at)
    # A start may have fewer workers than the one before.
    is_other = state.session != run.session and any(m.n_workers for m in state.members.values())
    run.n_workers = max(0 if is_other else run.n_workers, state.n_workers)
    if state.shift is not None and state.shift != run.step_shift:
        # A start whose step numbers have another offset than those of the previous start.
        before = {"first_step": 0, "shift": run.step_shift, "began_s": run.started_at.timestamp()}
        first = run.last_step + 1 if state.first_step is None else state.first_step
        began_s = state.heard_s if state.began_s is None else state.began_s
        start = {"first_step": first, "shift": state.shift, "began_s": began_s}
        run.starts = [*(run.starts or [before]), start]
        run.step_shift = state.shift
    run.last_step = max(run.last_step, state.last_step)
    if state.session != run.session:
        run.session, run.finished_at = state.session, None
        _enter(run, Run.Phase.COMPILING, heard_at)
    if run.finished_at is not None:
        if heard_at <= run.finished_at or _end_of(run, state, 0.0) is not None:
            return
        run.finished_at = None
        _enter(run, Run.Phase.COMPILING, heard_at)
    if run.phase not in (Run.Phase.TRAINING, *OVER) and state.shift is not None:
        began_s = state.began_s or state.heard_s
        _enter(run, Run.Phase.TRAINING, datetime.fromtimestamp(began_s, UTC))
    end = _end_of(run, state, min(now.timestamp() - state.heard_s, listened_s))
    if end is not None:
        _enter(run, end, heard_at)
        run.finished_at = heard_at
        if end == Run.Phase.FAILED:
            run.end_reason = _reason_of(state)[: Run.MAX_REASON_CHARS]


def _enter(run: Run, phase: Run.Phase, at: datetime) -> None:
    run.phase, run.phase_since, run.end_reason = phase, max(at, run.started_at), ""
    run.phase_progress_ratio = 0.0


def _reason_of(state: RunState) -> str:
    """Return why a run failed: by the first worker that said so, else by its silence."""
    failed = [member for member in state.members.values() if member.ended == 2]
    first = min(failed, key=lambda member: member.heard_s, default=None)
    if first is None:
        return "its reports stopped"
    return f"{first.reason or 'no reason given'} (rank {first.rank} on {first.node})"


def _end_of(run: Run, state: RunState, quiet_s: float) -> Run.Phase | None:
    """Return the final phase of a run, None while it is running.

    One failed worker fails the run. A silent job fails after ``LOST_S``.
    """
    ends = [member.ended for member in state.members.values()]
    if any(end == 2 for end in ends):
        return Run.Phase.FAILED
    n_done = sum(end == 1 for end in ends)
    if n_done and (n_done >= state.n_workers or quiet_s > END_GRACE_S):
        return Run.Phase.FINISHED
    lost_s = LOST_COMPILING_S if run.phase == Run.Phase.COMPILING else LOST_S
    return Run.Phase.FAILED if quiet_s > lost_s else None
