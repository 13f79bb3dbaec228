"""State of reporting runs in Redis: sessions, workers, and times of their last reports."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from fleet.models import Node
from telemetry.steps import RETURN_S, WorkerState
from telemetry.store.hot import HotStore
from telemetry.store.reading import Missing
from telemetry.units import DAY_S

KEEP_S = 7 * DAY_S
# Sorted sets: runs and nodes by their last report, runs by their newest step.
LAST_REPORT, NODES, LAST = "steps-in:heard", "steps-in:nodes", "steps-in:last"
# Why reports of a job are refused while another one of the same name makes steps.
OTHER_JOB = "is also the name of another job"
# A hash with the clock of each node whose workers report.
CLOCKS = "steps-in:clocks"


# The rules are evaluated every second. After so long without it, trnwatch itself stands still:
# missing data says nothing about the nodes.
PAUSE_S = 5.0
# After a pause in watching, wait before calling nodes silent and runs hanging: missing data may be
# our own outage, after which senders are not back at once.
WAIT_AFTER_PAUSE_S = RETURN_S


def own_pause_s(hot: HotStore, *, now_s: float) -> float | None:
    """Return how long trnwatch's own workers have been stopped; None while they work."""
    pause_s = now_s - hot.gauges().get("watched_at_s", now_s)
    return pause_s if pause_s > PAUSE_S else None


@dataclass(frozen=True, slots=True)
class MissingReadings:
    """Nodes whose readings are in a store, of several, that does not answer, and their runs.

    ``stores`` are by name; ``nodes`` have that of their store.
    """

    stores: Mapping[str, Missing] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    runs: frozenset[str] = frozenset()

    @property
    def away(self) -> dict[str, Missing]:
        """Those that do not answer yet."""
        return {name: each for name, each in self.stores.items() if each.back_s is None}


def missing_readings(hot: HotStore) -> MissingReadings:
    """Return what is missing now: nothing is known of these nodes, so they are not silent."""
    stores = hot.missing()
    if not stores:
        return MissingReadings()
    nodes, runs = dict[str, str](), set[str]()
    measured = Node.objects.unretired().exclude(source=Node.Source.STEPS)
    for name, shard, run in measured.values_list("name", "shard", "run__name"):
        if (store := hot.store_of(shard)) in stores:
            nodes[name] = store
            runs.add(run or "")
    return MissingReadings(stores, nodes, frozenset(runs - {""}))


def watching_s(hot: HotStore, *, now_s: float) -> float | None:
    """Return how long trnwatch has watched without a pause, 0 in a pause; None: never yet."""
    gauges = hot.gauges()
    since_s, last_s = gauges.get("listening_since_s"), gauges.get("watched_at_s")
    if since_s is None or last_s is None:
        return None
    return now_s - since_s if now_s - last_s <= PAUSE_S else 0.0


def is_starting(watched_s: float | None, *, was_heard: bool) -> bool:
    """Whether a node that is not heard may not have had its turn since trnwatch started."""
    return not was_heard if watched_s is None else watched_s < WAIT_AFTER_PAUSE_S


@dataclass(frozen=True, slots=True)
class Watching:
    """Whether trnwatch itself watches: without that, no open alert does not mean that all is well.

    ``watched_s`` is None before the first evaluation; ``pause_s`` is None while it watches.
    """

    watched_s: float | None
    pause_s: float | None
    # How long missing data is not evaluated.
    waits_s: ClassVar[float] = WAIT_AFTER_PAUSE_S

    @property
    def is_new(self) -> bool:
        """Whether missing data is not evaluated yet."""
        return self.watched_s is None or self.watched_s < self.waits_s

    @property
    def left_s(self) -> float:
        """Seconds until missing data is evaluated."""
        return max(0.0, self.waits_s - (self.watched_s or 0.0))


def watching(hot: HotStore, *, now_s: float) -> Watching:
    return Watching(watching_s(hot, now_s=now_s), own_pause_s(hot, now_s=now_s))


def run_key(run: str) -> str:
    """Key of a hash: for each session its shift, first step and start."""
    return f"steps-in:run:{run}"


def tokens_field(session: str) -> str:
    """Field of that hash: the tokens of a step by the workers that report fewest and most."""
    return f"tokens:{session}"


def sessions_key(run: str) -> str:
    """Key of a sorted set: the sessions of a run by their first report."""
    return f"steps-in:sessions:{run}"


def workers_key(run: str, session: str) -> str:
    """Key of a hash: the workers of a session."""
    return f"steps-in:workers:{run}\n{session}"


# What a worker reports that reads the runtime's trace on request.
ON_REQUEST = "on request"


def is_tracing(reported: str) -> bool:
    """Whether a worker reports that it reads a trace all the time, from whatever source."""
    return reported == "on" or reported.startswith("on: ")


def trace_problem(reported: str) -> str:
    """Return why a worker has no trace; empty where it has one, or its job asks for none."""
    return "" if reported == ON_REQUEST or is_tracing(reported) else reported


