"""Plans: what the simulator plays, kept by the database and handed to the workers in Redis."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from fleet.announced import announced, benign_of
from fleet.models import Annotation, InjectedFault, Run
from telemetry.simulate.scenario import Fault, Plan, RunSpec
from telemetry.store.hot import HotStore

# Past faults stay in the plan for as long as workers may still be catching up on them.
REMEMBER = timedelta(minutes=30)


def fault_of(injected: InjectedFault, *, epoch_s: int) -> Fault:
    """Write an injected fault as the simulator reads it."""
    start_s = injected.starts_at.timestamp()
    return Fault(
        kind=injected.kind,
        node=injected.node.name if injected.node else None,
        run=None if injected.node else injected.run.name,
        device=injected.device,
        start_s=start_s - epoch_s,
        duration_s=injected.ends_at.timestamp() - start_s,
        magnitude=injected.magnitude,
    )


def plan_of(
    run: Run, faults: Iterable[InjectedFault], compiles: Iterable[Annotation] = ()
) -> Plan:
    """Write a simulated run with these faults and announced compiles as the simulator reads it."""
    epoch_s = int(run.started_at.timestamp())
    return Plan(
        run=RunSpec(**run.plan),
        seed=run.pk,
        epoch_s=epoch_s,
        faults=tuple(fault_of(fault, epoch_s=epoch_s) for fault in faults),
        benign=benign_of(run, compiles, epoch_s=epoch_s),
    )


def publish_plan(hot: HotStore, run: Run, *, now: datetime) -> None:
    """Hand a run's plan to the workers, with the faults that matter from now on."""
    faults = run.injected_faults.filter(ends_at__gte=now - REMEMBER).select_related("node", "run")
    compiles = announced(run).filter(ends_at__gte=now - REMEMBER)
    hot.put_plan(run.name, msgspec.json.encode(plan_of(run, faults, compiles)))


def publish_plans(hot: HotStore, *, now: datetime) -> None:
    """Hand over every plan and, should Redis have lost them, the runs' clocks."""
    active = list(Run.objects.active().simulated())
    for run in active:
        publish_plan(hot, run, now=now)
        for shard, clock in run.clock.items():
            if hot.clock(shard) is None:
                after = msgspec.json.encode(clock)
                hot.commit(shard, before=None, after=after, blocks=(), steps=None)
    for name in set(hot.plans()) - {run.name for run in active}:
        hot.drop_plan(name)
