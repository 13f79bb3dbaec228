"""Drills: faults put into a simulated run on purpose, to see that they are noticed."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from fleet.models import InjectedFault, Node, Run
from fleet.simulated.plans import publish_plan
from telemetry.simulate.scenario import Fault, RunSpec, ScenarioError, validate_fault
from telemetry.store.hot import HotStore, StoreUnavailable

# A fault starts with the next tick that no worker can have simulated yet.
HEAD_START_S = 2
LONGEST_S = 3600.0


class DrillError(ValueError):
    """A drill that cannot be; ``field`` is the one to mend."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def inject(
    hot: HotStore,
    run: Run,
    *,
    kind: str,
    node: Node | None,
    device: int | None,
    magnitude: float,
    duration_s: float,
    by: str,
    now: datetime,
) -> InjectedFault:
    """Put a fault into a simulated run, from the next tick on.

    Raises
    ------
    DrillError
        Where the run is real or over, or a field does not fit the fault.
    StoreUnavailable
        Where the workers cannot be reached; then nothing is recorded, and nothing will run.
    """
    _check(run, node=node, duration_s=duration_s)
    fault = Fault(
        kind=kind,
        node=node.name if node else None,
        run=None if node else run.name,
        device=device,
        start_s=0.0,
        duration_s=duration_s,
        magnitude=magnitude,
    )
    try:
        validate_fault(fault, RunSpec(**run.plan))
    except ScenarioError as error:
        raise DrillError(error.field, error.message) from error
    starts_at = now.replace(microsecond=0) + timedelta(seconds=HEAD_START_S)
    injected = InjectedFault(
        run=run,
        node=node,
        kind=kind,
        device=device,
        magnitude=magnitude,
        starts_at=starts_at,
        ends_at=starts_at + timedelta(seconds=duration_s),
        injected_by=by,
    )
    _save_and_publish(hot, injected, now=now)
    return injected


def end(hot: HotStore, injected: InjectedFault, *, now: datetime) -> None:
    """Take a fault out of its run before its time, from the next tick on.

    Raises
    ------
    DrillError
        Where it has not begun, or is over anyway.
    StoreUnavailable
        Where the workers cannot be reached; then the fault ends when it was going to.
    """
    ends_at = now.replace(microsecond=0) + timedelta(seconds=HEAD_START_S)
    if not injected.starts_at < ends_at < injected.ends_at:
        raise DrillError("fault", "is not under way; there is nothing to end")
    before, injected.ends_at = injected.ends_at, ends_at
    try:
        _save_and_publish(hot, injected, now=now)
    except StoreUnavailable:
        injected.ends_at = before
        raise


def _save_and_publish(hot: HotStore, injected: InjectedFault, *, now: datetime) -> None:
    """Record a fault and hand it to the workers: both, or neither."""
    # A store that does not answer must not hold up the database, nor find the plan later among
    # what was sent to it while it hung.
    hot.plan(injected.run.name)
    with transaction.atomic():
        injected.save()
        publish_plan(hot, injected.run, now=now)


def why_not() -> str:
    """Say why nothing can be drilled here; empty where it can."""
    if settings.DEMO or settings.ALLOW_DRILLS:
        return ""
    return "drills are switched off here; set TRNWATCH_ALLOW_DRILLS=1"


def _check(run: Run, *, node: Node | None, duration_s: float) -> None:
    """Refuse a drill of what is real or over, or that would last too long."""
    if reason := why_not():
        raise DrillError("run", reason)
    if not run.is_simulated or run.finished_at is not None:
        raise DrillError("run", "only a simulated run that is under way can be drilled")
    if not 1 <= duration_s <= LONGEST_S:
        raise DrillError("duration_s", f"must lie between 1 and {LONGEST_S:.0f} seconds")
    if node is not None and node.run_id != run.pk:
        raise DrillError("node", f"{node.name} is not a node of {run.name}")
