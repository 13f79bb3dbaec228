"""The demo fleet: four teams and their runs, made once and then kept alive by the workers."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from django.db import transaction

from fleet.models import Node, Run
from telemetry import catalog
from telemetry.simulate.plan import Plan, RunSpec


@dataclass(frozen=True, slots=True)
class DemoRun:
    """One run of the demo, the team behind it, and how long ago it began."""

    spec: RunSpec
    team: str
    purpose: str
    zone: str
    age: timedelta = timedelta(hours=24)


# Periods do not divide a day: a newcomer should not meet every checkpoint in the first minute.
FLEET = (
    DemoRun(
        RunSpec(
            name="pretrain-gpt",
            model="llama2-13b",
            instance="trn2.48xlarge",
            nodes=12,
            tp=8,
            seq_len=4096,
            global_batch=192,
            compile_s=2700,
            checkpoint_every_s=3000,
            evaluate_every_s=7000,
        ),
        team="LLM",
        purpose="Multi-week pretraining; checkpoints to FSx",
        zone="us-east-2b",
    ),
    DemoRun(
        RunSpec(
            name="vit-bakeoff-trn2",
            model="vit-huge",
            instance="trn2.48xlarge",
            nodes=4,
            seq_len=257,
            global_batch=4096,
            compile_s=1500,
            checkpoint_every_s=7000,
        ),
        team="retail vision",
        purpose="Two-day bake-off, the Trainium2 arm",
        zone="us-east-2b",
    ),
    DemoRun(
        RunSpec(
            name="vit-bakeoff-p5",
            model="vit-huge",
            instance="p5.48xlarge",
            nodes=4,
            seq_len=257,
            global_batch=4096,
            compile_s=0,
            checkpoint_every_s=7000,
        ),
        team="retail vision",
        purpose="Two-day bake-off, the p5 arm",
        zone="us-east-1a",
    ),
    DemoRun(
        RunSpec(
            name="longctx",
            model="llama2-7b",
            instance="trn1.32xlarge",
            nodes=4,
            tp=8,
            seq_len=16384,
            global_batch=16,
            compile_s=5400,
            checkpoint_every_s=5000,
        ),
        team="research",
        purpose="Long context on four nodes; compiled overnight",
        zone="us-west-2d",
    ),
    DemoRun(
        RunSpec(
            name="longctx-check",
            model="llama2-7b",
            instance="trn1.32xlarge",
            nodes=1,
            tp=8,
            seq_len=32768,
            global_batch=8,
            compile_s=3600,
        ),
        team="research",
        purpose="Mini-training check before the full run",
        zone="us-west-2d",
        age=timedelta(minutes=22),
    ),
    DemoRun(
        RunSpec(
            name="search-bert",
            model="bert-large",
            instance="trn1.2xlarge",
            nodes=8,
            seq_len=128,
            global_batch=16384,
            compile_s=780,
            checkpoint_every_s=3300,
        ),
        team="search",
        purpose="Weekly fine-tune, moved from GPUs",
        zone="us-east-1c",
    ),
)


@transaction.atomic
def create_fleet(*, now: datetime, longest: timedelta) -> list[Run]:
    """Create the demo's runs and nodes, begun in the past; returns them with their nodes."""
    for demo in FLEET:
        create_run(demo, started_at=now - min(demo.age, longest))
    return list(Run.objects.simulated().prefetch_related("nodes").order_by("pk"))


@transaction.atomic
def create_run(demo: DemoRun, *, started_at: datetime) -> Run:
    """Create one simulated run with its nodes."""
    price = catalog.training_instance(demo.spec.instance).price
    run = Run.objects.create(
        name=demo.spec.name,
        team=demo.team,
        purpose=demo.purpose,
        model=demo.spec.model,
        instance_type=demo.spec.instance,
        n_nodes=demo.spec.nodes,
        tp=demo.spec.tp,
        pp=demo.spec.pp,
        seq_len=demo.spec.seq_len,
        global_batch=demo.spec.global_batch,
        precision=demo.spec.precision,
        usd_per_node_hour=price.usd_per_hour,
        price_basis=f"{price.basis}, {price.date}",
        is_simulated=True,
        plan=msgspec.to_builtins(demo.spec),
        phase_since=started_at,
        started_at=started_at,
    )
    Node.objects.bulk_create(_nodes(run, demo))
    return run


def _nodes(run: Run, demo: DemoRun) -> list[Node]:
    instance = catalog.instance(demo.spec.instance)
    plan = Plan(run=demo.spec, seed=run.pk, epoch_s=0)
    return [
        Node(
            name=name,
            instance_type=instance.name,
            zone=demo.zone,
            source=Node.Source.SIMULATED,
            shard=plan.shards[rank // plan.shard_size],
            run=run,
            rank=rank,
            n_cores=instance.n_cores,
            n_devices=instance.n_devices,
            n_efa=instance.n_efa,
            first_seen_at=run.started_at,
        )
        for rank, name in enumerate(demo.spec.node_names)
    ]
