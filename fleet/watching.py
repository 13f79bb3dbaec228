"""From the store to findings to alerts: what is looked at, each second."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from fleet.alerting import Subject, reconcile
from fleet.models import Alert, Node, Run
from telemetry.blocks import Span
from telemetry.detect import ECC_METRICS, RULES, Finding, Vitals, find, silent, uncorrected
from telemetry.detect.silence import Pulse
from telemetry.steps import StepBatch
from telemetry.store.hot import HotStore
from telemetry.store.source import Source

Hardware = Callable[[Sequence[str], int], Span]

# Enough steps to judge a change by, and to see that an alert's last five were calm.
WINDOW_S = 180
WINDOW_STEPS = 40
# ECC counts are compared over ten minutes, at a few moments: they only ever rise.
ECC_AGES_S = (600, 120, 15, 0)
RUN_RULES = tuple(name for name, rule in RULES.items() if rule.subject == "run")
BLIND = ("monitoring_blind", "fleet")
# Who was not listening cannot call anybody silent: after a pause of watching, wait and hear.
PAUSE_S = 5
LISTEN_FIRST_S = 20


@dataclass(frozen=True, slots=True)
class Roster:
    """Who belongs to a run, in order of rank, and where the store keeps them."""

    nodes: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    cores_per_device: int = 1


@dataclass(frozen=True, slots=True)
class Sight:
    """One run as watching sees it: its recent steps, and a way to look at its hardware."""

    run: Run
    roster: Roster
    steps: StepBatch
    hardware: Hardware
    counts: Span | None = None

    @property
    def pulse(self) -> Pulse | None:
        """When the run's newest step ended, and how long its steps take."""
        if not len(self.steps):
            return None
        return Pulse(float(self.steps.ended_at_s[-1]), float(np.median(self.steps.step_s)))


def watch(hot: HotStore, *, now: datetime) -> list[Alert]:
    """Look at every active run and every node, and reconcile the alerts; return the changed."""
    now_s = now.timestamp()
    runs = list(Run.objects.active())
    members = rosters(runs)
    sights = [sight_of(hot, run, members[run.pk], now_s=now_s) for run in runs]
    real = Node.objects.exclude(source=Node.Source.SIMULATED)
    shards = dict(real.filter(run=None).values_list("name", "shard"))
    expected = {name for roster in members.values() for name in roster.nodes}
    expected |= set(real.values_list("name", flat=True))
    last_seen = {name: tick for name, tick in hot.last_seen().items() if name in expected}
    if now_s - listening_since_s(hot, now_s=now_s) < LISTEN_FIRST_S:
        last_seen = {}
    findings = judge(sights, last_seen, now_s=now_s, open_rules=open_rules())
    could = watched(sights, last_seen, now_s=now_s)
    # A real node need not belong to a run; its memory is looked at all the same.
    counts = ecc_counts(hot, tuple(shards.values()), tuple(shards), end=int(now_s))
    if counts is not None:
        findings += uncorrected(counts)
        could |= {("ecc_uncorrected", f"node:{name}") for name in shards}
    return reconcile(findings, watched=could, now=now)


def rosters(runs: Iterable[Run]) -> dict[int, Roster]:
    """Return each run's nodes, by the run's key."""
    found: dict[int, list[tuple[str, str, int, int]]] = {run.pk: [] for run in runs}
    columns = ("run_id", "name", "shard", "n_cores", "n_devices")
    for key, *node in Node.objects.filter(run__in=found).order_by("rank").values_list(*columns):
        found[key].append(node)
    return {key: _roster(nodes) for key, nodes in found.items()}


