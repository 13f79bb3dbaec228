"""Unannounced compiles as findings: one for a run, joined with what its telemetry shows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from fleet.alerting import reconcile
from fleet.alerting.events import Kind, change, note
from fleet.compiles.summing import covered_s
from fleet.compiles.words import changes_in_words
from fleet.models import Alert, CompileEvent, Run
from telemetry.detect import RULES, Finding

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
    lines = dict.fromkeys(line for each in events for line in changes_in_words(each.change))
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
