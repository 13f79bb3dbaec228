"""Evaluate the rules: read the store, find what is wrong, and reconcile the alerts."""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Q
from redis.exceptions import RedisError

from fleet.alerts.correlation import findings_of, keys_of
from fleet.alerts.events import Kind, change, note
from fleet.alerts.probe_requests import as_detected
from fleet.alerts.quality import note_limits
from fleet.alerts.reconcile import reconcile
from fleet.alerts.relations import Subject
from fleet.alerts.snapshots import (
    ECC_AGES_S,
    WINDOW_S,
    RunSnapshot,
    ecc_counts,
    run_members,
    snapshots_of,
)
from fleet.models import Alert, CompileEvent, Node, Run
from fleet.runs.compile_summaries import change_lines, covered_s
from fleet.runs.state import PAUSE_S, WAIT_AFTER_PAUSE_S, worker_states
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
from telemetry.detect.stopped import SILENT
from telemetry.store.hot import HotStore
from telemetry.store.refused import read_refused

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
# Results of this process that stay valid from one second to the next.
WATCHES: dict[str, Any] = {}
ALL_RULES = "all rules"
# What could not be evaluated is shown for so long.
FAILURES, SHOW_S, LOG_EVERY_S, LONGEST_ERROR = "watch:failures", 15, 60.0, 200
_LOGGED_S: dict[tuple[str, str, type[Exception]], float] = {}


class RuleFailure(msgspec.Struct, frozen=True):
    """Rules that raised an exception; without a run, of all runs and nodes."""

    rule: str
    run: str
    error: str
    nodes: tuple[str, ...] = ()

    def covers(self, rule: str, subject: str) -> bool:
        """Whether a rule and subject could not be evaluated."""
        of_rule = {"step_slow": SLOWDOWNS, "hang": ("hang", SILENT)}
        if self.rule != ALL_RULES and rule not in of_rule.get(self.rule, (self.rule,)):
            return False
        kind, _, name = subject.partition(":")
        return not self.run or name in ((self.run,) if kind == "run" else self.nodes)


@dataclass
class Guard:
    """Suppresses and collects the exceptions of rules, so that the others are evaluated.

    Without its store nothing can be evaluated: those exceptions pass.
    """

    failures: list[RuleFailure] = field(default_factory=list)

    @contextmanager
    def __call__(self, run: str, nodes: tuple[str, ...], rule: str) -> Iterator[None]:
        try:
            yield
        except (DatabaseError, RedisError):
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
            self.failures.append(RuleFailure(rule, run, text, nodes))
            # Each second brings the same one: its traceback is logged once a minute and process.
            key, at_s = (run, rule, type(error)), time.monotonic()
            if at_s - _LOGGED_S.get(key, -math.inf) > LOG_EVERY_S:
                _LOGGED_S[key] = at_s
                log.exception("could not evaluate %s of %s", rule, run or "all runs")

    def note(self, hot: HotStore) -> None:
        """Count the failures, and keep them for the page of rules."""
        if self.failures:
            hot.count("rules_failed", len(self.failures))
            hot.execute("SET", FAILURES, msgspec.json.encode(self.failures), "EX", SHOW_S)


def unguarded(_run: str, _nodes: tuple[str, ...], _rule: str) -> AbstractContextManager[None]:
    """Let the exceptions of rules pass."""
    return nullcontext()


def rule_failures(hot: HotStore) -> list[RuleFailure]:
    """Read what could not be evaluated in the last seconds."""
    return msgspec.json.decode(hot.execute("GET", FAILURES) or b"[]", type=list[RuleFailure])


