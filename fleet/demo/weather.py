"""The demo's weather: faults that come by themselves, the same for the same seed and hour."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from fleet.models import InjectedFault, Node, Run
from fleet.simulated.plans import publish_plan
from telemetry.simulate.scenario import FAULTS
from telemetry.store.hot import HotStore

# Real fleets of this size see a fault in days; a demo that takes days shows nothing. This is
# the whole fleet's rate, about one fault in forty minutes.
FAULTS_PER_HOUR = 1.5
PAST_EVERY_HOURS = 3
LEAVE_IN_PEACE = timedelta(hours=2)  # a run that compiles or warms up has no steps to slow
AHEAD = timedelta(hours=2)
# A newcomer should not have to wait for the weather, neither for a fault nor for its end.
WELCOME_AFTER = timedelta(seconds=60)
CALM_FOR = timedelta(minutes=4)


@dataclass(frozen=True, slots=True)
class Front:
    """A kind of fault the weather brings: how strong and how long, from and to."""

    kind: str
    magnitude: tuple[float, float]
    duration_s: tuple[float, float] = (180, 600)
    weight: float = 1.0


FRONTS = (
    Front("efa_latency", (2, 4), weight=3),
    Front("efa_loss", (0.008, 0.02), weight=2),
    Front("slow_core", (1.4, 2.0), weight=2),
    Front("throttle", (1.4, 2.0), weight=1),
    Front("hbm_slow", (0.35, 0.55), weight=2),
    Front("node_silent", (1, 1), duration_s=(60, 240), weight=2),
)


def brew(runs: Sequence[Run], *, hour: datetime) -> list[InjectedFault]:
    """Return the unsaved faults that begin within one hour, the same however often asked."""
    rng = np.random.default_rng([int(hour.timestamp()) // 3600, len(runs)])
    starts_s = np.sort(rng.uniform(0, 3600, rng.poisson(FAULTS_PER_HOUR)))
    # Every node is as likely to fail as any other.
    sizes = np.array([run.n_nodes for run in runs])
    hit = rng.choice(len(runs), size=len(starts_s), p=sizes / sizes.sum())
    return [
        strike(runs[i], at=hour + timedelta(seconds=int(start_s)), rng=rng)
        for i, start_s in zip(hit, starts_s, strict=True)
    ]


def strike(
    run: Run, *, at: datetime, rng: np.random.Generator, kind: str | None = None
) -> InjectedFault:
    """Return one unsaved fault of a run, of a kind that its nodes can have."""
    nodes = list(run.nodes.all())
    node = nodes[rng.integers(len(nodes))]
    fronts = [f for f in FRONTS if _parts(node, f.kind) and kind in (None, f.kind)]
    weights = np.array([front.weight for front in fronts])
    front = fronts[rng.choice(len(fronts), p=weights / weights.sum())]
    parts = _parts(node, front.kind)
    has_device = FAULTS[front.kind].device_part is not None
    return InjectedFault(
        run=run,
        node=node,
        kind=front.kind,
        device=int(rng.integers(parts)) if has_device else None,
        magnitude=round(float(rng.uniform(*front.magnitude)), 2),
        starts_at=at,
        ends_at=at + timedelta(seconds=int(rng.uniform(*front.duration_s))),
    )


def _parts(node: Node, kind: str) -> int:
    """Count the places of a node where such a fault may sit; 1 where it is the node itself."""
    part = FAULTS[kind].device_part
    # Of an accelerator that is one core, a slow core is the same as a throttled whole.
    if kind == "slow_core" and node.n_cores == node.n_devices:
        return 0
    return {"core": node.n_cores, "device": node.n_devices, "efa": node.n_efa, None: 1}[part]


def extend(hot: HotStore, *, now: datetime) -> list[InjectedFault]:
    """Make sure that the next hours have their weather; what is there already stays."""
    last = InjectedFault.objects.filter(injected_by="").order_by("-starts_at").first()
    known_until = last.starts_at if last else now
    runs = list(Run.objects.active().simulated().prefetch_related("nodes").order_by("pk"))
    if not runs or known_until > now + AHEAD:
        return []
    hour = now.replace(minute=0, second=0, microsecond=0)
    hours = [hour + timedelta(hours=i) for i in range(1 + int(AHEAD.total_seconds() // 3600))]
    faults = [fault for each in hours for fault in brew(runs, hour=each)]
    fresh = [fault for fault in faults if fault.starts_at > max(now, known_until)]
    InjectedFault.objects.bulk_create(fresh)
    for run in {fault.run for fault in fresh}:
        publish_plan(hot, run, now=now)
    return fresh


def brew_past(*, now: datetime) -> list[InjectedFault]:
    """Give the runs' past its weather: calmer than the present, and over by now."""
    runs = list(Run.objects.active().simulated().prefetch_related("nodes").order_by("pk"))
    first = min(run.started_at for run in runs).replace(minute=0, second=0, microsecond=0)
    n_hours = int((now - first).total_seconds() // 3600) + 1
    hours = [first + timedelta(hours=i) for i in range(0, n_hours, PAST_EVERY_HOURS)]
    faults = [fault for hour in hours for fault in brew(runs, hour=hour)]
    settled = [
        fault
        for fault in faults
        if fault.starts_at > fault.run.started_at + LEAVE_IN_PEACE and fault.ends_at < now
    ]
    return InjectedFault.objects.bulk_create(settled)


def welcome(hot: HotStore, *, now: datetime) -> InjectedFault | None:
    """Bring one fault to the largest run soon, unless one is under way or coming anyway."""
    soon = InjectedFault.objects.filter(starts_at__lte=now + CALM_FOR, ends_at__gt=now)
    run = Run.objects.active().simulated().prefetch_related("nodes").order_by("-n_nodes").first()
    if run is None or soon.filter(run=run).exists():
        return None
    rng = np.random.default_rng(int(now.timestamp()))
    fault = strike(run, at=now + WELCOME_AFTER, rng=rng, kind="efa_latency")
    fault.save()
    publish_plan(hot, run, now=now)
    return fault
