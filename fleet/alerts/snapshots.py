"""What of the store is read of each run, each second: its nodes, steps and hardware."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from django.db.models import Count, F, Max, Min, Sum

from fleet.models import Node, Run
from fleet.runs.state import with_reports, worker_states
from telemetry.blocks import Span
from telemetry.detect import RULES, STATE_METRICS
from telemetry.detect.checkpoints import ENOUGH_CHECKPOINTS
from telemetry.detect.inputs import reporting_interval
from telemetry.detect.node_errors import has_changed
from telemetry.detect.standstill import executed_at
from telemetry.detect.stopped import StepHeartbeat
from telemetry.statistics.peers import middle
from telemetry.steps import StepBatch, WorkerState
from telemetry.store.history import stored_checkpoints
from telemetry.store.hot import HotStore
from telemetry.store.reading import Packed, Source, StepState, moments_in
from telemetry.units import MINUTE_S

Hardware = Callable[..., Span]
HardwareAt = Callable[[Sequence[str], Sequence[int]], Span]
Workers = Callable[[str], Mapping[str, WorkerState]]

# Enough steps to detect a change, and to see that the last five steps of an alert were normal.
WINDOW_S = 180
WINDOW_STEPS = 40
# The start of the window moves in jumps of this, so that it stays the same between two steps.
WINDOW_JUMP_S = 15
# ECC counts only rise: they are compared over ten minutes, at a few times.
ECC_AGES_S = (int(RULES["ecc_uncorrected"].limits["window_s"]), 120, 30, 15, 0)
# What rules glance at first where they read hardware.
GLANCE_AGES_S = (1, 0)
# Reading every core of every node is expensive, so healthy runs are checked every 3 s in turn.
HARDWARE_EVERY_S = 3
# Metrics that hardly ever stay the same show how often nodes report; read over this long, and
# remembered as long.
INTERVAL_METRICS, INTERVAL_S = ("vcpu_usage_ratio", "core_utilization_ratio"), 90
_INTERVALS: WeakKeyDictionary[Source, dict[str, tuple[int, int]]] = WeakKeyDictionary()
# By a run's key: sums over its nodes, and the nodes.
_ROSTERS: dict[int, tuple[tuple[Any, ...], "RunMembers"]] = {}
_SAVED: WeakKeyDictionary[Source, dict[str, tuple[float, Sequence[float]]]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class RunMembers:
    """The nodes of a run in order of rank, and the shards that hold their data."""

    nodes: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    cores_per_device: int = 1
    shard_of: Mapping[str, str] = field(default_factory=dict)

    def shards_of(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """List the shards that hold some nodes; of one that is no member, none."""
        found = (self.shard_of.get(node) for node in nodes)
        return tuple(dict.fromkeys(shard for shard in found if shard is not None))


@dataclass(frozen=True)
class RunSnapshot:
    """One run at one time: its recent steps, and functions that read its hardware metrics.

    ``reads_hardware`` is False in the seconds in which hardware is read only for open alerts.
    ``report_every_s`` is 0 until it is known how often nodes report.
    """

    run: Run
    members: RunMembers
    steps: StepBatch
    hardware: Hardware
    ecc_counts: Span | None = None
    hardware_at: HardwareAt | None = None
    earlier: Callable[[float], StepBatch] | None = None
    reads_hardware: bool = True
    report_every_s: int = 0
    workers: Callable[[], Mapping[str, WorkerState]] | None = None
    saved: Callable[[float], Sequence[float]] | None = None

    @cached_property
    def heartbeat(self) -> StepHeartbeat | None:
        """When the newest step ended, and how long steps take; None without steps."""
        if not len(self.steps):
            return None
        trains = self.run.phase == Run.Phase.TRAINING
        return StepHeartbeat(float(self.steps.ended_at_s[-1]), middle(self.steps.step_s), trains)

    @property
    def executing(self) -> StepHeartbeat | None:
        """When nodes of a run without steps last executed; None if no newest report says so.

        A late step shows no death there: how long steps take is unknown.
        """
        at_s = executed_at(self.hardware, 2 * self.report_every_s + 1)
        return StepHeartbeat(float(at_s[-1]), 0.0, trains=False) if at_s.size else None


def run_members(runs: Iterable[Run]) -> dict[int, RunMembers]:
    """Return the nodes of each run, by the run's key; read where they have changed.

    Sums over the rows show a change: a node's key never gets another name or shard.
    """
    keys = [run.pk for run in runs]
    present = Node.objects.unretired().filter(run__in=keys).order_by().values("run_id")
    summed = present.annotate(
        *(Count("pk"), Sum("pk"), Sum("n_cores"), Sum("n_devices")),
        *(Min("name"), Max("name"), Min("shard"), Max("shard")),
        # Two sums, because nodes may change their ranks with each other.
        ranks=Sum(F("pk") * F("rank")),
        squares=Sum(F("pk") % 1009 * F("rank") * F("rank")),
    )
    sums = {each["run_id"]: tuple(each.values()) for each in summed}
    changed = [key for key, each in sums.items() if _ROSTERS.get(key, ((),))[0] != each]
    for key in keys:
        if key not in sums:
            _ROSTERS.pop(key, None)
    rows: dict[int, list[tuple[str, str, int, int]]] = {key: [] for key in changed}
    columns = ("run_id", "name", "shard", "n_cores", "n_devices")
    members = Node.objects.unretired().filter(run__in=changed).order_by("rank", "name")
    for key, *node in members.values_list(*columns) if changed else ():
        rows[key].append(node)
    for key, nodes in rows.items():
        names, shards, n_cores, n_devices = zip(*nodes, strict=True)
        cores_per_device = max(1, n_cores[0] // max(1, n_devices[0]))
        shard_of = dict(zip(names, shards, strict=True))
        of_run = tuple(dict.fromkeys(shards))
        members_now = RunMembers(names, of_run, cores_per_device, shard_of)
        _ROSTERS[key] = (sums[key], members_now)
    return {key: _ROSTERS[key][1] if key in _ROSTERS else RunMembers() for key in keys}


def keep_rosters(keys: Iterable[int]) -> None:
    """Forget the nodes of all runs but these."""
    for key in _ROSTERS.keys() - set(keys):
        del _ROSTERS[key]


def snapshot_of(
    source: Source,
    run: Run,
    members: RunMembers,
    *,
    now_s: float,
    workers: Workers | None = None,
    saved: Callable[[float], Sequence[float]] | None = None,
    state: StepState | None = None,
    held: Mapping[str, Sequence[Packed]] | None = None,
) -> RunSnapshot:
    """Read the steps of a run; hardware and all else is read when a rule needs it.

    ``state`` and ``held`` were read of all runs: the states of their steps, and their blocks at
    ``ecc_ticks``, and a glance in the seconds in which hardware is read.
    """
    end, shards = int(now_s), members.shards
    reads_hardware = glances(run, end)
    ages_held = {*ECC_AGES_S, *(GLANCE_AGES_S if reads_hardware else ())} if held else set()

    def hardware(metrics: Sequence[str], last_s: int, nodes: Sequence[str] = ()) -> Span:
        if not nodes and ages_held.issuperset(range(last_s)):
            return hardware_at(metrics, range(last_s - 1, -1, -1))
        of = members.shards_of(nodes) if nodes else shards
        span = source.window(of, metrics, start=end - last_s + 1, end=end)
        return span.of(nodes or members.nodes)

    def hardware_at(metrics: Sequence[str], ages_s: Sequence[int]) -> Span:
        ticks = [end - age for age in ages_s]
        if held and ages_held.issuperset(ages_s):
            span = moments_in(held, shards, metrics, ticks=ticks)
        else:
            span = source.moments(shards, metrics, ticks=ticks)
        return span.at(ticks).of(members.nodes)

    def earlier(since_s: float) -> StepBatch:
        return source.steps(run.name, since_s=since_s)

    return RunSnapshot(
        run=run,
        members=members,
        steps=window_of_steps(source, run.name, now_s=now_s, state=state),
        hardware=hardware,
        ecc_counts=ecc_counts(source, shards, members.nodes, end=end, held=held),
        hardware_at=hardware_at,
        earlier=earlier,
        reads_hardware=reads_hardware,
        report_every_s=report_interval_s(source, run.name, shards, end=end),
        workers=workers and partial(workers, run.name),
        saved=saved,
    )


def snapshots_of(
    hot: HotStore,
    runs: Sequence[Run],
    members: Mapping[int, RunMembers],
    *,
    now_s: float,
    guarded: Mapping[int, Callable[[], AbstractContextManager[None]]],
) -> list[RunSnapshot]:
    """Read runs; ``guarded`` is a context for each run, by key, that may suppress exceptions.

    What is read of each run is read of all in one round trip.
    """
    end, names = int(now_s), [run.name for run in runs]
    states, reported = hot.step_states(names), with_reports(hot, names)
    glance = [end - age for age in GLANCE_AGES_S]
    hot.read_ahead(states, since_s=window_start_s(now_s))
    wanted = [
        (shard, tick, tick)
        for run in runs
        for shard in members[run.pk].shards
        for tick in sorted({*ecc_ticks(end), *(glance if glances(run, end) else ())})
    ]
    held = hot.held(wanted)
    snapshots = []
    for run in runs:
        with guarded[run.pk]():
            taken = snapshot_of(
                hot,
                run,
                members[run.pk],
                now_s=now_s,
                workers=partial(worker_states, hot) if run.name in reported else no_workers,
                saved=partial(saved_before, hot, run.name),
                state=states.get(run.name),
                held=held,
            )
            snapshots.append(taken)
    return snapshots


def no_workers(_run: str) -> Mapping[str, WorkerState]:
    return {}


def saved_before(source: Source, run: str, before_s: float) -> Sequence[float]:
    """Return how long the last checkpoints took that ended before; read once a minute."""
    known = _SAVED.setdefault(source, {})
    read_s, ends_s = known.get(run, (-math.inf, ()))
    if not 0 <= before_s - read_s < MINUTE_S:
        ends_s = stored_checkpoints(run, before_s=before_s, most=ENOUGH_CHECKPOINTS)
        known[run] = before_s, ends_s
    return ends_s


def report_interval_s(source: Source, run: str, shards: Sequence[str], *, end: int) -> int:
    """Seconds between two reports of a node of the run; 0 until it is known."""
    known = _INTERVALS.setdefault(source, {})
    read_at, every_s = known.get(run, (-INTERVAL_S, 0))
    if shards and not (every_s and 0 <= end - read_at < INTERVAL_S):
        span = source.window(shards[:1], INTERVAL_METRICS, start=end - INTERVAL_S, end=end)
        # In an outage of monitoring nothing new is known.
        read_at, every_s = end, reporting_interval(span) or every_s
        known[run] = (read_at, every_s)
    return every_s


def window_of_steps(
    source: Source, run: str, *, now_s: float, state: StepState | None = None
) -> StepBatch:
    """Read the steps of the last minutes, or the last few dozen where steps are slow."""
    since_s = window_start_s(now_s)
    return source.recent_steps(run, since_s=since_s, at_least=WINDOW_STEPS, state=state)


def window_start_s(now_s: float) -> float:
    return now_s // WINDOW_JUMP_S * WINDOW_JUMP_S - WINDOW_S


def glances(run: Run, end: int) -> bool:
    """Whether the hardware of a run is read in this second."""
    return (end + run.pk) % HARDWARE_EVERY_S == 0


def ecc_ticks(end: int) -> list[int]:
    return [end - age for age in ECC_AGES_S]


def ecc_counts(
    source: Source,
    shards: Sequence[str],
    nodes: Sequence[str],
    *,
    end: int,
    held: Mapping[str, Sequence[Packed]] | None = None,
) -> Span | None:
    """Read the nodes' ECC counts and device health at a few times; None where there are none."""
    if held is None:
        counts = source.moments(shards, STATE_METRICS, ticks=ecc_ticks(end))
    else:
        counts = moments_in(held, shards, STATE_METRICS, ticks=ecc_ticks(end))
    return of_present_machines(counts.of(nodes)) if counts.nodes else None


def of_present_machines(counts: Span) -> Span:
    """Leave out what machines reported that others have replaced under their names since.

    The first count of a new machine is history, not a rise of the old one's.
    """
    if not len(counts.ticks) or not has_changed(counts):
        return counts
    begins = datetime.fromtimestamp(float(counts.ticks[0]), UTC)
    replaced = Node.objects.filter(name__in=counts.nodes, replaced_at__gt=begins)
    is_old = np.zeros((len(counts.ticks), len(counts.nodes)), bool)
    for name, at in replaced.values_list("name", "replaced_at"):
        is_old[:, counts.nodes.index(name)] = counts.ticks < (int(at.timestamp()) if at else 0)
    values = {
        metric: np.where(is_old[:, :, None], np.nan, each)
        for metric, each in counts.values.items()
    }
    return replace(counts, values=values) if is_old.any() else counts