def watch(
    hot: HotStore, *, now: datetime, rules: Mapping[str, Finder] = INDEPENDENT_RULES
) -> list[Alert]:
    """Evaluate every active run and every node, and reconcile the alerts; return the changed.

    A rule that could not be evaluated leaves its alerts unchanged, and stops no other.
    """
    now_s, guard = now.timestamp(), Guard()
    runs = list(Run.objects.active().defer("plan", "clock"))
    members = run_members(runs)
    guarded = {run.pk: partial(guard, run.name, members[run.pk].nodes, ALL_RULES) for run in runs}
    snapshots = snapshots_of(hot, runs, members, now_s=now_s, guarded=guarded)
    unread = {name for failure in guard.failures for name in failure.nodes}
    real = Node.objects.real().unretired()
    idle = Q(run=None) | Q(run__finished_at__isnull=False)
    shards = dict(real.filter(idle).values_list("name", "shard"))
    expected = {name for member in members.values() for name in member.nodes}
    open_ = open_alerts(runs)
    lost = lost_nodes(open_.subjects)
    expected |= lost | set(real.values_list("name", flat=True))
    expected_now = expected - unread
    last_seen = {name: tick for name, tick in hot.last_seen().items() if name in expected_now}
    is_waiting = now_s - watching_since_s(hot, now_s=now_s) < WAIT_AFTER_PAUSE_S
    last_seen = {} if is_waiting else last_seen
    findings = find_all(
        snapshots,
        last_seen,
        now_s=now_s,
        open_=open_,
        lost=lost,
        watches=WATCHES,
        may_be_quiet_s=hot.quiet_s(),
        rules=rules,
        guard=guard,
    )
    stepped_s = {
        snapshot.run.name: snapshot.heartbeat.last_step_at_s
        for snapshot in snapshots
        if snapshot.heartbeat is not None
    }
    with guard("", (), RULE):
        findings = joined(findings, compile_findings(runs, now=now, stepped_s=stepped_s))
    evaluated = evaluated_subjects(snapshots, last_seen, open_.subjects, now_s=now_s)
    if not expected:
        # Without a node that should report, none is missing.
        evaluated.add(BLIND)
    # The memory of a real node is evaluated even if it belongs to no run.
    with guard("", (), ECC):
        counts = ecc_counts(hot, tuple(shards.values()), tuple(shards), end=int(now_s))
        if counts is not None:
            findings += uncorrected(counts) + unhealthy_devices(counts)
            findings += missing_devices(counts, known=known_missing(open_.subjects))
            alerting = nodes_in(open_.subjects) & shards.keys()
            evaluated |= {(rule, f"node:{name}") for name in alerting for rule in COUNT_RULES}
            evaluated |= with_known_health(counts)
            evaluated -= unsettled([counts], open_.subjects, now_s=now_s)
    evaluated = {key for key in evaluated if not any(f.covers(*key) for f in guard.failures)}
    evaluated -= found_by_others(snapshots, open_.subjects, now=now)
    with guard("", (), "limits"):
        for name in WATCHES.keys() - {run.name for run in runs}:
            del WATCHES[name]
        note_limits(hot, WATCHES, now_s=now_s)
    guard.note(hot)
    if is_waiting:
        findings = [finding for finding in findings if finding.rule not in OF_MISSING_DATA]
        evaluated = {key for key in evaluated if key[0] not in OF_MISSING_DATA}
    findings = with_refused(hot, findings, now_s=now_s)
    changed = reconcile(findings, evaluated=evaluated, now=now)
    return [*changed, *explain_recent(now=now)]


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
    if not refused:
        return findings
    told = [next((str(refused[s]) for s in each if s in refused), "") for each in about]
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
    guard: Callable[[str, tuple[str, ...], str], AbstractContextManager[None]] = unguarded,
) -> list[Finding]:
    """Find everything that is wrong with these runs and nodes; ``lost`` nodes are known dead.

    ``watches`` keeps what is known of each run from one second to the next.
    ``may_be_quiet_s`` is by node, see `find_silent`. ``guard`` is a context for a rule of a run;
    unless it suppresses exceptions, they pass.
    """
    snapshots = list(snapshots)
    findings: list[Finding] = []
    dead = set(lost)
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
                n_runs=len(snapshots),
            )
            findings += find(data, open_rules=open_rules, rules=rules, guard=of_run)
            with of_run("hang"):
                dead |= crashed_nodes(data)
    with guard("", (), "node_silent"):
        findings += find_silent(
            last_seen,
            now_s=now_s,
            run_of={
                name: snapshot.run.name
                for snapshot in snapshots
                for name in snapshot.members.nodes
            },
            pulses={
                snapshot.run.name: pulse
                for snapshot in snapshots
                if (pulse := snapshot.heartbeat) is not None
            },
            crashed=dead,
            report_every_s={snapshot.run.name: snapshot.report_every_s for snapshot in snapshots},
            may_be_quiet_s=may_be_quiet_s,
        )
    return findings


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


RULE = "recompile"
# Compiles closer together than this are one problem; the last one is recent for as long.
RECENT = timedelta(minutes=3)
LOOK_BACK = timedelta(hours=6)
FRESH = timedelta(seconds=20)
LOGGED_WITHIN = timedelta(days=1)
LIMITS = RULES[RULE].limits
LEAD_S = 120.0
MOST_LINES = 4


