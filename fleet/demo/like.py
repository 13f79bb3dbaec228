"""The demo's like run: an hour in FP8 before the bake-off, over and its nodes given back."""

from datetime import datetime, timedelta

import msgspec
from django.db import transaction

from fleet.compiles.simulated import keep_first
from fleet.demo.runs import FLEET
from fleet.models import Run
from fleet.simulated import runs as simulated
from fleet.simulated.following import follow
from fleet.simulated.plans import plan_of
from telemetry.simulate.shard import clock_at, played_steps, start_clock
from telemetry.store import durable

NAME, LIKE = "vit-fp8-probe", "vit-bakeoff-trn2"
AGO, N_STEPS, COMPILE_S = timedelta(hours=30), 4_000, 900.0
LONGEST_S = 3 * 3600


@transaction.atomic
def ensure_probe(*, now: datetime) -> Run | None:
    """Make the like run, played to its end, unless it is there; return it if this call did."""
    if Run.objects.filter(name=NAME).exists():
        return None
    demo = next(each for each in FLEET if each.spec.name == LIKE)
    spec = msgspec.structs.replace(
        demo.spec, name=NAME, precision="fp8", compile_s=COMPILE_S, max_steps=N_STEPS
    )
    run = simulated.create_run(
        spec,
        started_at=now - AGO,
        team=demo.team,
        purpose="An hour in FP8, before the bake-off",
        zone=demo.zone,
    )
    plan = plan_of(run, [])
    until = plan.epoch_s + LONGEST_S
    steps = played_steps(plan, start_clock(plan), until)
    durable.write_steps(steps)
    over_s = int(steps.ended_at_s[-1]) + 1
    follow(run, clock_at(plan, start_clock(plan), over_s))
    run.clock = {"over": {}}
    run.save()
    run.nodes.all().delete()
    keep_first(run, spec, n_kept=0, now=now, noted_at=None)
    return run
