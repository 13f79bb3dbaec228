"""Simulated runs and their nodes, as rows: made for the demo and for drills alike."""

from datetime import datetime

import msgspec
from django.db import transaction

from fleet.models import Node, Run
from fleet.pricing.prices import opening
from telemetry import catalog
from telemetry.simulate.plan import Plan, RunSpec


@transaction.atomic
def create_run(
    spec: RunSpec, *, started_at: datetime, team: str = "", purpose: str = "", zone: str = ""
) -> Run:
    """Create one simulated run with its nodes."""
    instance = catalog.training_instance(spec.instance)
    run = Run.objects.create(
        name=spec.name,
        team=team,
        purpose=purpose,
        model=spec.model,
        instance_type=spec.instance,
        n_nodes=spec.nodes,
        tp=spec.tp,
        pp=spec.pp,
        seq_len=spec.seq_len,
        global_batch=spec.global_batch,
        precision=spec.precision,
        optimizer=spec.optimizer,
        tokens_per_epoch=spec.tokens_per_epoch,
        is_simulated=True,
        plan=msgspec.to_builtins(spec),
        phase_since=started_at,
        started_at=started_at,
        **opening(team, instance.name, n_nodes=spec.nodes, began=started_at),
    )
    Node.objects.bulk_create(_nodes(run, spec, zone=zone))
    return run


def _nodes(run: Run, spec: RunSpec, *, zone: str) -> list[Node]:
    instance = catalog.instance(spec.instance)
    plan = Plan(run=spec, seed=run.pk, epoch_s=0)
    return [
        Node(
            name=name,
            instance_type=instance.name,
            zone=zone,
            source=Node.Source.SIMULATED,
            shard=plan.shards[rank // plan.shard_size],
            run=run,
            rank=rank,
            n_cores=instance.n_cores,
            n_devices=instance.n_devices,
            n_efa=instance.n_efa,
            first_seen_at=run.started_at,
        )
        for rank, name in enumerate(spec.node_names)
    ]
