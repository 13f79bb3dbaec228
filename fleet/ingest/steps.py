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
from django.conf import settings

from fleet.ingest.assembly import store_assembled, store_worker_steps
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
)
from fleet.models import Run
from fleet.runs.agent_requests import is_allowed
from fleet.runs.compiles import FIRST_STEPS, store_compiles
from fleet.runs.state import (
    CLOCKS,
    KEEP_S,
    LAST_REPORT,
    NODES,
    Member,
    members_of,
    sessions_key,
    workers_key,
)
from telemetry.compiles import Compile
from telemetry.detect.standstill import DEAD_S
from telemetry.ingest.lines import Refusals, RefusedError
from telemetry.ingest.step_assembly import worker_step_of
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
from telemetry.store.hot import HotStore
from telemetry.store.node_state import AGENT_REQUEST
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
