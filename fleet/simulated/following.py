"""Runs as they live: phase, progress and counts, followed from the simulator's clocks."""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from fleet.annotating import annotate_phase
from fleet.models import Run
from telemetry.simulate.scenario import Plan
from telemetry.simulate.shard import RunClock
from telemetry.store.hot import HotStore

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


def follow_runs(hot: HotStore, *, now: datetime) -> None:
    """Write down what the runs' clocks say: a new phase at once, counts every few seconds."""
    is_count_due = int(now.timestamp()) % COUNT_EVERY_S == 0
    changed = []
    for run in Run.objects.active().simulated():
        encoded = hot.clock(f"{run.name}/0")
        if encoded is None:
            continue
        clock = msgspec.json.decode(encoded, type=RunClock)
        if clock.phase != run.phase or is_count_due:
            was = run.phase
            follow(run, clock)
            if run.phase != was:
                annotate_phase(run, was=was, at=run.phase_since)
            changed.append(run)
    if changed:
        Run.objects.bulk_update(changed, FOLLOWED)


def follow(run: Run, clock: RunClock) -> None:
    """Make a run say what its clock says; counts never go back."""
    run.phase = clock.phase
    run.phase_since = datetime.fromtimestamp(clock.phase_since_s, UTC)
    run.phase_progress_ratio = clock.phase_progress_ratio
    run.last_step = max(run.last_step, clock.step)
    run.n_tokens = max(run.n_tokens, int(clock.n_tokens))
    played_to = datetime.fromtimestamp(clock.tick, UTC)
    run.paid_until = max(run.paid_until or played_to, played_to)
    if run.phase in OVER and run.finished_at is None:
        run.finished_at = played_to


def keep_clocks(hot: HotStore) -> None:
    """Copy the clocks into the database, so that losing Redis does not lose the runs."""
    runs = list(Run.objects.active().simulated())
    plans = hot.plans()
    for run in runs:
        if run.name in plans:
            run.clock |= _clocks(hot, msgspec.json.decode(plans[run.name], type=Plan))
    Run.objects.bulk_update(runs, ["clock"])


def _clocks(hot: HotStore, plan: Plan) -> Mapping[str, object]:
    clocks = {shard: hot.clock(shard) for shard in plan.shards}
    return {shard: msgspec.json.decode(clock) for shard, clock in clocks.items() if clock}
