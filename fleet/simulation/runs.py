"""Create simulated runs and their nodes, and keep their rows up to date."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import msgspec
from django.db import transaction

from fleet.models import Annotation, InjectedFault, Node, Run
from fleet.runs.annotations import annotate_phase, announced, benign_of
from fleet.runs.prices import opening_price
from telemetry import catalog
from telemetry.simulate.inputs import live_inputs
from telemetry.simulate.plan import Fault, Noise, Plan, RunSpec, shard_nodes_for
from telemetry.simulate.timeline import RunClock
from telemetry.statistics.bootstrap import RUN_CV
from telemetry.store.hot import HotStore


@transaction.atomic
def create_run(
    spec: RunSpec,
    *,
    started_at: datetime,
    team: str = "",
    purpose: str = "",
    zone: str = "",
    labels: Mapping[str, str] = MappingProxyType({}),
    rack_prefix: str = "r",
) -> Run:
    """Create one simulated run with its nodes.

    Racks of one name are the same rack for all runs of a zone.
    """
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
        recipe=spec.recipe or None,
        seq_len=spec.seq_len,
        global_batch=spec.global_batch,
        precision=spec.precision,
        optimizer=spec.optimizer,
        tokens_per_epoch=spec.tokens_per_epoch,
        is_simulated=True,
        labels=dict(labels),
        plan=msgspec.to_builtins(spec),
        shard_nodes=shard_nodes_for(spec.nodes),
        phase_since=started_at,
        started_at=started_at,
        **opening_price(team, instance.name, n_nodes=spec.nodes, began=started_at),
    )
    Node.objects.bulk_create(_nodes(run, spec, zone=zone, rack_prefix=rack_prefix))
    return run


def _nodes(run: Run, spec: RunSpec, *, zone: str, rack_prefix: str) -> list[Node]:
    instance = catalog.instance(spec.instance)
    shards = Plan(run=spec, seed=run.pk, epoch_s=0, shard_size=run.shard_nodes).shards
    return [
        Node(
            name=name,
            instance_type=instance.name,
            zone=zone,
            rack="" if (rack := spec.rack_of(rank)) is None else f"{rack_prefix}{rack}",
            source=Node.Source.SIMULATED,
            shard=shards[rank // run.shard_nodes],
            run=run,
            rank=rank,
            n_cores=instance.n_cores,
            n_devices=instance.n_devices,
            n_efa=instance.n_efa,
            first_seen_at=run.started_at,
        )
        for rank, name in enumerate(spec.node_names)
    ]


# Past faults stay in the plan for as long as workers may still be catching up on them.
REMEMBER = timedelta(minutes=30)


def fault_of(injected: InjectedFault, *, epoch_s: int) -> Fault:
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
    epoch_s = int(run.started_at.timestamp())
    spec = RunSpec(**run.plan)
    return Plan(
        run=spec,
        inputs=live_inputs(spec.tier),
        # Runs of one configuration differ, as published ones do.
        noise=Noise(run_to_run_cv=RUN_CV),
        seed=run.pk,
        epoch_s=epoch_s,
        shard_size=run.shard_nodes,
        faults=tuple(fault_of(fault, epoch_s=epoch_s) for fault in faults),
        benign=benign_of(run, compiles, epoch_s=epoch_s),
    )


def publish_plan(hot: HotStore, run: Run, *, now: datetime) -> None:
    """Publish a run's plan to the workers, with recent, active and future faults."""
    faults = run.injected_faults.filter(ends_at__gte=now - REMEMBER).select_related("node", "run")
    compiles = announced(run).filter(ends_at__gte=now - REMEMBER)
    hot.put_plan(run.name, msgspec.json.encode(plan_of(run, faults, compiles)))


def publish_plans(hot: HotStore, *, now: datetime) -> None:
    """Publish every plan, and the runs' clocks in case Redis has lost them."""
    active = list(Run.objects.active().simulated())
    for run in active:
        publish_plan(hot, run, now=now)
        publish_clocks(hot, run)
    for name in set(hot.plans()) - {run.name for run in active}:
        hot.drop_plan(name)


def publish_clocks(hot: HotStore, run: Run) -> None:
    """Publish a run's clocks where Redis has none."""
    for shard, known in hot.clocks(list(run.clock)).items():
        if known is None:
            after = msgspec.json.encode(run.clock[shard])
            hot.commit(shard, before=None, after=after, blocks=(), steps=None)


FOLLOWED = (
    "phase",
    "phase_progress_ratio",
    "phase_since",
    "last_step",
    "n_tokens",
    "finished_at",
    "paid_until",
)
OVER = (Run.Phase.FINISHED, Run.Phase.FAILED)
# Counts move with every step; a page reads them from the steps, so the row may lag a little.
COUNT_EVERY_S = 10


def follow_runs(hot: HotStore, *, now: datetime, watcher: int = 0, of: int = 1) -> None:
    """Store what the clocks of a watcher's runs say: new phases at once, counts now and then."""
    is_count_due = int(now.timestamp()) % COUNT_EVERY_S == 0
    simulated = Run.objects.active().simulated().watched_by(watcher, of)
    phases = dict(simulated.values_list("name", "phase"))
    encoded = hot.clocks([f"{name}/0" for name in phases])
    clocks = {
        name: msgspec.json.decode(its, type=RunClock)
        for name in phases
        if (its := encoded[f"{name}/0"]) is not None
    }
    due = [name for name, clock in clocks.items() if is_count_due or clock.phase != phases[name]]
    changed = list(simulated.filter(name__in=due).defer("plan", "clock")) if due else []
    for run in changed:
        was = run.phase
        follow(run, clocks[run.name])
        if run.phase != was:
            annotate_phase(run, was=was, at=run.phase_since)
    if changed:
        Run.objects.bulk_update(changed, FOLLOWED)


def follow(run: Run, clock: RunClock) -> None:
    """Update a run from its clock; counts never decrease."""
    run.phase = clock.phase
    run.phase_since = datetime.fromtimestamp(clock.phase_since_s, UTC)
    run.phase_progress_ratio = clock.phase_progress_ratio
    run.last_step = max(run.last_step, clock.step)
    run.n_tokens = max(run.n_tokens, int(clock.n_tokens))
    played_to = datetime.fromtimestamp(clock.tick, UTC)
    run.paid_until = max(run.paid_until or played_to, played_to)
    if run.phase in OVER and run.finished_at is None:
        run.finished_at = played_to


def store_clocks(hot: HotStore) -> None:
    """Copy the clocks into the database, so that losing Redis does not lose the runs."""
    runs = list(Run.objects.active().simulated())
    plans = hot.plans()
    for run in runs:
        if run.name in plans:
            run.clock |= _clocks(hot, msgspec.json.decode(plans[run.name], type=Plan))
    Run.objects.bulk_update(runs, ["clock"])


def _clocks(hot: HotStore, plan: Plan) -> Mapping[str, object]:
    clocks = hot.clocks(plan.shards)
    return {shard: msgspec.json.decode(clock) for shard, clock in clocks.items() if clock}
