"""Alerts about unplanned compiles that jobs or logs report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from fleet.alerts.events import Kind, change, note
from fleet.alerts.reconcile import reconcile
from fleet.models import Alert, CompileEvent, Run
from fleet.runs.compile_summaries import change_lines, covered_s
from telemetry.detect import RULES, Finding

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