def _roster(nodes: Sequence[tuple[str, str, int, int]]) -> Roster:
    if not nodes:
        return Roster()
    names, shards, n_cores, n_devices = zip(*nodes, strict=True)
    return Roster(names, tuple(dict.fromkeys(shards)), max(1, n_cores[0] // max(1, n_devices[0])))


def judge(
    sights: Iterable[Sight],
    last_seen: Mapping[str, int],
    *,
    now_s: float,
    open_rules: Collection[Subject],
) -> list[Finding]:
    """Return all that is wrong with these runs and nodes."""
    sights = list(sights)
    findings: list[Finding] = []
    for sight in sights:
        mine = {rule for rule, subject in open_rules if subject == f"run:{sight.run.name}"}
        findings += find(_vitals(sight, now_s=now_s), open_rules=mine)
    pulses = {sight.run.name: sight.pulse for sight in sights}
    return findings + silent(
        last_seen,
        now_s=now_s,
        run_of={name: sight.run.name for sight in sights for name in sight.roster.nodes},
        pulses={run: pulse for run, pulse in pulses.items() if pulse is not None},
    )


def watched(
    sights: Iterable[Sight], last_seen: Mapping[str, int], *, now_s: float
) -> set[Subject]:
    """Return what could be judged: a run without news keeps its alerts, so does a lost node."""
    could = {("node_silent", f"node:{name}") for name in last_seen}
    could |= {BLIND} if last_seen else set()
    for sight in sights:
        if sight.pulse is not None and now_s - sight.pulse.last_step_at_s <= WINDOW_S:
            could |= {(rule, f"run:{sight.run.name}") for rule in RUN_RULES}
        if sight.counts is not None:
            could |= {("ecc_uncorrected", f"node:{name}") for name in sight.roster.nodes}
    return could


def listening_since_s(hot: HotStore, *, now_s: float) -> float:
    """Return since when the fleet has been watched without a pause, and note that it is now."""
    held = hot.gauges()
    since_s = held.get("listening_since_s", now_s)
    if now_s - held.get("watched_at_s", -PAUSE_S) > PAUSE_S:
        since_s = now_s
        hot.gauge("listening_since_s", since_s)
    hot.gauge("watched_at_s", now_s)
    return since_s


def window_of_steps(source: Source, run: str, *, now_s: float) -> StepBatch:
    """Return the last minutes of steps, or the last few dozen where steps are slow."""
    steps = source.steps(run, since_s=now_s - WINDOW_S)
    if len(steps) >= WINDOW_STEPS:
        return steps
    return source.steps(run, since_s=0.0).last(WINDOW_STEPS)


def open_rules() -> set[Subject]:
    """Return which rules have an open alert, and about whom."""
    return set(Alert.objects.open().values_list("rule", "subject"))


def _vitals(sight: Sight, *, now_s: float) -> Vitals:
    return Vitals(
        run=sight.run.name,
        nodes=sight.roster.nodes,
        steps=sight.steps,
        hardware=sight.hardware,
        now_s=now_s,
        limit_ratio=sight.run.allreduce_limit_ratio,
        resolve_ratio=sight.run.allreduce_resolve_ratio,
        cores_per_device=sight.roster.cores_per_device,
        n_stages=sight.run.pp,
        counts=sight.counts,
    )


def sight_of(source: Source, run: Run, roster: Roster, *, now_s: float) -> Sight:
    """Look at one run: its steps now, its hardware when a rule asks for it."""
    end, shards = int(now_s), roster.shards

    def hardware(metrics: Sequence[str], last_s: int) -> Span:
        return source.window(shards, metrics, start=end - last_s + 1, end=end).of(roster.nodes)

    counts = ecc_counts(source, shards, roster.nodes, end=end)
    steps = window_of_steps(source, run.name, now_s=now_s)
    return Sight(run, roster, steps, hardware, counts)


def ecc_counts(
    source: Source, shards: Sequence[str], nodes: Sequence[str], *, end: int
) -> Span | None:
    """Return the nodes' ECC counts at a few moments up to ``end``; None where there are none."""
    moments = [
        source.window(shards, ECC_METRICS, start=end - age, end=end - age) for age in ECC_AGES_S
    ]
    return Span.after_another([moment.of(nodes) for moment in moments if moment.nodes])
