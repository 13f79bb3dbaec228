"""From the store to findings to alerts: what is looked at, each second."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db import transaction
from django.db.models import Q

from fleet.alerts import Subject, reconcile
from fleet.alerts.events import Kind, change, note
from fleet.alerts.snapshots import (
    ECC_AGES_S,
    WINDOW_S,
    RunSnapshot,
    ecc_counts,
    rosters,
    sight_of,
    vitals_of,
)
from fleet.models import Alert, CompileEvent, Node, Run
from fleet.runs.compiles import change_lines, covered_s
from telemetry.blocks import Span
from telemetry.detect import RULES, CalmCache, Finding, find, find_silent, known_dead, uncorrected
from telemetry.detect.inputs import OpenProblem
from telemetry.detect.node_errors import RULE as ECC
from telemetry.detect.node_errors import counted, is_settled
from telemetry.store.hot import HotStore

RULE = "recompile"
# Graphs come one after another: within so long of the last one it is one problem, and news.
NEWS = timedelta(minutes=3)
LOOK_BACK = timedelta(hours=6)
FRESH = timedelta(seconds=20)
LOGGED_WITHIN = timedelta(days=1)
LIMITS = RULES[RULE].limits
LEAD_S = 120.0
MOST_LINES = 4


def compile_findings(
    runs: Iterable[Run], *, now: datetime, stepped_s: Mapping[str, float] | None = None
) -> list[Finding]:
    """Return one finding for each run that has told of an unannounced compile just now.

    ``stepped_s`` is when each run's newest step ended: of one that goes on training it is news
    for a moment only.
    """
    by_pk = {run.pk: run for run in runs}
    told = CompileEvent.objects.unannounced().filter(noted_at__gt=now - NEWS, noted_at__lte=now)
    fresh = set(told.filter(run__in=by_pk).values_list("run_id", flat=True))
    found = []
    for pk in sorted(fresh):
        events = events_up_to(by_pk[pk], now=now)
        finding = finding_of(by_pk[pk], events)
        is_old = now - (events[-1].noted_at or now) > FRESH if events else True
        went_on_s = (stepped_s or {}).get(by_pk[pk].name, 0.0)
        if finding is not None and not (is_old and went_on_s > finding.evidence["end_s"]):
            found.append(finding)
    return found


def events_up_to(run: Run, *, now: datetime) -> Sequence[CompileEvent]:
    """Return the unannounced compiles that belong together, the last of them told just now."""
    told = run.compiles.unannounced().filter(noted_at__gt=now - LOOK_BACK, noted_at__lte=now)
    together: list[CompileEvent] = []
    for event in told.exclude(at=None).order_by("-noted_at", "-at"):
        if together and (together[-1].noted_at or now) - (event.noted_at or now) > NEWS:
            break
        together.append(event)
    return together[::-1]


def finding_of(run: Run, events: Sequence[CompileEvent]) -> Finding | None:
    """Say that a run has compiled what nobody announced; None without a dated event."""
    spans = [(each.at.timestamp(), each.seconds or 0.0) for each in events if each.at]
    if not spans:
        return None
    spans.sort()
    since_s, lost_s = spans[0][0], covered_s(spans)
    end_s = max(begin + length for begin, length in spans)
    return Finding(
        rule=RULE,
        cause=RULE,
        severity="page" if lost_s > LIMITS["page_after_s"] else "warn",
        run=run.name,
        node=None,
        device=None,
        onset_s=since_s,
        score=max(1.0, lost_s / LIMITS["certain_s"]),
        evidence={
            "since_s": since_s,
            "lost_s": lost_s,
            "is_over": True,
            "end_s": end_s,
            "culprit": None,
            "window": [since_s - LEAD_S, end_s + LEAD_S],
            "charts": [],
            **key_evidence(events),
        },
    )


def key_evidence(events: Sequence[CompileEvent]) -> dict[str, Any]:
    """Return what changed in the keys, in words, and how many graphs that made compile."""
    lines = dict.fromkeys(line for each in events for line in change_lines(each.change))
    graphs = {each.module or each.pk for each in events}
    return {"key_changes": list(lines)[:MOST_LINES], "n_graphs": len(graphs)}


def raise_from_log(run: Run, *, now: datetime) -> list[Alert]:
    """Raise what a log of the last day tells of unannounced compiles; older ones are history.

    Nobody need get up for what is over: however long it took, it can wait for the morning.
    """
    if run.finished_at is None or run.finished_at < now - LOGGED_WITHIN:
        return []
    finding = finding_of(run, list(run.compiles.unannounced()))
    if finding is None:
        return []
    return reconcile([replace(finding, severity="warn")], watched=(), now=now)


def joined(findings: Sequence[Finding], told: Sequence[Finding]) -> list[Finding]:
    """Join what telemetry and the jobs themselves say: one problem, one finding."""
    by_run = {finding.run: finding for finding in told}
    seen = {finding.run for finding in findings if finding.rule == RULE}
    return [
        *(_explained(each, by_run) if each.rule == RULE else each for each in findings),
        *(each for each in told if each.run not in seen),
    ]


def _explained(finding: Finding, told: Mapping[str | None, Finding]) -> Finding:
    why = told.get(finding.run)
    if why is None:
        return finding
    keys = {name: why.evidence[name] for name in ("key_changes", "n_graphs")}
    return replace(finding, evidence={**finding.evidence, **keys})


def explain_fresh(*, now: datetime) -> list[Alert]:
    """Tell alerts what changed in the keys, as soon as the compiles are known."""
    told = CompileEvent.objects.unannounced().filter(noted_at__gt=now - FRESH, noted_at__lte=now)
    runs = Run.objects.filter(pk__in=set(told.values_list("run_id", flat=True)))
    return [alert for run in runs for alert in explain(run, now=now)]


@transaction.atomic
def explain(run: Run, *, now: datetime) -> list[Alert]:
    """Tell the run's alerts on recompiles what changed in the keys, once it is known."""
    alerts = run.alerts.filter(rule=RULE).select_related("run", "node")
    alerts = alerts.filter(fired_at__lte=now, last_seen_at__gt=now - LOOK_BACK)
    recent = alerts.order_by("-fired_at")[:5]
    changed = []
    for alert in recent:
        until = alert.resolved_at or now
        events = run.compiles.unannounced().filter(
            at__gte=alert.onset_at - NEWS, at__lte=until + NEWS
        )
        keys = key_evidence(list(events.order_by("at")))
        if keys["n_graphs"] and alert.evidence.get("key_changes") != keys["key_changes"]:
            change(alert, if_still={}, to={"evidence": {**alert.evidence, **keys}})
            note(alert, Kind.LEARNED, now=now, text="; ".join(keys["key_changes"]))
            changed.append(alert)
    return changed


