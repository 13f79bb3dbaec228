"""Required preflights: alerts for runs that started without one."""

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from fleet.alerts import reconcile
from fleet.checks.preflights import load_result
from fleet.models import Alert, Annotation, Node, Preflight, Run
from fleet.notifications.manual import record_change
from telemetry.checks.preflight_pairs import NodeVerdict
from telemetry.detect import RULES, Finding
from telemetry.detect.causes import UNKNOWN

NO_PREFLIGHT = "No preflight of all its nodes ended in the 24 hours before the start."


def update_preflight_doubts() -> int:
    """Check every run that requires a preflight; return how many changed."""
    exempt = Run.objects.filter(requires_preflight=False).exclude(preflight_doubt="")
    n_changed = exempt.update(preflight_doubt="")
    for run in Run.objects.active().filter(requires_preflight=True).prefetch_related("nodes"):
        names = [node.name for node in run.nodes.all()]
        if (
            names
            and (doubt := missing_preflight_reason(names, run.started_at)) != run.preflight_doubt
        ):
            n_changed += Run.objects.filter(pk=run.pk).update(preflight_doubt=doubt)
    return n_changed


@transaction.atomic
def set_requirement_by(run: Run, *, requires: bool, by: str, now: datetime) -> None:
    """Set whether a run requires a preflight, and log a change."""
    if run.requires_preflight != requires:
        what = "a preflight before it starts" if requires else "no preflight"
        record_change(f"let {run.name} require {what}", by=by, now=now)
        Annotation.objects.create(
            run=run, at=now, kind=Annotation.Kind.NOTE, by=by, text=f"lets it require {what}"
        )
    set_requirement(run, requires=requires)


def set_requirement(run: Run, *, requires: bool) -> None:
    """Set whether a run requires a preflight, and check at once whether it had one."""
    names = list(Node.objects.filter(run=run).values_list("name", flat=True))
    run.requires_preflight = requires
    run.preflight_doubt = (
        missing_preflight_reason(names, run.started_at) if requires and names else ""
    )
    run.save(update_fields=["requires_preflight", "preflight_doubt"])


def missing_preflight_reason(names: Sequence[str], started_at: datetime) -> str:
    """Explain why a run should not have started; empty where a preflight passed its nodes.

    The newest preflight of all of them counts, if it was over by then and not a day before.
    """
    for preflight in Preflight.objects.valid_at(started_at).defer("measured"):
        found = load_result(preflight)
        if found is not None and set(names) <= set(found.nodes):
            wanted = set(names)
            own = {t.node for t in found.own if t.verdict is not NodeVerdict.PASS}
            if bad := sorted(own & wanted):
                more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
                return f"Preflight {preflight.pk} did not pass {bad[0]}{more}."
            for pair in found.pairs:
                if {pair.node, pair.peer} <= wanted:
                    return (
                        f"Preflight {preflight.pk} allows only one of {pair.node} and {pair.peer}."
                    )
            if found.is_slow and set(found.chosen) <= wanted:
                return f"In preflight {preflight.pk} the collective over these nodes was too slow."
            return ""
    return NO_PREFLIGHT


RULE = "preflight"


def update_preflight_alerts(*, now: datetime) -> list[Alert]:
    """Check the runs that require a preflight, and reconcile their alerts.

    Returns the changed alerts. A finished run keeps its flag, and its alert resolves.
    """
    update_preflight_doubts()
    doubtful = Run.objects.active().filter(requires_preflight=True).exclude(preflight_doubt="")
    findings = [finding_of(run) for run in doubtful.defer("plan", "clock")]
    names = Run.objects.active().values_list("name", flat=True)
    return reconcile(findings, evaluated={(RULE, f"run:{name}") for name in names}, now=now)


def finding_of(run: Run) -> Finding:
    return Finding(
        rule=RULE,
        cause=UNKNOWN,
        severity=RULES[RULE].severity,
        run=run.name,
        onset_s=run.started_at.timestamp(),
        score=1.0,
        evidence={"doubt": run.preflight_doubt, "started_s": run.started_at.timestamp()},
    )
