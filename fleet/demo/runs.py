"""The demo fleet: four teams and their runs, made once and then kept alive by the workers."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from fleet.demo.contracts import create_budgets, create_contracts
from fleet.models import Run
from fleet.simulated import runs as simulated
from telemetry.simulate.plan import RunSpec


@dataclass(frozen=True, slots=True)
class DemoRun:
    """One run of the demo, the team behind it, and how long ago it began."""

    spec: RunSpec
    team: str
    purpose: str
    zone: str
    age: timedelta = timedelta(hours=24)


# One pass over the text that both arms of the 13B trial train on.
BAKE_OFF_TOKENS = 2_000_000_000
# ImageNet-1k has 1,281,167 training images (O. Russakovsky et al., arXiv:1409.0575).
IMAGENET_TOKENS = 1_281_167 * 257
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
            optimizer="AdamW",
            tokens_per_epoch=IMAGENET_TOKENS,
        ),
        team="retail vision",
        purpose="Two-day bake-off, the Trainium2 arm",
        zone="us-east-2b",
        age=timedelta(hours=12),
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
            optimizer="AdamW",
            tokens_per_epoch=IMAGENET_TOKENS,
        ),
        team="retail vision",
        purpose="Two-day bake-off, the p5 arm",
        zone="us-east-1a",
        age=timedelta(hours=12),
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
    DemoRun(
        RunSpec(
            name="trial-13b-trn2",
            model="llama2-13b",
            instance="trn2.48xlarge",
            nodes=4,
            tp=8,
            seq_len=4096,
            global_batch=256,
            compile_s=2700,
            checkpoint_every_s=5600,
            optimizer="AdamW",
            tokens_per_epoch=BAKE_OFF_TOKENS,
        ),
        team="LLM",
        purpose="13B on Trainium2: does the pretraining stay?",
        zone="us-east-2b",
        age=timedelta(hours=11),
    ),
    DemoRun(
        RunSpec(
            name="trial-13b-p5",
            model="llama2-13b",
            instance="p5.48xlarge",
            nodes=4,
            tp=8,
            seq_len=4096,
            global_batch=256,
            compile_s=0,
            checkpoint_every_s=5600,
            optimizer="AdamW",
            tokens_per_epoch=BAKE_OFF_TOKENS,
        ),
        team="LLM",
        purpose="13B on p5, the same batch and optimizer",
        zone="us-east-2b",
        age=timedelta(hours=11),
    ),
)


@transaction.atomic
def create_fleet(*, now: datetime, longest: timedelta) -> list[Run]:
    """Create the demo's runs and nodes, begun in the past; returns them with their nodes."""
    create_contracts(now=now)
    for demo in FLEET:
        create_run(demo, started_at=now - min(demo.age, longest))
    create_budgets(now=now)
    return list(Run.objects.simulated().prefetch_related("nodes").order_by("pk"))


def create_run(demo: DemoRun, *, started_at: datetime) -> Run:
    """Create one run of the demo with its nodes."""
    return simulated.create_run(
        demo.spec, started_at=started_at, team=demo.team, purpose=demo.purpose, zone=demo.zone
    )
