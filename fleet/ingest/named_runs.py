"""Runs that no training job reports: labels of series or tags of processes name them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from django.db.models import Count, Q

from fleet.ingest.runs import refresh_run
from fleet.models import Node, Run
from telemetry import catalog
from telemetry.ingest.step_reports import RunLine
from trnwatch.identity import run_name

SESSION = "labels"
NO_LABELS: Mapping[str, str] = {}
# A process that is started with NEURON_PROCESS_TAG=run=NAME; without that variable the tag is the
# number of the process (user guide of neuron-monitor). Tags have up to 32 characters.
RUN_TAG = "run="


def run_in_tags(tags: Iterable[str]) -> str:
    """Return the run that most processes name, empty if none does.

    >>> run_in_tags(["run=llama-3.1", "4711", "run=llama-3.1", "my_app", "run=bert"])
    'llama-3-1'
    """
    names = [run_name(tag.removeprefix(RUN_TAG)) for tag in tags if tag.startswith(RUN_TAG)]
    named = Counter(filter(None, names))
    return max(named, key=lambda run: (named[run], run), default="")


def assign_run(
    row: Node, runs: Mapping[str, int], labels: Mapping[str, str] = NO_LABELS, *, now: datetime
) -> None:
    """Let a node train the run that most of its series or processes name; without any it is idle.

    Raises RefusedError if the run is simulated or imported, or there are too many.
    """
    before = row.run if row.run and row.run.finished_at is None else None
    # What a training job reports itself outweighs labels.
    if before is not None and before.session != SESSION:
        return
    name = max(runs, key=lambda run: (runs[run], run)) if runs else ""
    if name == (before.name if before else ""):
        return
    run = None
    if name:
        kind = row.instance_type if row.instance_type in catalog.instances() else None
        of_run = {"namespace": labels["namespace"]} if "namespace" in labels else None
        line = RunLine(run=name, session=SESSION, instance_type=kind, labels=of_run)
        run = refresh_run(line, now=now)
        if run.session == SESSION and run.phase != Run.Phase.TRAINING:
            run.phase, run.phase_since, run.finished_at = Run.Phase.TRAINING, now, None
            run.save(update_fields=["phase", "phase_since", "finished_at"])
    Node.objects.filter(pk=row.pk).update(run=run)


def update_runs(heard: Collection[str], *, now: datetime) -> None:
    """Update the runs that labels alone name: those of the nodes just heard, and ended ones."""
    active = Run.objects.filter(session=SESSION, finished_at=None)
    in_use = Count("nodes", filter=Q(nodes__retired_at=None))
    n_nodes = dict(active.annotate(n=in_use).values_list("pk", "n"))
    over = [pk for pk, n in n_nodes.items() if not n]
    if over:
        Run.objects.filter(pk__in=over).update(
            finished_at=now, phase=Run.Phase.FINISHED, phase_since=now
        )
    for pk in active.filter(nodes__name__in=heard).values_list("pk", flat=True).distinct():
        Run.objects.filter(pk=pk).update(heard_at=now, paid_until=now, n_nodes=n_nodes[pk])
