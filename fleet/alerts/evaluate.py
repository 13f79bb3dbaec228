"""Evaluate the rules: read the store, find what is wrong, and reconcile the alerts."""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import msgspec
import numpy as np
from django.conf import settings
from django.db.models import Q

from fleet.alerts.correlation import findings_of, keys_of
from fleet.alerts.failures import ALL_RULES, Guard, RuleFailure, unguarded
from fleet.alerts.memory import keep, recall
from fleet.alerts.probe_requests import as_detected
from fleet.alerts.quality import note_limits
from fleet.alerts.recompiles import RULE as RECOMPILE
from fleet.alerts.recompiles import compile_findings, explain_recent, joined
from fleet.alerts.reconcile import reconcile
from fleet.alerts.relations import Subject
from fleet.alerts.snapshots import (
    ECC_AGES_S,
    WINDOW_S,
    RunSnapshot,
    ecc_counts,
    keep_rosters,
    run_members,
    snapshots_of,
)
from fleet.models import Alert, Node, Run
from fleet.runs.retirement import retire_stopped
from fleet.runs.state import (
    OTHER_JOB,
    PAUSE_S,
    WAIT_AFTER_PAUSE_S,
    MissingReadings,
    missing_readings,
    worker_states,
)
from telemetry import catalog
from telemetry.blocks import Span
from telemetry.detect import (
    INDEPENDENT_RULES,
    RULES,
    SLOWDOWNS,
    DetectionInput,
    Finder,
    Finding,
    crashed_nodes,
    find,
    find_silent,
    missing_devices,
    names_of,
    uncorrected,
    unhealthy_devices,
)
from telemetry.detect.causes import UNKNOWN
from telemetry.detect.checkpoints import expected_checkpoint_s
from telemetry.detect.hardware import BLOCK_S
from telemetry.detect.inputs import OpenProblem
from telemetry.detect.node_errors import (
    HEALTH_RULE,
    MISSING_RULE,
    counted,
    device_health,
    is_settled,
    whole_nodes,
)
from telemetry.detect.node_errors import RULE as ECC
from telemetry.detect.standstill import CORES, DEAD_S, HOST, MUTE_S, TOGETHER_S
from telemetry.detect.stopped import SILENT, StepHeartbeat, are_all_overdue
from telemetry.ingest.timing import N_AGREEING
from telemetry.steps import RETURN_S
from telemetry.store.hot import HotStore
from telemetry.store.refused import read_refused

T = TypeVar("T")
log = logging.getLogger(__name__)

# A node rule that is broken on all nodes of a run is reported for the run.
RUN_RULES = SLOWDOWNS | names_of(lambda rule: rule.subject == "run" and rule.reads != "records")
# These are about runs without recent steps.
STILL_RULES = RUN_RULES - names_of(lambda rule: rule.reads == "measurements")
# Rules of nodes that read the hardware metrics, which are not evaluated every second.
HARDWARE_RULES = names_of(lambda rule: rule.subject == "node" and rule.reads == "measurements")
# Rules of nodes that read counts. Of these two the state of a device must be known.
COUNT_RULES = names_of(lambda rule: rule.subject == "node" and rule.reads == "counts") - {
    HEALTH_RULE,
    MISSING_RULE,
}
BLIND = ("monitoring_blind", "fleet")
OF_MISSING_DATA = names_of(lambda rule: rule.reads == "silence" and rule.subject != "fleet")
# Results of this process that stay valid from one second to the next, by watcher and run; and when
# it was that watcher. A turn that it gets back later than that starts from nothing.
WATCHES: dict[int, dict[str, Any]] = {}
_LOOKED_S: dict[int, float] = {}
KEPT_S = 120.0
# Three requests, of ten seconds each, show how far a clock is off (telemetry.ingest.timing).
NEW_FOR = timedelta(seconds=N_AGREEING * 10 + 15)


