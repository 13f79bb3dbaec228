"""From the store to findings to alerts: what is looked at, each second."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

import numpy as np
from django.db.models import Q

from fleet.alerting import Subject, reconcile
from fleet.models import Alert, Node, Run
from fleet.recompiling import compile_findings, explain_fresh, joined
from fleet.sighting import (
    ECC_AGES_S,
    WINDOW_S,
    Sight,
    ecc_counts,
    rosters,
    sight_of,
    vitals_of,
)
from telemetry.blocks import Span
from telemetry.detect import RULES, Finding, Recall, find, known_dead, silent, uncorrected
from telemetry.detect.parts.ecc import RULE as ECC
from telemetry.detect.parts.ecc import counted, is_settled
from telemetry.detect.vitals import Standing
from telemetry.store.hot import HotStore

__all__ = ["judge", "rosters", "sight_of", "watch", "watched"]

# Judged elsewhere, by fleet/overspending.py and fleet/preflight/alerting.py.
JUDGED_ELSEWHERE = ("cost_drift", "preflight")
# Sick parts of all its nodes are a run's own.
RUN_RULES = (
    *(
        name
        for name, rule in RULES.items()
        if rule.subject == "run" and name not in JUDGED_ELSEWHERE
    ),
    *("core_slow", "hbm_slow", "efa_degraded"),
)
# Rules of nodes that read what all parts of all nodes report: not looked at in every second.
HARDWARE_RULES = ("core_slow", "hbm_slow", "efa_degraded", "node_idle", "exec_errors")
BLIND = ("monitoring_blind", "fleet")
# Who was not listening cannot call anybody silent: after a pause of watching, wait and hear.
PAUSE_S = 5
LISTEN_FIRST_S = 20
# What this process has judged already, from one second to the next.
RECALL = Recall()


def watch(hot: HotStore, *, now: datetime) -> list[Alert]:
    """Look at every active run and every node, and reconcile the alerts; return the changed."""
    now_s = now.timestamp()
    runs = list(Run.objects.active())
    members = rosters(runs)
    sights = [sight_of(hot, run, members[run.pk], now_s=now_s) for run in runs]
    real = Node.objects.exclude(source=Node.Source.SIMULATED)
    idle = Q(run=None) | Q(run__finished_at__isnull=False)
    shards = dict(real.filter(idle).values_list("name", "shard"))
    expected = {name for roster in members.values() for name in roster.nodes}
    known = open_rules()
    lost = lost_nodes(known)
    expected |= lost | set(real.values_list("name", flat=True))
    last_seen = {name: tick for name, tick in hot.last_seen().items() if name in expected}
    if now_s - listening_since_s(hot, now_s=now_s) < LISTEN_FIRST_S:
        last_seen = {}
    findings = judge(sights, last_seen, now_s=now_s, open_rules=known, lost=lost, recall=RECALL)
    stepped_s = {
        sight.run.name: sight.pulse.last_step_at_s for sight in sights if sight.pulse is not None
    }
    findings = joined(findings, compile_findings(runs, now=now, stepped_s=stepped_s))
    could = watched(sights, last_seen, known, now_s=now_s)
    # A real node need not belong to a run; its memory is looked at all the same.
    counts = ecc_counts(hot, tuple(shards.values()), tuple(shards), end=int(now_s))
    if counts is not None:
        findings += uncorrected(counts)
        could |= {(ECC, f"node:{name}") for name in shards}
        could -= unsettled([counts], known, now_s=now_s)
    changed = reconcile(findings, watched=could, now=now)
    return [*changed, *explain_fresh(now=now)]


def judge(
    sights: Iterable[Sight],
    last_seen: Mapping[str, int],
    *,
    now_s: float,
    open_rules: Collection[Subject],
    lost: Collection[str] = (),
    recall: Recall | None = None,
) -> list[Finding]:
    """Return all that is wrong with these runs and nodes; ``lost`` are known to be dead.

    ``recall`` spares judging again what has not changed since the last look.
    """
    sights = list(sights)
    burning = still_burning(open_rules) if open_rules else set()
    standing = open_alerts([sight.run for sight in sights]) if burning else {}
    findings: list[Finding] = []
    dead = set(lost)
    for sight in sights:
        mine = {rule for rule, subject in burning if subject == f"run:{sight.run.name}"}
        told = standing.get(sight.run.pk, ())
        vitals = replace(vitals_of(sight, now_s=now_s, standing=told), recall=recall)
        findings += find(vitals, open_rules=mine)
        dead |= known_dead(vitals)
    pulses = {sight.run.name: sight.pulse for sight in sights}
    return findings + silent(
        last_seen,
        now_s=now_s,
        run_of={name: sight.run.name for sight in sights for name in sight.roster.nodes},
        pulses={run: pulse for run, pulse in pulses.items() if pulse is not None},
        crashed=dead,
    )


def watched(
    sights: Iterable[Sight],
    last_seen: Mapping[str, int],
    open_rules: Collection[Subject],
    *,
    now_s: float,
) -> set[Subject]:
    """Return what could be judged: a run without news keeps its alerts, so does a lost node."""
    sights = list(sights)
    could = {("node_silent", f"node:{name}") for name in last_seen}
    could |= {BLIND} if last_seen else set()
    for sight in sights:
        # These two are about a run that has no news.
        could |= {(rule, f"run:{sight.run.name}") for rule in ("hang", "recompile")}
        if sight.pulse is not None and now_s - sight.pulse.last_step_at_s <= WINDOW_S:
            could |= {(rule, f"run:{sight.run.name}") for rule in RUN_RULES}
            if not np.isfinite(sight.steps.allreduce_share_ratio).any():
                # Nobody timed an exchange lately: the share is unknown, and mends nothing.
                could.discard(("allreduce_share", f"run:{sight.run.name}"))
        if sight.counts is not None:
            could |= {(ECC, f"node:{name}") for name in sight.roster.nodes}
        if sight.looks:
            nodes = sight.roster.nodes
            could |= {(rule, f"node:{name}") for name in nodes for rule in HARDWARE_RULES}
            # Nodes that became idle together are one alert about their run.
            could.add(("node_idle", f"run:{sight.run.name}"))
    return could - unsettled([sight.counts for sight in sights], open_rules, now_s=now_s)


def unsettled(
    counts: Iterable[Span | None], known: Collection[Subject], *, now_s: float
) -> set[Subject]:
    """Return the alerts on memory whose next error may be long in coming: they stay open."""
    found: set[Subject] = set()
    if not any(rule == ECC for rule, _ in known):
        return found
    for alert in Alert.objects.open().filter(rule=ECC).select_related("node"):
        node = alert.node.name if alert.node else ""
        span = next((each for each in counts if each is not None and node in each.nodes), None)
        count = counted(span, node) if span is not None else None
        seen_s, lasted = alert.last_seen_at.timestamp(), alert.last_seen_at - alert.onset_at
        if count is not None and not is_settled(
            alert.evidence,
            count,
            quiet_s=now_s - seen_s,
            lasted_s=max(0.0, lasted.total_seconds() - ECC_AGES_S[0]),
        ):
            found.add((alert.rule, alert.subject))
    return found


def listening_since_s(hot: HotStore, *, now_s: float) -> float:
    """Return since when the fleet has been watched without a pause, and note that it is now."""
    held = hot.gauges()
    since_s = held.get("listening_since_s", now_s)
    if now_s - held.get("watched_at_s", -PAUSE_S) > PAUSE_S:
        since_s = now_s
        hot.gauge("listening_since_s", since_s)
    hot.gauge("watched_at_s", now_s)
    return since_s


def open_rules() -> set[Subject]:
    """Return which rules have an open alert, and about whom."""
    return set(Alert.objects.open().values_list("rule", "subject"))


def still_burning(known: Collection[Subject]) -> set[Subject]:
    """Leave out what flaps and is quiet: its alert waits, but what it blamed is well again."""
    quiet = Alert.objects.open().exclude(quiet_since=None).values_list("rule", "subject")
    return set(known) - set(quiet)


def lost_nodes(known: Collection[Subject]) -> set[str]:
    """Return the nodes whose crash ended their run: they are waited for beyond its end."""
    if not any(rule == "node_silent" for rule, _ in known):
        return set()
    crashes = Alert.objects.open().filter(rule="node_silent", cause="node_crash")
    failed = crashes.filter(run__phase=Run.Phase.FAILED)
    return {name for name in failed.values_list("node__name", flat=True) if name}


def open_alerts(runs: Iterable[Run]) -> dict[int, tuple[Standing, ...]]:
    """Return what is believed to be wrong with each run and its nodes, by the run's key."""
    found: dict[int, tuple[Standing, ...]] = {run.pk: () for run in runs}
    open_ = Alert.objects.open().filter(run__in=found, quiet_since=None)
    for alert in open_.select_related("node"):
        node = None if alert.node is None else alert.node.name
        new = Standing(alert.rule, alert.cause, node, alert.device, alert.evidence)
        found[alert.run_id or 0] += (new,)
    return found
