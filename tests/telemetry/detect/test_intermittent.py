"""Loss that comes and goes: long steps again and again, and what is not that."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from telemetry.detect.inputs import OpenProblem
from telemetry.detect.losses import cumulative_sum, find_intermittent_loss
from telemetry.steps import StepBatch
from tests.telemetry.detect.runs import CHARACTERS, inputs, steps_of

N_STEPS, SLOW = 90, 1
ROWS = np.arange(N_STEPS)
ANOTHER_PACE = np.where(ROWS < 40, 1.0, np.where(ROWS % 3, 1.2, 1.5))


def steps(*, long_s: float = 0.6, every: int = 10, phase: str = "compute_s") -> StepBatch:
    """Return steps of a second, some of them longer because of one worker."""
    compute = np.ones((N_STEPS, len(CHARACTERS)))
    compute[:] += 0.005 * np.random.default_rng(1).standard_normal(compute.shape)
    excess = np.zeros_like(compute)
    excess[every::every, SLOW] = long_s
    if phase == "compute_s":
        return steps_of(compute + excess)
    more: dict[str, Any] = {phase: excess}
    return steps_of(compute, **more)


def untimed(batch: StepBatch) -> StepBatch:
    phases = {name: values.copy() for name, values in batch.phases.items()}
    for name in ("wait_s", "transfer_s"):
        phases["compute_s"] += phases[name]
        phases[name][:] = np.nan
    return replace(batch, phases=phases)


@pytest.mark.parametrize(
    ("phase", "cause"),
    [("compute_s", "slow_compute"), ("input_s", "input_stall"), ("other_s", "unknown")],
)
def test_a_node_that_is_slow_now_and_then_is_accused(phase: str, cause: str) -> None:
    batch = steps(phase=phase)
    (found,) = find_intermittent_loss(inputs(batch), batch)

    assert (found.node, found.cause) == (CHARACTERS[SLOW], cause)
    assert 1.5 < found.extra["step_s"] < 1.75
    assert found.extra["baseline_step_s"] == pytest.approx(1.1, abs=0.05)
    assert found.extra["every_s"] == pytest.approx(9 * 1.1 + 1.7, abs=0.3)


@pytest.mark.parametrize(("every", "is_accused"), [(20, False), (10, True)])
def test_with_uneven_work_a_worker_is_late_some_times_by_chance(
    every: int, *, is_accused: bool
) -> None:
    batch = steps(every=every)
    uneven = OpenProblem("step_slow", "seq_imbalance")
    found = find_intermittent_loss(inputs(batch, open_problems=(uneven,)), batch)

    assert [each.node for each in found] == [CHARACTERS[SLOW]] * is_accused


def test_nobody_is_accused_of_steps_that_are_long_in_turn() -> None:
    compute = np.ones((N_STEPS, len(CHARACTERS)))
    for i, row in enumerate(range(10, N_STEPS, 10)):
        compute[row, i % len(CHARACTERS)] = 2.6
    batch = steps_of(compute)
    (found,) = find_intermittent_loss(inputs(batch), batch)

    assert (found.node, found.cause, found.kind) == (None, "unknown", "step")


def test_without_a_timed_exchange_no_node_is_accused() -> None:
    batch = untimed(steps(long_s=1.6))
    (found,) = find_intermittent_loss(inputs(batch), batch)

    assert (found.node, found.cause, found.kind) == (None, "unknown", "step")


def with_past(batch: StepBatch, past_steps: StepBatch) -> list[Any]:
    """Find loss in steps whose past is known; both are of one run."""
    shift_s = float(batch.ended_at_s[0] - past_steps.ended_at_s[-1]) - 1.1
    past = replace(past_steps, ended_at_s=past_steps.ended_at_s + shift_s)
    seen = inputs(batch, earlier=lambda since_s: past[past.ended_at_s >= since_s])
    return find_intermittent_loss(seen, batch)


def in_turn(every: int, *, n_steps: int = N_STEPS) -> StepBatch:
    compute = np.ones((n_steps, len(CHARACTERS)))
    for i, row in enumerate(range(every, n_steps, every)):
        compute[row, i % len(CHARACTERS)] = 2.6
    return steps_of(compute)


def test_what_the_run_loses_usually_is_no_problem() -> None:
    usual, more = in_turn(40, n_steps=400), in_turn(6)
    assert with_past(in_turn(25), usual) == []
    (found,) = with_past(more, usual)
    assert found.node is None
    assert with_past(more, in_turn(6, n_steps=400)) == []


def long_at(
    rows: Sequence[int], lengths_s: Sequence[float], *, n_steps: int = N_STEPS
) -> StepBatch:
    compute = np.ones((n_steps, len(CHARACTERS)))
    for i, (row, long_s) in enumerate(zip(rows, lengths_s, strict=True)):
        compute[row, i % len(CHARACTERS)] += long_s
    return steps_of(compute)


@pytest.mark.parametrize(
    ("rows", "lengths_s", "n_found"),
    [
        ((30, 48, 66, 84), (2.4, 2.5, 2.6, 2.5), 1),
        ((30, 35, 66, 84), (2.4, 2.5, 2.6, 2.5), 0),
        ((30, 48, 66, 84), (1.2, 2.9, 2.8, 3.1), 0),
    ],
    ids=["even", "uneven intervals", "uneven lengths"],
)
def test_few_long_steps_are_chance_unless_they_are_alike_and_at_even_intervals(
    rows: Sequence[int], lengths_s: Sequence[float], n_found: int
) -> None:
    """A run of some minutes that lost little before: rare delays come in groups by chance."""
    usual = long_at((20, 60, 95, 170, 230, 280), (0.8, 1.2, 0.5, 0.7, 1.0, 0.6), n_steps=300)
    assert len(with_past(long_at(rows, lengths_s), usual)) == n_found


def test_what_the_run_loses_usually_is_known_though_it_was_slow_for_minutes() -> None:
    usual = in_turn(6, n_steps=400)
    usual.phases["compute_s"][100:260] += 0.6
    assert with_past(in_turn(6), usual) == []


def test_a_hang_separates_long_steps_and_is_no_usual_loss() -> None:
    usual, more = in_turn(40, n_steps=400), in_turn(6)
    stood = replace(more, phases={name: each.copy() for name, each in more.phases.items()})
    stood.phases["compute_s"][70] += 200.0
    assert with_past(stood, usual) == []
    before = replace(usual, phases={name: each.copy() for name, each in usual.phases.items()})
    before.phases["compute_s"][200] += 200.0
    (found,) = with_past(more, before)
    assert found.node is None


def test_a_few_much_longer_steps_of_another_problem_do_not_count_in_full() -> None:
    compute = np.ones((N_STEPS, len(CHARACTERS)))
    for i, row in enumerate(range(10, N_STEPS, 10)):
        compute[row, i % len(CHARACTERS)] = 6.0 if i < 2 else 1.3
    few = steps_of(compute)
    assert find_intermittent_loss(inputs(few), few) == []


def test_of_few_workers_one_stops_three_times_in_a_row_by_chance() -> None:
    thrice = steps(phase="other_s", every=25, long_s=1.5)
    assert (thrice.phases["other_s"] > 1).sum() == 3
    assert find_intermittent_loss(inputs(thrice), thrice) == []
    # Garbage collection counts as compute where nothing tells it apart.
    computing = steps(every=25, long_s=1.5)
    assert find_intermittent_loss(inputs(computing), computing) == []
    often = steps(every=14, long_s=1.5)
    assert (often.phases["compute_s"] > 2).any(axis=1).sum() == 6
    assert len(find_intermittent_loss(inputs(often), often)) == 1


@pytest.mark.parametrize(
    ("lengths_s", "n_found"),
    [((0.6, 1.5, 0.4, 2.5), 0), ((0.6, 0.6, 0.6), 0), ((0.6, 0.6, 0.6, 0.6), 1)],
)
def test_pauses_of_one_of_many_workers_accuse_it_if_they_are_more_than_chance(
    lengths_s: tuple[float, ...], n_found: int
) -> None:
    names = [f"n{i:02d}" for i in range(16)]
    pauses = np.zeros((N_STEPS, 16))
    pauses[N_STEPS - 12 * len(lengths_s) :: 12, 3] = lengths_s
    batch = steps_of(np.ones((N_STEPS, 16)), workers=names, other_s=pauses)
    seen = replace(inputs(batch), nodes=tuple(names))
    assert len(find_intermittent_loss(seen, batch)) == n_found


def test_a_run_of_a_few_seconds_has_no_usual_loss() -> None:
    assert with_past(in_turn(10), in_turn(500, n_steps=20)) == []


@pytest.mark.parametrize(
    "batch",
    [
        steps(long_s=0.0),
        steps(long_s=0.1),
        steps(every=45),
        steps(every=2),
        steps_of(np.where(np.arange(N_STEPS) < 70, 1.0, 1.6)[:, None] * np.ones(4)),
        steps_of(np.where(np.arange(N_STEPS) % 30 < 2, 1.2, 1.0)[:, None] * np.ones(4)),
        steps_of(np.where(ROWS % 30 > 25, 24.0, 8.0)[:, None] * np.ones(4)),
        steps_of(ANOTHER_PACE[:, None] * np.ones(4)),
    ],
    ids=[
        "healthy",
        "small",
        "twice",
        "every other",
        "since then",
        "too little",
        "lasting",
        "another pace",
    ],
)
def test_these_are_not_loss_that_comes_and_goes(batch: StepBatch) -> None:
    assert find_intermittent_loss(inputs(batch), batch) == []


def test_it_is_over_after_some_time_without_a_long_step() -> None:
    batch = steps()
    now = inputs(batch)
    alert = OpenProblem("step_slow", "unknown", None, None, {"every_s": 20.0})
    held = replace(now, open_problems=(alert,))

    assert find_intermittent_loss(replace(held, now_s=now.now_s + 10), batch)
    assert not find_intermittent_loss(replace(held, now_s=now.now_s + 40), batch)
    # Long steps of another problem that is over do not begin a new one.
    assert find_intermittent_loss(now, batch)
    assert not find_intermittent_loss(replace(now, now_s=now.now_s + 20), batch)


def test_a_worker_whose_loss_is_over_is_not_accused_again_when_another_is_late() -> None:
    compute = np.ones((N_STEPS, len(CHARACTERS)))
    compute[10:-20:10, SLOW] = 1.6
    compute[-2:, SLOW + 1] = 1.6
    batch = steps_of(compute)

    assert not find_intermittent_loss(inputs(batch), batch)
    compute[-1, SLOW] = 1.7
    batch = steps_of(compute)
    (found,) = find_intermittent_loss(inputs(batch), batch)
    assert found.node == CHARACTERS[SLOW]


def test_an_open_alert_stays_at_half_of_the_limit() -> None:
    compute = np.ones((N_STEPS, len(CHARACTERS)))
    for i, row in enumerate((50, 70, 85)):
        compute[row, i] = 1.5
    batch = steps_of(compute)
    now = inputs(batch)
    alert = OpenProblem("step_slow", "unknown", None, None, {"every_s": 20.0})

    assert find_intermittent_loss(now, batch) == []
    assert find_intermittent_loss(replace(now, open_problems=(alert,)), batch)


def test_the_cumulative_sum_restarts_at_zero() -> None:
    x = np.array([-1.0, 2, -1, -3, 1, 1])

    assert cumulative_sum(x).tolist() == [0, 2, 1, 0, 1, 2]