def compile_findings(
    runs: Iterable[Run], *, now: datetime, stepped_s: Mapping[str, float] | None = None
) -> list[Finding]:
    """Find the runs that have just reported an unplanned compile.

    ``stepped_s`` is when each run's newest step ended: a run that continues to train has a
    finding only for a moment.
    """
    by_pk = {run.pk: run for run in runs}
    reported = CompileEvent.objects.unannounced().filter(
        noted_at__gt=now - RECENT, noted_at__lte=now
    )
    fresh = set(reported.filter(run__in=by_pk).values_list("run_id", flat=True))
    findings = []
    for pk in sorted(fresh):
        events = events_up_to(by_pk[pk], now=now)
        finding = finding_of(by_pk[pk], events)
        is_old = now - (events[-1].noted_at or now) > FRESH if events else True
        continued_s = (stepped_s or {}).get(by_pk[pk].name, 0.0)
        if finding is not None and not (is_old and continued_s > finding.evidence["end_s"]):
            findings.append(finding)
    return findings


def events_up_to(run: Run, *, now: datetime) -> Sequence[CompileEvent]:
    """List the unplanned compiles of the newest problem, oldest first."""
    reported = run.compiles.unannounced().filter(noted_at__gt=now - LOOK_BACK, noted_at__lte=now)
    together: list[CompileEvent] = []
    for event in reported.exclude(at=None).order_by("-noted_at", "-at"):
        if together and (together[-1].noted_at or now) - (event.noted_at or now) > RECENT:
            break
        together.append(event)
    return together[::-1]


def finding_of(run: Run, events: Sequence[CompileEvent]) -> Finding | None:
    """Build the finding of unplanned compiles; None without a dated event."""
    spans = [(event.at.timestamp(), event.seconds or 0.0) for event in events if event.at]
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
    """Describe what changed in the cache keys, and count the graphs that compiled."""
    lines = dict.fromkeys(line for event in events for line in change_lines(event.change))
    graphs = {event.module or event.pk for event in events}
    return {"key_changes": list(lines)[:MOST_LINES], "n_graphs": len(graphs)}


def raise_from_log(run: Run, *, now: datetime) -> list[Alert]:
    """Fire an alert for unplanned compiles in an imported log of the last day.

    It is a warning: the compiles are over.
    """
    if run.finished_at is None or run.finished_at < now - LOGGED_WITHIN:
        return []
    finding = finding_of(run, list(run.compiles.unannounced()))
    if finding is None:
        return []
    return reconcile([replace(finding, severity="warn")], evaluated=(), now=now)


def joined(findings: Sequence[Finding], reported: Sequence[Finding]) -> list[Finding]:
    """Join the findings of telemetry with those that jobs reported: one per problem."""
    by_run = {finding.run: finding for finding in reported}
    seen = {finding.run for finding in findings if finding.rule == RULE}
    return [
        *(_with_keys(each, by_run) if each.rule == RULE else each for each in findings),
        *(each for each in reported if each.run not in seen),
    ]


def _with_keys(finding: Finding, reported: Mapping[str | None, Finding]) -> Finding:
    why = reported.get(finding.run)
    if why is None:
        return finding
    keys = {name: why.evidence[name] for name in ("key_changes", "n_graphs")}
    return replace(finding, evidence={**finding.evidence, **keys})


def explain_recent(*, now: datetime) -> list[Alert]:
    """Explain alerts of runs whose compiles have just been reported."""
    reported = CompileEvent.objects.unannounced().filter(
        noted_at__gt=now - FRESH, noted_at__lte=now
    )
    runs = Run.objects.filter(pk__in=set(reported.values_list("run_id", flat=True)))
    return [alert for run in runs for alert in explain(run, now=now)]


@transaction.atomic
def explain(run: Run, *, now: datetime) -> list[Alert]:
    """Add what changed in the cache keys to the run's recompile alerts."""
    alerts = run.alerts.filter(rule=RULE).select_related("run", "node")
    alerts = alerts.filter(fired_at__lte=now, last_seen_at__gt=now - LOOK_BACK)
    recent = alerts.order_by("-fired_at")[:5]
    changed = []
    for alert in recent:
        until = alert.resolved_at or now
        events = run.compiles.unannounced().filter(
            at__gte=alert.onset_at - RECENT, at__lte=until + RECENT
        )
        keys = key_evidence(list(events.order_by("at")))
        if keys["n_graphs"] and alert.evidence.get("key_changes") != keys["key_changes"]:
            change(alert, if_still={}, to={"evidence": {**alert.evidence, **keys}})
            note(alert, Kind.LEARNED, now=now, text="; ".join(keys["key_changes"]))
            changed.append(alert)
    return changed