class Look(msgspec.Struct, frozen=True):
    """What one watcher found in its runs at one second, in a form that other workers can read.

    ``last_seen`` is that of nodes that may be silent, and of one node of each run that is not:
    the others change nothing. ``is_waiting``: a moment after a pause, missing data says nothing.
    """

    at_s: float
    findings: list[Finding]
    evaluated: set[Subject]
    failures: list[RuleFailure] = []
    n_nodes: int = 0
    last_seen: dict[str, int] = {}
    run_of: dict[str, str] = {}
    pulses: dict[str, StepHeartbeat] = {}
    report_every_s: dict[str, int] = {}
    heard_s: dict[str, float] = {}
    dead: set[str] = set()
    is_waiting: bool = False


def watch(
    hot: HotStore, *, now: datetime, rules: Mapping[str, Finder] = INDEPENDENT_RULES
) -> list[Alert]:
    """Evaluate every active run and every node, and reconcile the alerts; return the changed."""
    return conclude(hot, [look(hot, now=now, rules=rules)], now=now)


def look(
    hot: HotStore,
    *,
    now: datetime,
    watcher: int = 0,
    of: int = 1,
    rules: Mapping[str, Finder] = INDEPENDENT_RULES,
) -> Look:
    """Evaluate the runs of one watcher ``of`` some; a run has always the same one.

    A rule that could not be evaluated stops no other.
    """
    active = list(Run.objects.active().defer("plan", "clock"))
    runs = [run for run in active if run.pk % of == watcher]
    keep_rosters(run.pk for run in active)
    now_s, guard = now.timestamp(), Guard()
    watches, _LOOKED_S[watcher] = WATCHES.setdefault(watcher, {}), now_s
    for name in watches.keys() - {run.name for run in runs}:
        del watches[name]
    recall(hot, runs, watches)
    members = run_members(runs)
    guarded = {run.pk: partial(guard, run.name, members[run.pk].nodes, ALL_RULES) for run in runs}
    snapshots = snapshots_of(hot, runs, members, now_s=now_s, guarded=guarded)
    gauges = hot.gauges()
    is_waiting = is_after_pause(gauges, now_s=now_s)
    shards = {shard for member in members.values() for shard in member.shards}
    seen = {} if is_waiting else hot.last_seen(shards)
    lagging = lagging_runs(gauges, runs, now_s=now_s)
    of_lagging = {f"run:{name}" for name in lagging} | {
        f"node:{n}" for run in runs if run.name in lagging for n in members[run.pk].nodes
    }
    seen_in = {
        each.run.name: {name: seen[name] for name in each.members.nodes if name in seen}
        for each in snapshots
        if each.run.name not in lagging
    }
    last_seen: dict[str, int] = {}
    for of_run in seen_in.values():
        last_seen |= of_run
    open_ = open_alerts(runs)
    findings, dead = find_in_runs(
        snapshots,
        now_s=now_s,
        open_=open_,
        watches=watches,
        rules=rules,
        guard=guard,
        n_runs=len(active),
    )
    pulses = pulses_of(snapshots, last_seen, now_s=now_s)
    stepped_s = {
        each.run.name: beat.last_step_at_s for each in snapshots if (beat := each.heartbeat)
    }
    with guard("", (), RECOMPILE):
        findings = joined(findings, compile_findings(runs, now=now, stepped_s=stepped_s))
    evaluated = evaluated_subjects(snapshots, last_seen, open_.subjects, now_s=now_s)
    evaluated -= found_by_others(snapshots, open_.subjects, now=now)
    evaluated -= of_young(snapshots, watches, now_s=now_s)
    findings = [f for f in findings if f.rule not in OF_MISSING_DATA or f.run not in lagging]
    evaluated -= {key for key in evaluated if key[0] in OF_MISSING_DATA and key[1] in of_lagging}
    told = told_of(seen_in, dead, now_s=now_s)
    with guard("", (), "limits"):
        known = {run.name: watches[run.name] for run in runs if run.name in watches}
        note_limits(hot, known, watcher=watcher, now_s=now_s)
    keep(hot, runs, watches, now_s=now_s)
    return Look(
        now_s,
        findings,
        evaluated,
        guard.failures,
        sum(len(member.nodes) for member in members.values()),
        {name: last_seen[name] for name in told},
        told,
        pulses,
        {snapshot.run.name: snapshot.report_every_s for snapshot in snapshots},
        heard_of(snapshots, {n for n in told if last_seen[n] < quiet_since_s(now_s)}),
        dead,
        is_waiting,
    )