__all__ = ["judge", "rosters", "sight_of", "watch", "watched"]

# Judged elsewhere, by fleet/costs/drift.py and fleet/checks/preflight_requirements.py.
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
RECALL = CalmCache()


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
    sights: Iterable[RunSnapshot],
    last_seen: Mapping[str, int],
    *,
    now_s: float,
    open_rules: Collection[Subject],
    lost: Collection[str] = (),
    recall: CalmCache | None = None,
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
        vitals = replace(vitals_of(sight, now_s=now_s, standing=told), calm_cache=recall)
        findings += find(vitals, open_rules=mine)
        dead |= known_dead(vitals)
    pulses = {sight.run.name: sight.pulse for sight in sights}
    return findings + find_silent(
        last_seen,
        now_s=now_s,
        run_of={name: sight.run.name for sight in sights for name in sight.roster.nodes},
        pulses={run: pulse for run, pulse in pulses.items() if pulse is not None},
        crashed=dead,
    )


def watched(
    sights: Iterable[RunSnapshot],
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


def open_alerts(runs: Iterable[Run]) -> dict[int, tuple[OpenProblem, ...]]:
    """Return what is believed to be wrong with each run and its nodes, by the run's key."""
    found: dict[int, tuple[OpenProblem, ...]] = {run.pk: () for run in runs}
    open_ = Alert.objects.open().filter(run__in=found, quiet_since=None)
    for alert in open_.select_related("node"):
        node = None if alert.node is None else alert.node.name
        new = OpenProblem(alert.rule, alert.cause, node, alert.device, alert.evidence)
        found[alert.run_id or 0] += (new,)
    return found
