"""Known phases of a run by input tier."""

from datetime import UTC, datetime

import msgspec
import pytest

from drills.playback import follow_reported, reported_phase
from fleet.models import Run
from telemetry.simulate.inputs import FULL, TIERS
from telemetry.simulate.plan import Plan
from telemetry.simulate.timeline import start_clock
from tests.telemetry.simulate.played import SMALL

CLOCK = start_clock(Plan(run=SMALL, seed=1, epoch_s=1000))


@pytest.mark.parametrize(
    ("tier", "phase", "step", "known"),
    [
        ("full", "warming_up", 0, "warming_up"),
        ("agent_hooks", "pending", 0, "pending"),
        ("agent_hooks", "warming_up", 0, "compiling"),
        ("agent_hooks", "training", 0, "compiling"),
        ("agent_hooks", "finished", 9, "finished"),
        ("agent_only", "compiling", 0, "training"),
        ("agent_only", "compiling", 50, "compiling"),
        ("prometheus_15s", "finished", 9, "training"),
    ],
)
def test_only_what_is_reported_is_known(tier: str, phase: str, step: int, known: str) -> None:
    clock = msgspec.structs.replace(CLOCK, phase=phase, step=step)
    inputs = FULL if tier == "full" else TIERS[tier]

    assert reported_phase(inputs, clock, before=Run.Phase.PENDING) == known


@pytest.mark.parametrize("tier", ["hooks_only", "agent_only"])
def test_a_run_whose_job_waits_for_a_node_says_nothing(tier: str) -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    run = Run(phase=Run.Phase.TRAINING, phase_since=since)
    waits = msgspec.structs.replace(CLOCK, phase="pending", phase_since_s=2000.0, step=50)
    follow_reported(run, waits, TIERS[tier])

    assert (run.phase, run.phase_since) == (Run.Phase.TRAINING, since)