def forget_idle(*, now_s: float) -> None:
    """Forget the runs of watchers that other workers have become: they take 70 kB a node."""
    for watcher in [each for each, at_s in _LOOKED_S.items() if at_s < now_s - KEPT_S]:
        del _LOOKED_S[watcher]
        WATCHES.pop(watcher, None)


def pulses_of(
    snapshots: Iterable[RunSnapshot], last_seen: Mapping[str, int], *, now_s: float
) -> dict[str, StepHeartbeat]:
    """Return when each run's newest step ended.

    Of a run without steps, of which a node may be silent, when the others last executed.
    """
    recent_s, pulses = quiet_since_s(now_s), dict[str, StepHeartbeat]()
    for each in snapshots:
        pulse = each.heartbeat
        if pulse is None and any(
            last_seen.get(n, recent_s) < recent_s for n in each.members.nodes
        ):
            pulse = each.executing
        if pulse is not None:
            pulses[each.run.name] = pulse
    return pulses


def heard_of(snapshots: Iterable[RunSnapshot], quiet: set[str]) -> dict[str, float]:
    """Return when workers of nodes that may be silent were last heard."""
    heard_s = dict[str, float]()
    for each in snapshots if quiet else ():
        if each.workers is None or quiet.isdisjoint(each.members.nodes):
            continue
        for worker in each.workers().values():
            if worker.node in quiet:
                heard_s[worker.node] = max(worker.heard_s, heard_s.get(worker.node, 0.0))
    return heard_s


def quiet_since_s(now_s: float) -> float:
    """Nodes without a report since then may be silent."""
    return now_s - RULES[SILENT].limits["quiet_s"] + TOGETHER_S


def told_of(
    seen_in: Mapping[str, Mapping[str, int]], dead: Collection[str], *, now_s: float
) -> dict[str, str]:
    """Return the nodes that may be silent, and a newest one of each run, with their runs."""
    recent_s, told = quiet_since_s(now_s), dict[str, str]()
    for run, seen in seen_in.items():
        newest_s = max(seen.values(), default=0)
        if min(seen.values(), default=0) < recent_s or not seen.keys().isdisjoint(dead):
            quiet = (name for name, tick in seen.items() if tick < recent_s or name in dead)
            told |= dict.fromkeys(quiet, run)
        told |= dict.fromkeys(islice((n for n, t in seen.items() if t == newest_s), 1), run)
    return told


