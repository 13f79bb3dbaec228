"""The demo: a fleet of four teams, its history, and random faults."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from fleet.alerts.recompiles import explain
from fleet.charts.frozen import freeze
from fleet.models import Alert, Annotation, InjectedFault, Node, Run
from fleet.runs.annotations import ANNOUNCER, AnnotationRequest, annotate, announced
from fleet.simulation.compiles import simulate_compiles
from fleet.simulation.replay import Replay, connected_to, private_database
from fleet.simulation.runs import follow, plan_of, publish_clocks, publish_plan
from telemetry.blocks import Span
from telemetry.simulate.faults import FAULTS
from telemetry.simulate.observation import visible
from telemetry.simulate.plan import Plan
from telemetry.simulate.shard import clock_at, play
from telemetry.simulate.timeline import start_clock
from telemetry.steps import StepBatch
from telemetry.store import durable
from telemetry.store.hot import HotStore
from telemetry.store.playback import Playback
from telemetry.store.reading import Source

# Quiet hours are thinned to this; around a fault, and while hot, every second is played.
THINNED_S = 10
# An alert's charts begin 300 s before its onset, a close stretch at a whole minute.
BEFORE_FAULT_S = 400
AFTER_FAULT_S = 300
# Hardware is judged in blocks of as long: an alert ends as soon as it does live.
JUDGE_EVERY_S = 5
CARRIED_STEPS = 60


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """Part of a run's past; a close one, recent or near a fault, is played every second."""

    start: int
    end: int
    is_close: bool


