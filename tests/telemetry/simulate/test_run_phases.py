"""Phases of a run: waiting, compiling, warming up, training, pausing, ended."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from telemetry import catalog
from telemetry.simulate.plan import Fault, RunSpec
from telemetry.simulate.shard import RunClock, play, start_clock
from telemetry.simulate.timeline import BOOT_S, WARM_UP_S
from tests.telemetry.simulate.played import EPOCH, VISION, phase, plan_of, played, steps, values


def run(**changes: object) -> RunSpec:
    return msgspec.structs.replace(VISION, **changes)


def clocks(spec: RunSpec, seconds: int, *, faults: Sequence[Fault] = ()) -> list[RunClock]:
    """Return the clock after every tick."""
    plan = plan_of(spec, faults=faults)
    clock, reported = start_clock(plan), []
    for tick in range(EPOCH, EPOCH + seconds):
        clock = play(plan, plan.shards[0], clock, tick).clock
        reported.append(clock)
    return reported


def test_it_goes_through_every_phase_in_order() -> None:
    phases = [clock.phase for clock in clocks(run(compile_s=20, max_steps=5), 80)]

    assert list(dict.fromkeys(phases)) == [
        "pending",
        "compiling",
        "warming_up",
        "training",
        "finished",
    ]
    assert phases.count("compiling") == 20
    assert phases.count("warming_up") == WARM_UP_S


def test_a_warm_cache_needs_no_compilation() -> None:
    assert "compiling" not in {clock.phase for clock in clocks(run(compile_s=0), 30)}


def test_it_compiles_as_long_as_its_model_takes_unless_configured_otherwise() -> None:
    clock = played(plan_of(run(compile_s=None)), 60).clock

    assert clock.phase_ends_s is not None
    assert clock.phase_ends_s - clock.phase_since_s == pytest.approx(
        catalog.model("vit-huge").default_compile_s
    )


def test_progress_rises_from_zero_to_one_in_each_phase() -> None:
    reported = [c for c in clocks(run(compile_s=20), 40) if c.phase == "compiling"]
    progress = [clock.phase_progress_ratio for clock in reported]

    assert progress == sorted(progress)
    assert progress[0] < 0.1
    assert progress[-1] > 0.9


def test_nodes_report_nothing_before_they_have_booted() -> None:
    span = played(plan_of(), 60).span
    seen = np.isfinite(span.values["vcpu_usage_ratio"][:, :, 0])

    assert not seen[: int(BOOT_S) - 1].any()
    assert seen[int(BOOT_S) :].all()


def test_compiling_keeps_the_host_busy_and_the_cores_idle() -> None:
    result = played(plan_of(run(compile_s=100)), 200)

    assert values(result, "vcpu_usage_ratio", 30, 90).mean() > 0.5
    assert values(result, "core_utilization_ratio", 30, 90).max() < 0.05
    assert values(result, "hbm_bandwidth_bytes_per_s", 30, 90).mean() < 1e9
    assert values(result, "core_utilization_ratio", 140, 200).mean() > 0.8
    assert values(result, "vcpu_usage_ratio", 140, 200).mean() < 0.2


def test_it_writes_checkpoints_in_its_rhythm() -> None:
    result = played(plan_of(run(checkpoint_every_s=60)), 400)
    written = np.flatnonzero(result.steps.phases["checkpoint_s"][:, 0])
    began_s = result.steps.ended_at_s[written] - result.steps.step_s[written] - EPOCH

    np.testing.assert_allclose(began_s // 60, np.arange(1, 7))
    assert (began_s % 60 < 2).all()
    assert result.clock.checkpoint_step == result.steps.step[written[-1]] + 1


def test_cores_idle_while_a_checkpoint_is_written() -> None:
    result = played(plan_of(run(checkpoint_every_s=60)), 100)
    row = int(np.flatnonzero(result.steps.phases["checkpoint_s"][:, 0])[0])
    end_s = result.steps.ended_at_s[row] - EPOCH
    lasts_s = float(result.steps.phases["checkpoint_s"][row, 0])
    during = end_s - lasts_s + 1, end_s

    assert lasts_s > 2
    assert values(result, "core_utilization_ratio", *during).mean() < 0.05
    assert values(result, "vcpu_usage_ratio", *during).mean() > 0.2


def test_it_evaluates_in_its_rhythm() -> None:
    result = played(plan_of(run(evaluate_every_s=100)), 400)
    evaluated = np.flatnonzero(result.steps.phases["other_s"][:, 0] > 30)

    assert len(evaluated) == 3
    assert np.ptp(result.steps.phases["other_s"][evaluated]) == 0


def test_a_run_that_is_done_leaves_its_nodes_idle() -> None:
    result = played(plan_of(run(max_steps=20)), 120)

    assert (result.clock.phase, result.clock.step) == ("finished", 20)
    assert values(result, "core_utilization_ratio", 80, 120).max() == 0
    assert values(result, "vcpu_usage_ratio", 80, 120).max() < 0.05


def crash(start_s: float = 100.5, duration_s: float = 60) -> Fault:
    return Fault(kind="node_crash", node="vit-01", start_s=start_s, duration_s=duration_s)


def test_after_a_crash_it_hangs_waits_for_the_node_and_starts_again() -> None:
    reported = clocks(run(checkpoint_every_s=30), 400, faults=[crash(duration_s=200)])
    by_phase = {
        clock.phase: clock.tick - EPOCH for clock in reversed(reported) if clock.tick > EPOCH + 150
    }

    assert by_phase["pending"] == pytest.approx(221, abs=2)  # gives its peer up after 120 s
    assert by_phase["warming_up"] == pytest.approx(301, abs=2)  # the node is back
    assert reported[-1].phase == "training"
    assert reported[-1].n_restarts == 1


def test_no_step_ends_between_crash_and_restart_and_none_is_skipped() -> None:
    result = played(plan_of(faults=[crash()]), 400)
    ended_s = result.steps.ended_at_s - EPOCH

    assert not ((ended_s > 100.5) & (ended_s < 220.5 + WARM_UP_S)).any()
    assert (np.diff(result.steps.step) == 1).all()
    assert ended_s[-1] > 390


def test_a_crash_costs_the_steps_since_the_last_checkpoint() -> None:
    healthy = played(plan_of(run(checkpoint_every_s=30)), 100).clock
    after = played(plan_of(run(checkpoint_every_s=30), faults=[crash(100)]), 400).clock

    assert after.n_steps_lost == healthy.step - healthy.checkpoint_step
    assert 0 < after.n_steps_lost < 60


def test_counts_never_go_back() -> None:
    reported = clocks(run(checkpoint_every_s=30), 400, faults=[crash()])

    assert all(a.step <= b.step for a, b in pairwise(reported))
    assert all(a.n_tokens <= b.n_tokens for a, b in pairwise(reported))


def test_a_run_that_does_not_restart_has_failed() -> None:
    result = played(plan_of(run(restarts=False), faults=[crash()]), 400)

    assert result.clock.phase == "failed"
    assert values(result, "core_utilization_ratio", 250, 400).max() == 0
    assert steps(result, 221, 400).step.size == 0
    assert phase(result, "compute_s", 30, 100).shape == (4,)