def conclude(
    hot: HotStore, looks: Sequence[Look], *, now: datetime, failures: Iterable[RuleFailure] = ()
) -> list[Alert]:
    """Add what concerns all runs and idle nodes, and reconcile the alerts; return the changed.

    A rule that could not be evaluated leaves its alerts unchanged; ``failures`` are others.
    """
    now_s, guard = now.timestamp(), Guard([*failures, *(f for x in looks for f in x.failures)])
    is_waiting = now_s - watching_since_s(hot, now_s=now_s) < WAIT_AFTER_PAUSE_S
    is_waiting |= any(each.is_waiting for each in looks)
    if not is_waiting:
        retire_stopped(hot, now=now)
    real = Node.objects.real().unretired()
    idle = Q(run=None) | Q(run__finished_at__isnull=False)
    rows = list(real.filter(idle).values_list("name", "shard", "run"))
    shards = {name: shard for name, shard, _ in rows}
    open_subjects = subjects_of_open()
    lost = lost_nodes(open_subjects)
    of_looks = {name for each in looks for name in each.last_seen}
    # A node whose run has ended is released: it may be shut down.
    expected = (lost | {name for name, _, run in rows if run is None}) - of_looks
    seen = hot.last_seen() if expected and not is_waiting else {}
    last_seen = {name: tick for name, tick in seen.items() if name in expected}
    known = last_seen.keys() | (shards.keys() - expected)
    evaluated = {(SILENT, f"node:{name}") for name in nodes_in(open_subjects) & known}
    evaluated |= {BLIND} if last_seen else set()
    findings = [finding for each in looks for finding in each.findings]
    for each in looks:
        last_seen |= each.last_seen
        evaluated |= each.evaluated
    if min(last_seen.values(), default=now_s) < quiet_since_s(now_s):
        # Until its clock is known, the first reports of a node may seem old.
        new = real.filter(first_seen_at__range=(now - NEW_FOR, now))
        for name in new.values_list("name", flat=True):
            last_seen.pop(name, None)
    with guard("", (), SILENT):
        seen = {} if is_waiting else last_seen
        findings += silent_in(hot, looks, seen, open_subjects, lost, now_s=now_s)
    if not expected and not any(each.n_nodes for each in looks):
        # Without a node that should report, none is missing.
        evaluated.add(BLIND)
    # The memory of a real node is evaluated even if it belongs to no run.
    with guard("", (), ECC):
        counts = ecc_counts(hot, tuple(shards.values()), tuple(shards), end=int(now_s))
        if counts is not None:
            findings += uncorrected(counts) + unhealthy_devices(counts)
            findings += missing_devices(counts, known=known_missing(open_subjects))
            alerting = nodes_in(open_subjects) & shards.keys()
            evaluated |= {(rule, f"node:{name}") for name in alerting for rule in COUNT_RULES}
            evaluated |= with_known_health(counts)
            evaluated -= unsettled([counts], open_subjects, now_s=now_s)
    evaluated = {key for key in evaluated if not any(f.covers(*key) for f in guard.failures)}
    guard.note(hot)
    if is_waiting:
        findings = [finding for finding in findings if finding.rule not in OF_MISSING_DATA]
        evaluated = {key for key in evaluated if key[0] not in OF_MISSING_DATA}
    if (missing := missing_readings(hot)).nodes:
        findings = [finding for finding in findings if not is_unknown(finding, missing)]
        unknown = {*missing.nodes, *missing.runs}
        evaluated = {key for key in evaluated if key[1].partition(":")[2] not in unknown}
    findings = with_refused(hot, findings, now_s=now_s)
    changed = reconcile(findings, evaluated=evaluated, now=now)
    return [*changed, *explain_recent(now=now)]


def silent_in(
    hot: HotStore,
    looks: Sequence[Look],
    last_seen: Mapping[str, int],
    open_subjects: Collection[Subject],
    lost: Collection[str],
    *,
    now_s: float,
) -> list[Finding]:
    """Find the silent nodes of all looks; ``lost`` ones are known dead."""
    # A look may be a little older: what it did not see yet is not silent for that.
    looked_s = min((each.at_s for each in looks), default=now_s)
    run_of = merged(each.run_of for each in looks)
    every_s = merged(each.report_every_s for each in looks)
    return find_silent(
        last_seen,
        now_s=looked_s,
        run_of=run_of,
        pulses=merged(each.pulses for each in looks),
        crashed={*lost, *chain.from_iterable(each.dead for each in looks)},
        known=nodes_in(key for key in open_subjects if key[0] == SILENT),
        report_every_s=every_s,
        may_be_quiet_s=hot.quiet_s(),
        heard_s=merged(each.heard_s for each in looks),
        returning_from_s=returning_from_s(
            hot, last_seen, now_s=looked_s, run_of=run_of, report_every_s=every_s
        ),
    )


def returning_from_s(
    hot: HotStore,
    last_seen: Mapping[str, int],
    *,
    now_s: float,
    run_of: Mapping[str, str],
    report_every_s: Mapping[str, int],
) -> float | None:
    """Return when a silence of all began that goes on or has just ended, and record it.

    Even one of seconds makes senders wait: some are silent for too long though others are back.
    """
    if min(last_seen.values(), default=math.inf) > now_s - TOGETHER_S:
        return None
    if are_all_overdue(last_seen, now_s=now_s, run_of=run_of, report_every_s=report_every_s):
        hot.gauge("unheard_from_s", max(last_seen.values()))
        hot.gauge("unheard_until_s", now_s)
    gauges = hot.gauges()
    is_recent = now_s < gauges.get("unheard_until_s", -math.inf) + RETURN_S
    return gauges["unheard_from_s"] if is_recent else None


def is_unknown(finding: Finding, missing: MissingReadings) -> bool:
    """Whether a finding is about a node whose readings our own store lacks."""
    of_nodes = finding.rule in OF_MISSING_DATA or RULES[finding.rule].subject == "node"
    return of_nodes and finding.node in missing.nodes


