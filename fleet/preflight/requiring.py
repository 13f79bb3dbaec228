"""Runs that require a preflight, and started without one: said on the run, until it is over."""

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from fleet.models import Annotation, Node, Preflight, Run
from fleet.notify.by_hand import note_change
from fleet.preflight.found import Found, read
from telemetry.preflight.trouble import Verdict

NONE = "No preflight of all its nodes was over within the day before it started."


def look_at_starts() -> int:
    """Say of every run that requires a preflight whether it had one; return how many changed."""
    spared = Run.objects.filter(requires_preflight=False).exclude(preflight_doubt="")
    n_changed = spared.update(preflight_doubt="")
    for run in Run.objects.active().filter(requires_preflight=True).prefetch_related("nodes"):
        names = [node.name for node in run.nodes.all()]
        if names and (said := doubt(names, run.started_at)) != run.preflight_doubt:
            n_changed += Run.objects.filter(pk=run.pk).update(preflight_doubt=said)
    return n_changed


@transaction.atomic
def require_by(run: Run, *, requires: bool, by: str, now: datetime) -> None:
    """Let a run require a preflight or not, and write down who said so; twice is once."""
    if run.requires_preflight != requires:
        what = "a preflight before it starts" if requires else "no preflight"
        note_change(f"let {run.name} require {what}", by=by, now=now)
        Annotation.objects.create(
            run=run, at=now, kind=Annotation.Kind.NOTE, by=by, text=f"lets it require {what}"
        )
    require(run, requires=requires)


def require(run: Run, *, requires: bool) -> None:
    """Let a run require a preflight or not, and say at once whether it had one."""
    names = list(Node.objects.filter(run=run).values_list("name", flat=True))
    run.requires_preflight = requires
    run.preflight_doubt = doubt(names, run.started_at) if requires and names else ""
    run.save(update_fields=["requires_preflight", "preflight_doubt"])


def doubt(names: Sequence[str], started_at: datetime) -> str:
    """Say why nodes should not have been started on; empty where a preflight passed them.

    The newest preflight of all of them counts, if it was over by then and not a day before.
    """
    for preflight in Preflight.objects.good_at(started_at).defer("measured"):
        found = read(preflight)
        if found is not None and set(names) <= set(found.nodes):
            return _objection(found, set(names), preflight)
    return NONE


def _objection(found: Found, names: set[str], preflight: Preflight) -> str:
    """Say what a preflight holds against a group of nodes."""
    own = {t.node for t in found.own if t.verdict is not Verdict.PASS}
    if bad := sorted(own & names):
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        return f"Preflight {preflight.pk} did not pass {bad[0]}{more}."
    for pair in found.pairs:
        if {pair.node, pair.peer} <= names:
            return f"Preflight {preflight.pk} lets only one of {pair.node} and {pair.peer} come."
    if found.is_slow and set(found.chosen) <= names:
        return f"In preflight {preflight.pk} the collective over these nodes was too slow."
    return ""
