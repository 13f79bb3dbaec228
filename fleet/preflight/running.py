"""Taking preflights through their stages; whoever comes second to a stage changes nothing."""

from datetime import datetime

from django.db import transaction

from fleet.models import Node, Preflight, PreflightNode
from fleet.preflight.faults import faults_of
from fleet.preflight.found import found_of, kept, verdict_of
from fleet.preflight.packing import packed, unpacked
from fleet.preflight.stages import stages
from telemetry import catalog
from telemetry.preflight.judging import judge
from telemetry.preflight.measured import Measured
from telemetry.simulate.bed import Bed


def advance_all(*, now: datetime) -> int:
    """Take every preflight that is under way one stage further; return how many there were."""
    waiting = list(Preflight.objects.under_way().filter(source=Preflight.Source.SIMULATED))
    for preflight in waiting:
        advance(preflight, now=now)
    return len(waiting)


def advance(preflight: Preflight, *, now: datetime) -> bool:
    """Take a preflight one stage further; False where another worker did or it is over.

    The last stage judges what was measured.
    """
    if preflight.is_over:
        return False
    bed, before = bed_of(preflight), preflight.n_done
    stage = stages(len(bed.nodes))[before]
    measured = stage.measure(bed, measured_of(preflight), preflight.take)
    with transaction.atomic():
        mine = Preflight.objects.filter(pk=preflight.pk, n_done=before, finished_at=None)
        if not mine.update(n_done=before + 1, measured=packed(measured)):
            return False
        preflight.n_done, preflight.measured = before + 1, packed(measured)
        if preflight.n_done == preflight.n_stages:
            finish(preflight, measured, now=now)
    return True


def run_through(preflight: Preflight, *, now: datetime) -> None:
    """Take a preflight through all its stages at once."""
    while advance(preflight, now=now):
        pass


def finish(preflight: Preflight, measured: Measured, *, now: datetime) -> None:
    """Judge what was measured, and keep the verdicts."""
    instance = catalog.instances().get(preflight.instance_type)
    found = found_of(judge(measured, instance, take=preflight.take))
    preflight.finished_at = now
    preflight.found = kept(found)
    preflight.verdict = verdict_of(found, take=preflight.take).value
    preflight.save(update_fields=["finished_at", "found", "verdict"])
    PreflightNode.objects.bulk_create(
        PreflightNode(
            preflight=preflight, name=name, verdict=verdict.value, is_chosen=name in found.chosen
        )
        for name, verdict in found.nodes.items()
    )


def bed_of(preflight: Preflight) -> Bed:
    """Return the nodes to probe, with all that is wrong with them."""
    n_devices = Node.objects.filter(name__in=preflight.names).values_list("name", "n_devices")
    return Bed(
        nodes=tuple(preflight.names),
        instance_name=preflight.instance_type,
        seed=preflight.pk,
        faults=faults_of(preflight),
        n_devices=dict(n_devices),
    )


def measured_of(preflight: Preflight) -> Measured:
    """Return what was measured so far."""
    if preflight.measured:
        return unpacked(bytes(preflight.measured))
    instance = catalog.instances().get(preflight.instance_type)
    return Measured.nothing_of(tuple(preflight.names), n_efa=instance.n_efa if instance else 0)
