"""Checkpoints against earlier ones, and against what one of their size should take."""

from typing import Any

import numpy as np
import pytest

from telemetry.detect import Finding, find
from telemetry.detect.checkpoints import expected_checkpoint_s
from telemetry.detect.inputs import OpenProblem
from telemetry.steps import StepBatch, WorkerState
from tests.telemetry.detect.runs import CHARACTERS, T0, Machines, inputs, steps_of


def steps(*took_s: float, since: int = 2, n_writers: int = 4) -> StepBatch:
    """Return steps with checkpoints, the last one some steps ago."""
    n_steps = 10 * len(took_s) + since
    written = np.zeros((n_steps, 4))
    for i, seconds in enumerate(took_s):
        written[n_steps - since - 10 * (len(took_s) - 1 - i), :n_writers] = seconds
    return steps_of(np.ones((n_steps, 4)), checkpoint_s=written)


def found_in(batch: StepBatch, **more: Any) -> list[Finding]:
    return [f for f in find(inputs(batch, **more)) if f.rule == "checkpoint_slow"]


def test_one_that_takes_as_long_as_ever_is_none() -> None:
    assert found_in(steps(20.0, 21.0, 19.0, 22.0)) == []


@pytest.mark.parametrize(
    ("took_s", "own", "n_found"),
    [(56.0, None, 0), (58.0, None, 1), (40.0, 2.0, 1), (70.0, 4.0, 0), (80.0, 4.0, 1)],
)
def test_one_is_slow_at_three_times_the_usual_time_or_at_the_limit_of_its_run(
    took_s: float, own: float | None, n_found: int
) -> None:
    limits = {"own_limits": {"checkpoint_slow.slower_by_ratio": own}} if own else {}
    assert len(found_in(steps(20.0, 21.0, 19.0, took_s), **limits)) == n_found


def test_one_that_takes_three_times_as_long_as_ever_is_of_the_whole_run() -> None:
    (found,) = found_in(steps(20.0, 21.0, 19.0, 60.0))
    assert (found.cause, found.node, found.severity) == ("checkpoint_slow", None, "warn")
    assert found.evidence["baseline_phase_s"] == pytest.approx(19.0)


def test_the_first_is_compared_with_what_its_size_should_take() -> None:
    usual_s = expected_checkpoint_s(n_parameters=7e9, n_nodes=4)
    assert usual_s == pytest.approx(2 + 14 * 7 / 4 / 2)
    assert found_in(steps(2.9 * usual_s), checkpoint_s=usual_s) == []
    assert len(found_in(steps(3.1 * usual_s), checkpoint_s=usual_s)) == 1
    assert found_in(steps(60.0)) == []


def test_one_that_a_worker_writes_for_all_should_take_as_many_times_as_long() -> None:
    assert found_in(steps(11.9 * 20.0, n_writers=1), checkpoint_s=20.0) == []
    assert len(found_in(steps(12.1 * 20.0, n_writers=1), checkpoint_s=20.0)) == 1


def test_it_is_news_for_a_minute() -> None:
    assert found_in(steps(20.0, 20.0, 20.0, 70.0, since=70)) == []


@pytest.mark.parametrize(("says", "n_found"), [("", 1), ("other", 1), ("input", 0)])
def test_one_under_way_shows_as_hosts_that_write_while_no_core_works(
    says: str, n_found: int
) -> None:
    """A script may save between two steps; who reads its input has hosts that are as busy."""
    batch = steps_of(np.ones((20, 4)))
    last_s = float(batch.ended_at_s[-1])
    machines = Machines(last_s + 45)
    machines.HEALTHY["vcpu_usage_ratio"] = (1, 0.1)
    all_parts: Any = (slice(None), slice(None))
    machines.mark("core_utilization_ratio", all_parts, times=0.03, since_s=last_s + 1)
    machines.mark("vcpu_usage_ratio", all_parts, times=3.0, since_s=last_s + 1)
    said = {n: WorkerState(n, last_s + 42, says, last_s + 1) for n in CHARACTERS}
    seen = {"now_s": last_s + 45, "checkpoint_s": 14.0, "hardware_at": machines.hardware_at}
    found = found_in(batch, hardware=machines, workers=lambda: said, **seen)
    took_s = [each.evidence["phase_s"] for each in found]
    assert took_s == pytest.approx([44] * n_found, abs=2)


