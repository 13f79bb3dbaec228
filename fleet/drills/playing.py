"""Play a scenario through detection and alerts, second by second, faster than the clock."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from fleet.drills.database import private_database
from fleet.drills.firings import Firing, Firings
from fleet.drills.stage import STRETCH_S, Stage
from fleet.models import Run
from fleet.replaying import Replay
from fleet.simulated.following import follow
from fleet.simulated.runs import create_run
from telemetry.simulate.plan import Plan
from telemetry.simulate.scenario import Scenario
from telemetry.simulate.shard import RunClock

# Every scenario begins at the same second, so that its answer is the same tomorrow.
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH_S = int(EPOCH.timestamp())


@dataclass(frozen=True, slots=True)
class Played:
    """What a scenario's plans were, and which alerts fired while they were played."""

    plans: tuple[Plan, ...]
    firings: tuple[Firing, ...]


def play_scenario(scenario: Scenario, *, seed: int | None = None) -> Played:
    """Play a scenario from its first second to its last, and watch it each second.

    Detection sees what nodes and training report, in a database where no fault is written
    down; what is wrong it must find out.
    """
    plans = scenario.plans(epoch_s=EPOCH_S, seed=seed)
    with private_database():
        return Played(plans, tuple(_firings(plans, int(scenario.duration_s))))


def _firings(plans: tuple[Plan, ...], duration_s: int) -> Iterator[Firing]:
    runs = {plan.run.name: create_run(plan.run, started_at=EPOCH) for plan in plans}
    stage, firings = Stage(plans), Firings(EPOCH_S)
    replay = Replay(stage, list(runs.values()))
    for start_s in range(0, duration_s, STRETCH_S):
        until = EPOCH_S + min(start_s + STRETCH_S, duration_s)
        entered = stage.play(until)
        for second in range(EPOCH_S + start_s + (start_s > 0), until + 1):
            stage.turn_to(second)
            for name, clock in entered.get(second, ()):
                _enter(runs[name], clock)
            firings.note(replay.look(second), at_s=second - EPOCH_S)
    yield from firings.all()


def _enter(run: Run, clock: RunClock) -> None:
    """Let the run's row say what its clock says, as the live fleet's rows do."""
    follow(run, clock)
    run.save()