# What a worker's heartbeat says while it writes one.
CHECKPOINT = "checkpoint"


class Member(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """One worker of a session; ``ended`` is 0 while it works, 1 when done, 2 when it failed.

    ``activity`` is what its newest heartbeat said that it does; empty where its newest report was
    none. ``since_s`` is when that began; 0 where it never sent a heartbeat. ``back_s`` is when it
    was heard again after a silence in which others are dead; 0 where it never was silent so long.
    """

    node: str
    rank: int
    stage: int
    n_workers: int
    heard_s: float
    step: int = -1
    ended: int = 0
    reason: str = ""
    n_dropped: int = 0
    runtime_trace: str = ""
    activity: str = ""
    since_s: float = 0.0
    back_s: float = 0.0

    @property
    def traces_on_request(self) -> bool:
        return self.runtime_trace == ON_REQUEST

    @property
    def trace_problem(self) -> str:
        """Why it has no trace although its job asks for one."""
        return trace_problem(self.runtime_trace)


class RunState(msgspec.Struct, frozen=True):
    session: str
    members: Mapping[str, Member]
    heard_s: float
    shift: int | None = None
    began_s: float | None = None
    last_step: int = 0
    first_step: int | None = None
    arrived_s: float = math.nan

    @property
    def n_workers(self) -> int:
        reported = max((member.n_workers for member in self.members.values()), default=0)
        return max(reported, len(self.members))

    @property
    def n_dropped(self) -> int:
        """Number of reports lost in transit."""
        return sum(member.n_dropped for member in self.members.values())

    @property
    def saves_since_s(self) -> float | None:
        """When the first of its workers began the checkpoint that it says it writes."""
        saving = [m.since_s for m in self.members.values() if m.activity == CHECKPOINT]
        return min(saving, default=None)


def members_of(hot: HotStore, run: str, session: str) -> dict[str, Member]:
    """Return the workers of one session, in order of stage and rank."""
    packed_members = hot.execute("HGETALL", workers_key(run, session))
    members = {
        name.decode(): msgspec.msgpack.decode(packed, type=Member)
        for name, packed in packed_members.items()
    }
    order = sorted(members, key=lambda name: (members[name].stage, members[name].rank, name))
    return {name: members[name] for name in order}


def state_of(hot: HotStore, run: str) -> RunState | None:
    """Read the state of a run since its newest start; None where Redis has none."""
    newest, heard, last = hot.execute_all(
        [
            ("ZREVRANGE", sessions_key(run), 0, 0, "WITHSCORES"),
            ("ZSCORE", LAST_REPORT, run),
            ("ZSCORE", LAST, run),
        ]
    )
    if not newest:
        return None
    ((name, arrived_s),) = newest
    session = name.decode()
    fields = (f"{field}:{session}" for field in ("shift", "began", "first"))
    shift, began, first = hot.execute("HMGET", run_key(run), *fields)
    return RunState(
        session=session,
        members=members_of(hot, run, session),
        heard_s=float(heard or 0.0),
        shift=None if shift is None else int(shift),
        began_s=None if began is None else float(began),
        last_step=int(float(last or 0)),
        first_step=None if first is None else int(first),
        arrived_s=float(arrived_s),
    )


def tokens_apart(hot: HotStore, run: str, session: str) -> tuple[float, float] | None:
    """Return the fewest and the most tokens that workers report for one step, where they differ.

    Then each reports its own instead of the job's.
    """
    counts = hot.execute("HGET", run_key(run), tokens_field(session))
    if counts is None:
        return None
    lowest, highest = map(float, counts.split())
    return lowest, highest


def worker_states(hot: HotStore, run: str) -> dict[str, WorkerState]:
    """Return what each worker of a run said last, since the run's newest start."""
    state = state_of(hot, run)
    if state is None:
        return {}
    return {
        worker: WorkerState(
            member.node,
            member.heard_s,
            member.activity,
            member.since_s,
            member.rank,
            member.n_workers,
            state.arrived_s,
            member.back_s,
        )
        for worker, member in state.members.items()
    }


def with_reports(hot: HotStore, runs: Sequence[str]) -> set[str]:
    """Return those of these runs whose workers report, or did; of others nothing is to be read."""
    heard = hot.execute("ZMSCORE", LAST_REPORT, *runs) if runs else []
    return {run for run, at_s in zip(runs, heard, strict=True) if at_s is not None}


def recently_reporting_runs(hot: HotStore, *, since_s: float) -> list[str]:
    return [name.decode() for name in hot.execute("ZRANGEBYSCORE", LAST_REPORT, since_s, "+inf")]


def reporting_nodes(hot: HotStore) -> dict[str, float]:
    reported = hot.execute("ZRANGE", NODES, 0, -1, "WITHSCORES", withscores=True)
    return {name.decode(): float(at_s) for name, at_s in reported}