def stretches(
    start: int, end: int, faults: Sequence[InjectedFault], *, hot_s: int
) -> list[HistoryPart]:
    """Cut a past at whole minutes into quiet stretches and close ones around each fault.

    A minute is never split, so that each is rolled up from one stretch.
    """
    # One minute more than there are: where the last of them would end.
    minutes = np.arange(start // 60 * 60, end + 61, 60)
    close = minutes >= (end - hot_s) // 60 * 60
    for fault in faults:
        begins, ends = fault.starts_at.timestamp(), fault.ends_at.timestamp()
        close |= (minutes >= begins - BEFORE_FAULT_S) & (minutes < ends + AFTER_FAULT_S)
    cuts = [0, *(np.flatnonzero(np.diff(close)) + 1), len(minutes) - 1]
    return [
        HistoryPart(max(start, int(minutes[a])), min(end, int(minutes[b]) - 1), bool(close[a]))
        for a, b in pairwise(cuts)
    ]


def go_live(hot: HotStore, run: Run, faults: Sequence[InjectedFault], *, now: datetime) -> None:
    """Start a run's clocks at ``now``, before its past is simulated.

    A play from there on gives what a play from the run's start would: its past can follow later.
    """
    plan = plan_of(run, faults, announced(run))
    clock = clock_at(plan, start_clock(plan), int(now.timestamp()))
    follow(run, clock)
    run.clock = msgspec.to_builtins(dict.fromkeys(plan.shards, clock))
    run.past_until = now
    run.save()


def fill_recent(hot: HotStore, run: Run, faults: Sequence[InjectedFault]) -> None:
    """Put the last minutes of a run's past into the hot tier, for the charts."""
    plan, end = plan_of(run, faults, announced(run)), past_end(run)
    start = max(plan.epoch_s, end - hot.keep_s)
    # After a long pause nothing of it is recent.
    if start < end and time.time() - end < hot.keep_s:
        _fill(hot, plan, start, end)


def _fill(hot: HotStore, plan: Plan, start: int, end: int) -> None:
    clock = clock_at(plan, start_clock(plan), start) if start > plan.epoch_s else start_clock(plan)
    for shard in plan.shards:
        played = play(plan, shard, clock, end)
        hot.append(visible(plan.inputs, played.span).blocks())
        if shard == plan.shards[0]:
            hot.append_steps(played.steps)


def past_end(run: Run) -> int:
    """Return the last second of a run's past, in Unix time; it is played live from then on."""
    if run.past_until is None:
        raise ValueError(f"run: the past of {run.name} is complete")
    return int(run.past_until.timestamp())


def simulate_past(hot: HotStore, run: Run, faults: Sequence[InjectedFault]) -> int:
    """Simulate a run's past: rollups, steps, alerts, compiles; return the number of alerts.

    Its alerts are found in a database of their own and stored when they are complete: no page
    shows an alert of the past as open, and after an interruption nothing is stored twice.
    """
    plan, end = plan_of(run, faults, announced(run)), past_end(run)
    clocks = dict.fromkeys(plan.shards, start_clock(plan))
    earlier = StepBatch.empty(run.name, plan.run.node_names)
    nodes, shared = list(run.nodes.all()), connections[DEFAULT_DB_ALIAS]
    with private_database():
        Run.objects.bulk_create([run])
        Node.objects.bulk_create(nodes)
        for stretch in stretches(plan.epoch_s, end, faults, hot_s=hot.keep_s):
            every_s = 1 if stretch.is_close else THINNED_S
            played = [play(plan, s, clocks[s], stretch.end, every_s=every_s) for s in plan.shards]
            played = [replace(p, span=visible(plan.inputs, p.span)) for p in played]
            clocks = {s: p.clock for s, p in zip(plan.shards, played, strict=True)}
            with connected_to(shared):
                for each in played:
                    durable.write_rollups(each.span)
                durable.write_steps(played[0].steps)
            steps = StepBatch.joined([earlier, played[0].steps])
            if stretch.is_close:
                _watch(run, Playback(Span.join_nodes([p.span for p in played]), steps), stretch)
            earlier = steps.last(CARRIED_STEPS)
        alerts = read_alerts()
    with transaction.atomic():
        n_alerts = store_alerts(*alerts)
        run.compiles.all().delete()
        compile_past(hot, run, list(faults), now=datetime.fromtimestamp(end, UTC))
        Run.objects.filter(pk=run.pk).update(past_until=None)
    run.past_until = None
    return n_alerts


def read_alerts() -> tuple[list[Alert], dict[Any, list[Any]]]:
    """Return all alerts, and the rows that belong to one by the field of theirs."""
    relations = [
        relation
        for relation in Alert._meta.related_objects
        if not relation.many_to_many and relation.related_model is not Alert
    ]
    rows = {
        each.field: list(each.related_model._default_manager.order_by("pk")) for each in relations
    }
    return list(Alert.objects.order_by("pk")), rows


def store_alerts(alerts: Sequence[Alert], rows: Mapping[Any, Sequence[Any]]) -> int:
    """Store alerts of another database, and what belongs to them, as new rows."""
    new: dict[int, int] = {}
    for alert in alerts:
        known, alert.pk = alert.pk, None
        if alert.earlier_id is not None:
            alert.earlier_id = new.get(alert.earlier_id)
        Alert.objects.bulk_create([alert])
        new[known] = alert.pk
    for field, each in rows.items():
        for row in each:
            row.pk = None
            setattr(row, field.attname, new[getattr(row, field.attname)])
        field.model._default_manager.bulk_create(each)
    return len(alerts)


def simulate_history(
    hot: HotStore, run: Run, faults: Sequence[InjectedFault], *, now: datetime
) -> None:
    """Simulate a run from its start to now, and start its clocks there."""
    go_live(hot, run, faults, now=now)
    fill_recent(hot, run, faults)
    simulate_past(hot, run, faults)
    publish_clocks(hot, run)


def _watch(run: Run, played: Playback, stretch: HistoryPart) -> None:
    """Run detection over a close part, and store the evidence of the resolved alerts."""
    replay, fired = Replay(played, [run]), []
    played.second = stretch.start
    while played.second + JUDGE_EVERY_S < stretch.end:
        played.second += JUDGE_EVERY_S
        fired += replay.evaluate(played.second)
    played.second = stretch.end
    for alert in {alert.pk: alert for alert in fired if not alert.is_open}.values():
        freeze(played, alert, now=datetime.fromtimestamp(stretch.end, UTC))


# A real fleet of this size has a fault every few days; the demo fleet has one every forty minutes.
FAULTS_PER_HOUR = 1.5
PAST_EVERY_HOURS = 3
NO_FAULTS_AT_FIRST = timedelta(hours=2)  # a run that compiles or warms up has no steps to slow
AHEAD = timedelta(hours=2)
# A new user should not have to wait long for a first fault, nor for its end.
FIRST_FAULT_AFTER = timedelta(seconds=60)
PAUSE_BEFORE_FAULT = timedelta(minutes=4)


@dataclass(frozen=True, slots=True)
class DemoFault:
    """A kind of random fault, with the ranges of its magnitude and duration."""

    kind: str
    magnitude: tuple[float, float]
    duration_s: tuple[float, float] = (180, 600)
    weight: float = 1.0


DEMO_FAULTS = (
    DemoFault("efa_latency", (5, 9), weight=3),
    DemoFault("efa_loss", (0.008, 0.02), weight=2),
    DemoFault("slow_core", (1.4, 2.0), weight=2),
    DemoFault("throttle", (1.4, 2.0), weight=1),
    DemoFault("hbm_slow", (0.35, 0.55), weight=2),
    DemoFault("node_silent", (1, 1), duration_s=(60, 240), weight=2),
)


def faults_of_hour(runs: Sequence[Run], *, hour: datetime) -> list[InjectedFault]:
    """Return random faults that start within one hour, deterministically; do not save them."""
    rng = np.random.default_rng([int(hour.timestamp()) // 3600, len(runs)])
    starts_s = np.sort(rng.uniform(0, 3600, rng.poisson(FAULTS_PER_HOUR)))
    # Every node is as likely to fail as any other.
    sizes = np.array([run.n_nodes for run in runs])
    hit = rng.choice(len(runs), size=len(starts_s), p=sizes / sizes.sum())
    return [
        random_fault(runs[i], at=hour + timedelta(seconds=int(start_s)), rng=rng)
        for i, start_s in zip(hit, starts_s, strict=True)
    ]


def random_fault(
    run: Run, *, at: datetime, rng: np.random.Generator, kind: str | None = None
) -> InjectedFault:
    """Return a random fault of a run, of a kind that its nodes can have; do not save it."""
    nodes = list(run.nodes.all())
    node = nodes[rng.integers(len(nodes))]
    possible = [f for f in DEMO_FAULTS if _parts(node, f.kind) and kind in (None, f.kind)]
    weights = np.array([each.weight for each in possible])
    chosen = possible[rng.choice(len(possible), p=weights / weights.sum())]
    parts = _parts(node, chosen.kind)
    has_device = FAULTS[chosen.kind].device_part is not None
    return InjectedFault(
        run=run,
        node=node,
        kind=chosen.kind,
        device=int(rng.integers(parts)) if has_device else None,
        magnitude=round(float(rng.uniform(*chosen.magnitude)), 2),
        starts_at=at,
        ends_at=at + timedelta(seconds=int(rng.uniform(*chosen.duration_s))),
    )


def _parts(node: Node, kind: str) -> int:
    """Count the parts of a node that a fault can hit; 1 if it hits the node itself."""
    part = FAULTS[kind].device_part
    # With one core per accelerator, a slow core and a throttled accelerator look the same.
    if kind == "slow_core" and node.n_cores == node.n_devices:
        return 0
    return {"core": node.n_cores, "device": node.n_devices, "efa": node.n_efa, None: 1}[part]


def extend(hot: HotStore, *, now: datetime) -> list[InjectedFault]:
    """Create the faults of the next hours; existing ones do not change."""
    last = InjectedFault.objects.filter(injected_by="").order_by("-starts_at").first()
    known_until = last.starts_at if last else now
    runs = list(Run.objects.active().simulated().prefetch_related("nodes").order_by("pk"))
    if not runs or known_until > now + AHEAD:
        return []
    hour = now.replace(minute=0, second=0, microsecond=0)
    hours = [hour + timedelta(hours=i) for i in range(1 + int(AHEAD.total_seconds() // 3600))]
    faults = [fault for each in hours for fault in faults_of_hour(runs, hour=each)]
    fresh = [fault for fault in faults if fault.starts_at > max(now, known_until)]
    InjectedFault.objects.bulk_create(fresh)
    for run in {fault.run for fault in fresh}:
        publish_plan(hot, run, now=now)
    return fresh


def create_past_faults(*, now: datetime) -> list[InjectedFault]:
    """Create faults in the runs' past: fewer than at present, and all over by now."""
    runs = list(Run.objects.active().simulated().prefetch_related("nodes").order_by("pk"))
    first = min(run.started_at for run in runs).replace(minute=0, second=0, microsecond=0)
    n_hours = int((now - first).total_seconds() // 3600) + 1
    hours = [first + timedelta(hours=i) for i in range(0, n_hours, PAST_EVERY_HOURS)]
    faults = [fault for hour in hours for fault in faults_of_hour(runs, hour=hour)]
    settled = [
        fault
        for fault in faults
        if fault.starts_at > fault.run.started_at + NO_FAULTS_AT_FIRST and fault.ends_at < now
    ]
    return InjectedFault.objects.bulk_create(settled)


def start_first_fault(hot: HotStore, *, now: datetime) -> InjectedFault | None:
    """Create a fault in the largest run, starting soon, unless one is active or due."""
    soon = InjectedFault.objects.filter(starts_at__lte=now + PAUSE_BEFORE_FAULT, ends_at__gt=now)
    run = Run.objects.active().simulated().prefetch_related("nodes").order_by("-n_nodes").first()
    if run is None or soon.filter(run=run).exists():
        return None
    rng = np.random.default_rng(int(now.timestamp()))
    fault = random_fault(run, at=now + FIRST_FAULT_AFTER, rng=rng, kind="efa_latency")
    fault.save()
    publish_plan(hot, run, now=now)
    return fault


# Which run, how often, and for how long: its evaluation takes longer sequences, of new graphs.
RUN, EVERY, LASTS = "search-bert", timedelta(hours=3), timedelta(seconds=150)
# Plans are handed over once a minute: what begins after that is in time for every worker.
ANNOUNCING_AHEAD = timedelta(minutes=2)
# The past is played without its runs' phases: an announced compile beside a fault, where every
# second is watched, would look like an accident.
PAST, APART, TRIES = timedelta(hours=3, minutes=50), timedelta(minutes=15), 12


def announce(run: Run, *, at: datetime) -> Annotation:
    """Announce that a run will compile for an evaluation at twice its sequence length."""
    text = f"planned compile for evaluation (seq {2 * run.seq_len:,})"
    note: Annotation = Annotation.objects.create(
        run=run, kind=Annotation.Kind.COMPILE, by=ANNOUNCER, at=at, ends_at=at + LASTS, text=text
    )
    return note


def announce_past(*, now: datetime) -> Annotation | None:
    """Announce a compile in the run's past, before it is simulated; None without room."""
    run = Run.objects.active().simulated().filter(name=RUN).first()
    if run is None:
        return None
    for tried in range(TRIES):
        at = now - PAST - 2 * tried * APART
        near = run.injected_faults.filter(starts_at__lt=at + LASTS + APART, ends_at__gt=at - APART)
        if at >= run.started_at + NO_FAULTS_AT_FIRST and not near.exists():
            return announce(run, at=at)
    return None


def announce_next(hot: HotStore, *, now: datetime) -> Annotation | None:
    """Announce the next compile if it is due and no fault or alert interferes; return it."""
    run = Run.objects.active().simulated().filter(name=RUN, phase=Run.Phase.TRAINING).first()
    if run is None or now < run.started_at + NO_FAULTS_AT_FIRST:
        return None
    last = announced(run).last()
    if last is not None and now < last.at + EVERY:
        return None
    at = now + ANNOUNCING_AHEAD
    soon = InjectedFault.objects.filter(run=run, ends_at__gt=now, starts_at__lt=at + 2 * LASTS)
    if soon.exists() or Alert.objects.open().filter(run=run).exists():
        return None
    note = announce(run, at=at)
    publish_plan(hot, run, now=now)
    return note


RECOMPILE = "recompile"
# Which run, how long ago, for how many seconds, and what had been done just before.
DEPLOYS = (
    ("pretrain-gpt", timedelta(hours=9, minutes=20), 640.0, "NEURON_CC_FLAGS set in the launcher"),
    ("search-bert", timedelta(hours=5, minutes=10), 260.0, "launch script rolled out"),
    ("search-bert", timedelta(hours=2, minutes=40), 240.0, "container image with a new compiler"),
)
BEFORE = timedelta(seconds=40)


def create_past_deploys(*, now: datetime) -> list[InjectedFault]:
    """Create recompile faults and their deploys in the past of runs that trained then."""
    runs = {run.name: run for run in Run.objects.active().simulated()}
    faults = []
    for name, ago, seconds, text in DEPLOYS:
        run, at = runs.get(name), now - ago
        if run is None or at < run.started_at + NO_FAULTS_AT_FIRST:
            continue
        faults.append(
            InjectedFault(
                run=run,
                kind=FAULTS[RECOMPILE].name,
                magnitude=seconds,
                starts_at=at,
                # Evaluated to its end: an alert that is no longer evaluated would stay open.
                ends_at=at + timedelta(seconds=seconds),
            )
        )
        annotate(AnnotationRequest("deploy", text, at - BEFORE, run=name), by="demo-bot", now=now)
    return InjectedFault.objects.bulk_create(faults)


def compile_past(source: Source, run: Run, faults: list[InjectedFault], *, now: datetime) -> None:
    """Give a run the compiles of its past, and store the changes with its alerts."""
    for event in simulate_compiles(source, run, faults, now=now):
        if event.noted_at is not None:
            explain(run, now=event.noted_at)