def merged(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Return one mapping of all."""
    return {name: value for part in parts for name, value in part.items()}


def found_by_others(
    snapshots: Iterable[RunSnapshot], open_subjects: Collection[Subject], *, now: datetime
) -> set[Subject]:
    """Name what slows runs and was found a moment ago, though this worker may not find it.

    Where a worker is late another one goes on. Each has read hardware in blocks of its own, so
    what one has just found another one finds up to a block later, or not if it has just begun.
    """
    if not any(rule in SLOWDOWNS for rule, _ in open_subjects):
        return set()
    block_s = max(BLOCK_S, *(each.report_every_s for each in snapshots), 0)
    recent = Q(last_seen_at__gt=now - timedelta(seconds=2 * block_s), last_seen_at__lt=now)
    return {key for key in subjects_of_open(recent) if key[0] in SLOWDOWNS}


def with_refused(hot: HotStore, findings: list[Finding], *, now_s: float) -> list[Finding]:
    """Add to what is missing that its reports arrive and are refused."""
    about = [
        [f"node:{finding.node}", f"run:{finding.run}"] if finding.rule in OF_MISSING_DATA else []
        for finding in findings
    ]
    refused = read_refused(hot, chain.from_iterable(about), now_s=now_s)
    # Those of another job with the run's name are not missing.
    texts = {of: str(each) for of, each in refused.items() if OTHER_JOB not in each.reason}
    if not texts:
        return findings
    told = [next((texts[of] for of in each if of in texts), "") for each in about]
    return [
        _of_refused(hot, each, text, now_s=now_s) if text else each
        for each, text in zip(findings, told, strict=True)
    ]


def _of_refused(hot: HotStore, finding: Finding, text: str, *, now_s: float) -> Finding:
    finding = replace(finding, evidence={**finding.evidence, "refused": text})
    # Workers of which nothing is heard, and a node, go on as far as anybody knows.
    if finding.cause in ("workers_ended", "node_silent"):
        return replace(finding, cause="reports_refused")
    if finding.rule != "hang" or finding.cause != UNKNOWN or finding.run is None:
        return finding
    # Whether workers send heartbeats is not known: they may be refused as well.
    heard_s = [worker.heard_s for worker in worker_states(hot, finding.run).values()]
    is_heard = now_s - max(heard_s, default=0.0) <= DEAD_S
    return finding if is_heard else replace(finding, cause="reports_refused", severity="warn")


def find_all(
    snapshots: Iterable[RunSnapshot],
    last_seen: Mapping[str, int],
    *,
    now_s: float,
    open_: "OpenAlerts",
    lost: Collection[str] = (),
    watches: dict[str, Any] | None = None,
    may_be_quiet_s: Mapping[str, int] | None = None,
    rules: Mapping[str, Finder] = INDEPENDENT_RULES,
) -> list[Finding]:
    """Find everything that is wrong with these runs and nodes; ``lost`` nodes are known dead.

    ``watches`` keeps what is known of each run from one second to the next.
    ``may_be_quiet_s`` is by node, see `find_silent`.
    """
    snapshots = list(snapshots)
    findings, dead = find_in_runs(
        snapshots, now_s=now_s, open_=open_, watches=watches, rules=rules
    )
    return findings + find_silent(
        last_seen,
        now_s=now_s,
        run_of={
            name: snapshot.run.name for snapshot in snapshots for name in snapshot.members.nodes
        },
        pulses=pulses_of(snapshots, last_seen, now_s=now_s),
        crashed=dead.union(lost),
        known=nodes_in(key for key in open_.subjects if key[0] == SILENT),
        report_every_s={snapshot.run.name: snapshot.report_every_s for snapshot in snapshots},
        may_be_quiet_s=may_be_quiet_s,
        heard_s=heard_of(
            snapshots, {n for n, tick in last_seen.items() if tick < quiet_since_s(now_s)}
        ),
    )


def find_in_runs(
    snapshots: Sequence[RunSnapshot],
    *,
    now_s: float,
    open_: "OpenAlerts",
    watches: dict[str, Any] | None = None,
    rules: Mapping[str, Finder] = INDEPENDENT_RULES,
    guard: Callable[[str, tuple[str, ...], str], AbstractContextManager[None]] = unguarded,
    n_runs: int = 0,
) -> tuple[list[Finding], set[str]]:
    """Find what is wrong with runs, of ``n_runs`` (0: these), and which nodes have crashed.

    ``guard`` is a context for a rule of a run; unless it suppresses exceptions, they pass.
    """
    findings: list[Finding] = []
    dead: set[str] = set()
    for snapshot in snapshots:
        open_rules = {
            rule for rule, subject in open_.active if subject == f"run:{snapshot.run.name}"
        }
        of_run = partial(guard, snapshot.run.name, snapshot.members.nodes)
        with of_run(ALL_RULES):
            problems = open_.problems.get(snapshot.run.pk, ())
            data = detection_input(
                snapshot,
                now_s=now_s,
                open_problems=problems,
                watches=watches,
                n_runs=n_runs or len(snapshots),
            )
            findings += find(data, open_rules=open_rules, rules=rules, guard=of_run)
            with of_run("hang"):
                dead |= crashed_nodes(data)
    return findings, dead


def evaluated_subjects(
    snapshots: Iterable[RunSnapshot],
    last_seen: Mapping[str, int],
    open_subjects: Collection[Subject],
    *,
    now_s: float,
) -> set[Subject]:
    """List what could be evaluated: a run or node without recent data keeps its alerts.

    Of nodes only those with an open alert are listed: the others have nothing to keep.
    """
    snapshots = list(snapshots)
    alerting = nodes_in(open_subjects)
    subjects = {(SILENT, f"node:{name}") for name in alerting if name in last_seen}
    subjects |= {BLIND} if last_seen else set()
    for snapshot in snapshots:
        subject, nodes = f"run:{snapshot.run.name}", snapshot.members.nodes
        of_run = alerting & set(nodes) if alerting else alerting
        subjects |= {(rule, subject) for rule in STILL_RULES}
        if (
            snapshot.heartbeat is not None
            and now_s - snapshot.heartbeat.last_step_at_s <= WINDOW_S
        ):
            subjects |= {(rule, subject) for rule in RUN_RULES}
            if not snapshot.steps.is_timed_now:
                # Without recent times of exchanges, the share is unknown.
                subjects.discard(("allreduce_share", subject))
        if snapshot.heartbeat is None and any(
            now_s - last_seen.get(name, 0) <= WINDOW_S for name in nodes
        ):
            # Without step reports the run is evaluated by its hardware.
            subjects |= {(rule, subject) for rule in RUN_RULES if rule != "allreduce_share"}
        if snapshot.ecc_counts is not None:
            subjects |= {(rule, f"node:{name}") for name in of_run for rule in COUNT_RULES}
            if of_run:
                subjects |= with_known_health(snapshot.ecc_counts)
        if snapshot.reads_hardware:
            subjects |= {(rule, f"node:{name}") for name in of_run for rule in HARDWARE_RULES}
            # Nodes that became idle together are one alert about their run.
            subjects.add(("node_idle", subject))
    for snapshot in snapshots:
        subjects -= unmeasured(snapshot, last_seen, open_subjects, now_s=now_s)
    return subjects - unsettled(
        [snapshot.ecc_counts for snapshot in snapshots], open_subjects, now_s=now_s
    )


def of_young(
    snapshots: Iterable[RunSnapshot], watches: Mapping[str, Any], *, now_s: float
) -> set[Subject]:
    """List what hardware alone would say of runs whose hardware has been read for minutes only."""
    unknown: set[Subject] = set()
    for each in snapshots:
        watch = watches.get(each.run.name)
        if each.heartbeat is None and watch is not None and watch.parts.is_young(now_s):
            of_run = (f"run:{each.run.name}", *(f"node:{name}" for name in each.members.nodes))
            unknown |= {(rule, subject) for rule in SLOWDOWNS for subject in of_run}
    return unknown


def nodes_in(subjects: Iterable[Subject]) -> set[str]:
    """Return the names of the nodes that these alerts are about."""
    return {name for _, subject in subjects if (name := subject.removeprefix("node:")) != subject}


def unmeasured(
    snapshot: RunSnapshot,
    last_seen: Mapping[str, int],
    open_subjects: Collection[Subject],
    *,
    now_s: float,
) -> set[Subject]:
    """List the alerts of silent nodes that report again but have not measured anything yet.

    The first report after a pause has no rates. Whether the node's worker is lost shows in the
    next one; until then the alert stays open.
    """
    silent = nodes_in(key for key in open_subjects if key[0] == SILENT)
    back = {
        (SILENT, f"node:{name}"): name
        for name in (silent & set(snapshot.members.nodes) if silent else ())
        if now_s - last_seen.get(name, 0) <= snapshot.report_every_s + TOGETHER_S
    }
    if not back:
        return set()
    data = detection_input(snapshot, now_s=now_s)
    span = data.hardware((CORES, HOST), data.lagging(MUTE_S))
    measured = {span.nodes[row] for row in np.flatnonzero(span.reported.any(axis=0))}
    return {key for key, name in back.items() if name not in measured}


def with_known_health(counts: Span) -> set[Subject]:
    """List nodes whose devices have a recent state, or all report; others keep their alerts."""
    is_known = np.isfinite(device_health(counts)).any(axis=1)
    rows = np.flatnonzero(is_known).tolist()
    whole = {(MISSING_RULE, f"node:{node}") for node in whole_nodes(counts)}
    return whole | {(HEALTH_RULE, f"node:{counts.nodes[row]}") for row in rows}


def known_missing(open_subjects: Collection[Subject]) -> dict[str, list[int]]:
    """Return the devices that open alerts name as missing, by node."""
    if not any(rule == MISSING_RULE for rule, _ in open_subjects):
        return {}
    open_ = Alert.objects.open().filter(rule=MISSING_RULE).exclude(node=None)
    return {node: seen["devices"] for node, seen in open_.values_list("node__name", "evidence")}


def unsettled(
    counts: Iterable[Span | None], open_subjects: Collection[Subject], *, now_s: float
) -> set[Subject]:
    """List the memory alerts that stay open because their next error may take long to come."""
    unsettled_subjects: set[Subject] = set()
    if not any(rule == ECC for rule, _ in open_subjects):
        return unsettled_subjects
    for alert in Alert.objects.open().filter(rule=ECC).select_related("node"):
        node = alert.node.name if alert.node else ""
        span = next((each for each in counts if each is not None and node in each.nodes), None)
        count = counted(span, node) if span is not None else None
        lasted = alert.last_seen_at - alert.onset_at
        if count is not None and not is_settled(
            alert.evidence,
            count,
            quiet_s=now_s - alert.last_seen_at.timestamp(),
            lasted_s=max(0.0, lasted.total_seconds() - ECC_AGES_S[0]),
        ):
            unsettled_subjects.add((alert.rule, alert.subject))
    return unsettled_subjects


def is_after_pause(gauges: Mapping[str, float], *, now_s: float) -> bool:
    """Whether evaluation has not gone on for long enough to tell what is missing."""
    paused_s = now_s - gauges.get("watched_at_s", -PAUSE_S)
    watched_s = now_s - gauges.get("listening_since_s", now_s)
    return paused_s > PAUSE_S or watched_s < WAIT_AFTER_PAUSE_S


def lagging_runs(gauges: Mapping[str, float], runs: Iterable[Run], *, now_s: float) -> set[str]:
    """Name the simulated runs while our own simulator makes up for what it has missed.

    A shard that waits for its turn looks as if its nodes were silent.
    """
    if now_s - gauges.get("caught_up_at_s", -math.inf) >= WAIT_AFTER_PAUSE_S:
        return set()
    return {run.name for run in runs if run.is_simulated}


def watching_since_s(hot: HotStore, *, now_s: float) -> float:
    """Return the start of uninterrupted evaluation, in Unix seconds, and record this one."""
    gauges = hot.gauges()
    since_s = gauges.get("listening_since_s", now_s)
    if now_s - gauges.get("watched_at_s", -PAUSE_S) > PAUSE_S:
        since_s = now_s
        hot.gauge("listening_since_s", since_s)
    hot.gauge("watched_at_s", now_s)
    return since_s


@dataclass(frozen=True, slots=True)
class OpenAlerts:
    """The rules and subjects of open alerts, those that are not quiet, and the runs' problems."""

    subjects: set[Subject]
    active: set[Subject]
    problems: Mapping[int, tuple[OpenProblem, ...]]


def open_alerts(runs: Iterable[Run], which: Q | None = None) -> OpenAlerts:
    """Read the open alerts, of those that ``which`` keeps; problems are of these runs."""
    subjects = subjects_of_open(which)
    active = without_quiet(subjects) if subjects else set()
    return OpenAlerts(subjects, active, open_problems(runs) if active else {})


def subjects_of_open(which: Q | None = None) -> set[Subject]:
    """List every rule and subject that open alerts cover; ``which`` is a filter."""
    rows = Alert.objects.open().filter(which or Q()).values_list("rule", "subject", "parts")
    return {key for row in rows for key in keys_of(*row)}


def without_quiet(subjects: Collection[Subject]) -> set[Subject]:
    """Leave out flapping alerts that are quiet: they stay open, but nothing is wrong now."""
    return set(subjects) - subjects_of_open(Q(quiet_since__isnull=False))


def lost_nodes(open_subjects: Collection[Subject]) -> set[str]:
    """List the nodes whose crash ended their run; they are still expected to report."""
    if not any(rule == "node_silent" for rule, _ in open_subjects):
        return set()
    crashes = Alert.objects.open().filter(rule="node_silent", cause="node_crash")
    names = {name for alert in crashes.select_related("node") for name in alert.nodes}
    failed = Node.objects.unretired().filter(name__in=names, run__phase=Run.Phase.FAILED)
    return set(failed.values_list("name", flat=True)) if names else set()


def open_problems(runs: Iterable[Run]) -> dict[int, tuple[OpenProblem, ...]]:
    """List the open problems of each run and its nodes, by the run's key."""
    names = {run.name: run.pk for run in runs}
    problems: dict[int, tuple[OpenProblem, ...]] = dict.fromkeys(names.values(), ())
    open_ = Alert.objects.open().filter(Q(run__in=problems) | ~Q(parts=[]), quiet_since=None)
    for alert in open_.select_related("run", "node").defer("run__plan", "run__clock"):
        for part in map(as_detected, findings_of(alert)):
            if part.run in names:
                new = OpenProblem(part.rule, part.cause, part.node, part.device, part.evidence)
                problems[names[part.run]] += (new,)
    return problems


def started_s(run: Run) -> float | None:
    """When the newest start of a run that reports its steps began them; None: unknown."""
    is_known = run.session and run.phase == Run.Phase.TRAINING
    return run.phase_since.timestamp() if is_known else None


def detection_input(
    snapshot: RunSnapshot,
    *,
    now_s: float,
    open_problems: tuple[OpenProblem, ...] = (),
    watches: dict[str, Any] | None = None,
    n_runs: int = 1,
) -> DetectionInput:
    """Gather what detection needs of a run, one of ``n_runs`` that share the budget.

    With an open alert it reads hardware every second.
    """
    run, members = snapshot.run, snapshot.members
    model = catalog.models().get(run.model)
    return DetectionInput(
        run=run.name,
        nodes=members.nodes,
        steps=snapshot.steps,
        hardware=snapshot.hardware,
        now_s=now_s,
        limit_ratio=run.allreduce_limit_ratio,
        resolve_ratio=run.allreduce_resolve_ratio,
        own_limits=run.limits or {},
        cores_per_device=members.cores_per_device,
        n_stages=run.pp,
        counts=snapshot.ecc_counts,
        phase=run.phase,
        phase_since_s=run.phase_since.timestamp(),
        started_s=started_s(run),
        open_problems=open_problems,
        reads_hardware=snapshot.reads_hardware or bool(open_problems),
        hardware_at=snapshot.hardware_at,
        earlier=snapshot.earlier,
        saved=snapshot.saved,
        report_every_s=max(1, snapshot.report_every_s),
        workers=snapshot.workers,
        watches=watches,
        false_pages_per_year=settings.FALSE_PAGES_PER_YEAR / n_runs,
        checkpoint_s=(
            expected_checkpoint_s(n_parameters=model.params, n_nodes=run.n_nodes)
            if model
            else None
        ),
    )