@pytest.mark.parametrize(("after_s", "n_found"), [(1, 1), (121, 0)])
def test_an_alert_waits_for_the_report_of_the_step_that_it_interrupts(
    after_s: int, n_found: int
) -> None:
    batch = steps_of(np.ones((20, 4)))
    last_s = float(batch.ended_at_s[-1])
    known = {"onset_s": last_s, "phase_s": 44.0, "baseline_phase_s": 15.0}
    held = OpenProblem("checkpoint_slow", "checkpoint_slow", evidence=known)
    found = found_in(batch, open_problems=(held,), now_s=last_s + 44 + after_s)
    assert [each.evidence["phase_s"] for each in found] == [44.0] * n_found


def test_an_alert_outlasts_the_stored_steps_while_hosts_write() -> None:
    last_s = float(T0)
    machines = Machines(last_s + 1500)
    all_parts: Any = (slice(None), slice(None))
    machines.mark("core_utilization_ratio", all_parts, times=0.03, since_s=last_s)
    machines.mark("vcpu_usage_ratio", all_parts, times=3.0, since_s=last_s)
    known = {"onset_s": last_s, "phase_s": 1200.0, "baseline_phase_s": 15.0}
    held = OpenProblem("checkpoint_slow", "checkpoint_slow", evidence=known)
    seen = {"now_s": last_s + 1500, "open_problems": (held,), "nodes": CHARACTERS}
    (found,) = find(inputs(StepBatch.empty("llama"), hardware=machines, **seen))
    assert found.rule == "checkpoint_slow"
    assert found.evidence["phase_s"] == pytest.approx(1500, abs=2)


def test_an_accused_node_stays_accused_when_its_host_has_finished() -> None:
    batch = steps_of(np.ones((20, 4)))
    last_s = float(batch.ended_at_s[-1])
    now_s = last_s + 45
    machines = Machines(now_s)
    all_parts: Any = (slice(None), slice(None))
    machines.mark("core_utilization_ratio", all_parts, times=0.03, since_s=last_s + 1)
    machines.mark("vcpu_usage_ratio", all_parts, times=0.2, since_s=last_s + 1)
    said = {n: WorkerState(n, now_s - 3, "checkpoint", last_s + 1) for n in CHARACTERS}
    held = OpenProblem(
        "checkpoint_slow", "checkpoint_slow", "limping", None, {"baseline_phase_s": 14.0}
    )
    seen = {"now_s": now_s, "hardware_at": machines.hardware_at, "workers": lambda: said}
    (found,) = found_in(batch, hardware=machines, open_problems=(held,), **seen)
    assert (found.node, found.evidence["phase_s"]) == ("limping", pytest.approx(44, abs=2))


def test_who_still_writes_a_long_one_minutes_after_the_others_is_named() -> None:
    batch = steps_of(np.ones((20, 4)))
    last_s = float(batch.ended_at_s[-1])
    machines = Machines(last_s + 700)
    machines.mark("core_utilization_ratio", (slice(None), slice(None)), times=0.03, since_s=last_s)
    machines.mark("vcpu_usage_ratio", (slice(None), slice(None)), times=3.0, since_s=last_s)
    for node in (0, 2, 3):
        machines.mark("vcpu_usage_ratio", (node, slice(None)), times=1 / 3, since_s=last_s + 420)

    def found_if_due_in(due_s: float) -> list[tuple[str, str | None]]:
        seen = {"now_s": last_s + 700, "checkpoint_s": due_s, "hardware_at": machines.hardware_at}
        return [(f.rule, f.node) for f in find(inputs(batch, machines, **seen))]

    assert found_if_due_in(230.0) == [("checkpoint_slow", CHARACTERS[1])]
    # Nor is one a hang that takes less than three times as long as it should.
    assert found_if_due_in(240.0) == []
