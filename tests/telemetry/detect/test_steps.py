"""The fold over steps: which quantities shift, where and since when."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.detect.shifts import Shift
from telemetry.detect.steps import AWAITED_S, Steps
from telemetry.statistics.peers import median
from telemetry.steps import PHASES, StepBatch
from tests.telemetry.detect.playing import (
    START_S,
    STEP_S,
    TOKENS,
    USUAL,
    both,
    from_step,
    joined,
    sampled,
    steps_of,
    uneven,
    untimed,
)

N, AT = 300, 220
# What one late worker, or another one in each step, does to the run: the others wait.
LATE = (("step", None), ("wait", None))
NEVER_S = 1e12


def fold(*batches: StepBatch, n_stages: int = 1, now_s: float = NEVER_S) -> Steps:
    steps = Steps(n_stages=n_stages, false_per_year=6.0)
    for batch in batches:
        steps.update(batch, now_s)
    return steps


def in_three_seconds(phases: dict[str, np.ndarray]) -> None:
    for values in phases.values():
        np.multiply(values, 3.0, out=values)


def shifts(*batches: StepBatch, n_stages: int = 1) -> dict[tuple[str, int | None], Shift]:
    found = fold(*batches, n_stages=n_stages).shifts
    assert len({(shift.quantity, shift.node) for shift in found}) == len(found)
    return {(shift.quantity, shift.node): shift for shift in found}


def began_s(steps: StepBatch, at: int) -> float:
    return float(steps.ended_at_s[at - 1])


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.02])
def test_a_healthy_run_has_no_shift(noise: float) -> None:
    assert not shifts(steps_of(N, noise=noise))


@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
def test_a_node_that_becomes_slow_is_late(factor: float) -> None:
    steps = steps_of(N, change=from_step(AT, "compute_s", factor, workers=[2]))

    found = shifts(steps)

    assert set(found) == {*LATE, ("own", 2)}
    own = found["own", 2]
    rise = USUAL["compute_s"] * (factor - 1) / STEP_S
    assert own.size == pytest.approx(rise, rel=0.05, abs=0.01)
    assert found["step", None].size == pytest.approx(rise, rel=0.05, abs=0.01)
    assert own.onset_s == pytest.approx(began_s(steps, AT), abs=2.0)
    assert own.nats > own.level_nats > 10.0
    assert own.part is None


def test_a_node_that_becomes_quick_is_no_shift() -> None:
    assert not shifts(steps_of(N, change=from_step(AT, "compute_s", 0.7, workers=[2])))


@pytest.mark.parametrize(
    ("phase", "factor", "quantity"),
    [("transfer_s", 2.0, "transfer"), ("input_s", 6.0, "input"), ("compute_s", 1.2, "compute")],
)
def test_what_slows_all_alike_is_of_the_run(phase: str, factor: float, quantity: str) -> None:
    steps = steps_of(N, change=from_step(AT, phase, factor))

    found = shifts(steps)

    assert set(found) == {("step", None), (quantity, None)}
    rise = USUAL[phase] * (factor - 1) / STEP_S
    assert found[quantity, None].size == pytest.approx(rise, abs=0.01)
    assert found[quantity, None].onset_s == pytest.approx(began_s(steps, AT), abs=2.0)


def test_slow_input_of_one_node_is_its_input_and_its_own_time() -> None:
    found = shifts(steps_of(N, change=from_step(AT, "input_s", 6.0, workers=[1])))

    assert set(found) == {*LATE, ("own", 1), ("own_input", 1)}
    assert found["own_input", 1].size == pytest.approx(0.15, abs=0.01)


def test_work_that_is_late_by_turns_accuses_no_worker() -> None:
    found = shifts(steps_of(N, n_workers=8, change=uneven(AT)))

    assert set(found) == {*LATE, ("uneven", None)}


@pytest.mark.parametrize("n_stages", [1, 4])
def test_few_workers_that_are_late_by_turns_are_seen_by_those_who_wait(n_stages: int) -> None:
    """Their steps scatter as widely as they have shifted."""
    change = both(in_three_seconds, uneven(320, scatter=0.12))
    steps = steps_of(345, noise=0.02, change=change)

    known = fold(steps, n_stages=n_stages)

    found = {(shift.quantity, shift.node) for shift in known.shifts}
    assert {("wait", None)} <= found <= {*LATE, ("uneven", None)}
    assert not shifts(steps[:320], n_stages=n_stages)
    baseline = known.baseline(began_s(steps, 320))
    assert baseline is not None
    effects = known.effects(baseline, began_s(steps, 320))
    # Also where each worker is a stage of its own.
    assert effects["uneven"].size > 0.02
    assert effects["uneven"].size > effects["stage"].size


def test_a_longer_stage_is_not_a_late_worker() -> None:
    steps = steps_of(N, n_workers=8, change=from_step(AT, "compute_s", 1.2, workers=[2, 3]))

    assert set(shifts(steps, n_stages=4)) == {*LATE, ("stage", 1)}
    assert set(shifts(steps)) == {*LATE, ("own", 2), ("own", 3)}


def test_a_stage_that_was_always_longer_is_no_shift() -> None:
    steps = steps_of(N, n_workers=8, change=from_step(0, "compute_s", 1.2, workers=[2, 3]))

    assert not shifts(steps, n_stages=4)


def test_a_worker_that_was_always_slow_is_found_beyond_usual_offsets() -> None:
    for factor, is_found in ((1.02, False), (1.2, True)):
        found = shifts(steps_of(60, change=from_step(0, "compute_s", factor, workers=[3])))
        assert (("own", 3) in found) is is_found, factor


def test_two_problems_at_once_are_both_found() -> None:
    steps = steps_of(
        N,
        n_workers=8,
        change=both(
            from_step(AT, "compute_s", 1.3, workers=[2]),
            from_step(AT + 40, "transfer_s", 3.0),
            from_step(AT + 60, "input_s", 8.0, workers=[5]),
        ),
    )

    found = shifts(steps)

    assert set(found) == {
        *LATE,
        ("own", 2),
        ("transfer", None),
        ("own", 5),
        ("own_input", 5),
    }
    assert found["own", 2].onset_s == pytest.approx(began_s(steps, AT), abs=2.0)
    assert found["transfer", None].onset_s == pytest.approx(began_s(steps, AT + 40), abs=2.0)
    assert found["own_input", 5].onset_s == pytest.approx(began_s(steps, AT + 60), abs=2.0)


def test_a_shift_ends_when_its_problem_does() -> None:
    steps = steps_of(N + 60, change=from_step(AT, "compute_s", 1.3, workers=[2], until=N))

    assert set(shifts(steps[:N])) == {*LATE, ("own", 2)}
    assert set(shifts(steps[: N + 1])) == {*LATE, ("own", 2)}
    assert not shifts(steps)


@pytest.mark.parametrize(("rise", "is_found"), [(0.0, False), (0.07, True)])
def test_a_slow_drift_is_a_shift_of_what_drifts(rise: float, is_found: bool) -> None:  # noqa: FBT001
    """Its own past follows it; the first calm quarter of an hour does not."""

    def drift(phases: dict[str, np.ndarray]) -> None:
        phases["compute_s"][350:] *= 1.0 + np.linspace(0.0, rise, 450)[:, None]

    known = fold(steps_of(800, change=both(in_three_seconds, drift)))

    found = [(shift.quantity, shift.node) for shift in known.shifts]
    assert found == ([("step", None)] if is_found else [])
    for shift in known.shifts:
        assert shift.size == pytest.approx(0.05, abs=0.02)
        baseline = known.baseline(shift.onset_s)
        assert baseline is not None
        assert baseline.step_s == pytest.approx(3.0 * STEP_S, rel=0.01)
        effects = known.effects(baseline, shift.onset_s)
        assert effects["compute"].size == pytest.approx(0.05, abs=0.01)


def test_isolated_long_steps_are_no_shift() -> None:
    def change(phases: dict[str, np.ndarray]) -> None:
        phases["compute_s"][100::40] *= 1.4
        phases["compute_s"][150::90, 1] *= 2.0

    assert not shifts(steps_of(N, change=change))


def test_the_same_steps_count_once() -> None:
    steps = steps_of(N, change=from_step(AT, "compute_s", 1.3, workers=[2]))
    once, again = fold(steps), fold(*(steps[max(0, i - 90) : i] for i in range(60, N + 1, 60)))

    assert once.shifts == again.shifts
    assert again.update(steps, NEVER_S) is False
    assert once.plan is not None
    assert once.last_step == again.last_step == N - 1


def test_other_tokens_begin_a_new_plan() -> None:
    small = steps_of(AT)
    large = steps_of(
        60,
        change=from_step(0, "compute_s", 2.0),
        first=AT,
        start_s=float(small.ended_at_s[-1]),
        tokens=2 * TOKENS,
    )

    assert set(shifts(joined(small, replace(large, tokens=small.tokens[:60])))) == {
        ("step", None),
        ("compute", None),
    }
    steps = fold(joined(small, large))
    assert not steps.shifts
    assert steps.plan is not None
    assert steps.plan.usual_s == pytest.approx(STEP_S + USUAL["compute_s"], abs=0.05)
    # Rounding of tokens is no other work.
    rounded = replace(small, tokens=TOKENS * (1 + 0.004 * (np.arange(AT) % 2)))
    kept = fold(rounded).plan
    assert kept is not None
    assert len(kept.at_s) == 120


def test_a_restart_from_a_checkpoint_begins_a_new_plan() -> None:
    before = steps_of(AT)
    after = steps_of(
        60, change=from_step(0, "compute_s", 1.5), first=100, start_s=began_s(before, AT) + 60
    )

    steps = fold(before, after)

    assert not steps.shifts
    assert steps.plan is not None
    assert steps.plan.usual_s == pytest.approx(STEP_S + USUAL["compute_s"] / 2, abs=0.05)
    assert steps.last_step == 159


@pytest.mark.parametrize("looks_at", [120, 215, 260])
def test_a_restart_is_seen_however_late_it_is_looked_at(looks_at: int) -> None:
    # Both starts are stored, in order of the number: 100 to 219 twice.
    before = steps_of(AT)
    after = steps_of(
        160, change=from_step(0, "compute_s", 1.5), first=100, start_s=began_s(before, AT) + 60
    )
    both_starts = joined(before, after)
    order = np.argsort(both_starts.step, kind="stable")
    row = after.step.searchsorted(looks_at)
    seen = replace(
        both_starts,
        step=both_starts.step[order],
        ended_at_s=both_starts.ended_at_s[order],
        phases={name: values[order] for name, values in both_starts.phases.items()},
    )
    until = seen[seen.ended_at_s <= after.ended_at_s[row - 1]]

    # As the run goes on, by a process that begins now, and where the start before is forgotten.
    for steps in (fold(before, until), fold(until), fold(before, after[:row])):
        assert not steps.shifts
        assert steps.plan is not None
        assert steps.plan.usual_s == pytest.approx(STEP_S + USUAL["compute_s"] / 2, abs=0.05)
        assert steps.last_step == looks_at - 1
        assert len(steps.plan.at_s) == min(120, row)
        # What is taken is taken.
        assert steps.update(until, NEVER_S) is False
        assert steps.update(before, NEVER_S) is False


def test_a_process_that_begins_within_a_problem_knows_the_time_before() -> None:
    steps = steps_of(N, change=from_step(AT, "compute_s", 1.3, workers=[2]))
    window = steps[AT + 10 :]
    blind = Steps(n_stages=1, false_per_year=6.0)
    blind.update(window, NEVER_S)
    assert ("step", None) not in {(each.quantity, each.node) for each in blind.shifts}
    asked = []

    def earlier(since_s: float) -> StepBatch:
        asked.append(since_s)
        return steps[steps.ended_at_s >= since_s]

    knows = Steps(n_stages=1, false_per_year=6.0)
    assert knows.update(window, NEVER_S, earlier=earlier) is True

    assert knows.shifts == fold(steps).shifts != []
    # Once: what comes then is in the window.
    assert knows.update(window, NEVER_S, earlier=earlier) is False
    assert len(asked) == 1


def test_a_plan_that_comes_back_goes_on() -> None:
    """A fault that began while the batch was another one is seen against the time before."""
    usual = steps_of(AT)
    large = steps_of(60, first=AT, start_s=float(usual.ended_at_s[-1]), tokens=2 * TOKENS)
    again = steps_of(
        40,
        change=from_step(0, "compute_s", 1.3, workers=[2]),
        first=AT + 60,
        start_s=float(large.ended_at_s[-1]),
    )

    assert set(shifts(joined(usual, large, again))) == {*LATE, ("own", 2)}
    assert not shifts(joined(usual, large))


def test_workers_of_a_window_that_no_longer_report_are_none_of_the_plan() -> None:
    """A batch has the workers of all its steps: it changes when the last step of one leaves it."""
    eight = steps_of(AT, n_workers=8)
    change = from_step(60, "compute_s", 1.3, workers=[2])
    six = steps_of(90, n_workers=6, first=AT, start_s=float(eight.ended_at_s[-1]), change=change)
    phases = {
        name: np.pad(values, ((0, 0), (0, 2)), constant_values=np.nan)
        for name, values in six.phases.items()
    }
    wide = replace(six, workers=eight.workers, phases=phases)

    steps = fold(eight, wide[:50], six)

    assert steps.plan is not None
    assert steps.plan.workers == six.workers
    assert len(steps.plan.at_s) == 90
    assert {(shift.quantity, shift.node) for shift in steps.shifts} == {*LATE, ("own", 2)}


def test_workers_that_leave_begin_a_new_plan_but_a_lost_report_does_not() -> None:
    steps = steps_of(N, n_workers=8)
    two = AT + 2
    for leaving, until, is_new in (([7], two, False), ([7], N, True), ([5, 6, 7], N, True)):
        phases = {name: values.copy() for name, values in steps.phases.items()}
        for values in phases.values():
            values[AT:until, leaving] = np.nan
        plan = fold(replace(steps, phases=phases).reported).plan
        assert plan is not None
        assert bool(plan.began_s[0] >= began_s(steps, AT)) is is_new
        assert len(plan.at_s) == (N - AT if is_new else 120)


def test_steps_after_a_pause_are_no_values() -> None:
    first = steps_of(AT)
    second = steps_of(50, first=AT, start_s=began_s(first, AT) + 600.0)
    plan = fold(joined(first, second)).plan
    assert plan is not None
    # The first steps after a pause take longer: three of them are left out.
    assert plan.began_s[-47] == pytest.approx(second.ended_at_s[2], abs=0.1)
    assert plan.began_s[-48] < second.ended_at_s[0] - 500.0


def test_a_step_that_may_still_come_holds_up_later_ones() -> None:
    steps = steps_of(60)
    without = steps[steps.step != 50]
    soon_s = float(steps.ended_at_s[-1])

    assert fold(without, now_s=soon_s).last_step == 49
    assert fold(without, now_s=float(steps.ended_at_s[51]) + AWAITED_S + 0.5).last_step == 51 + 8
    assert fold(without, steps, now_s=soon_s).last_step == 59
    assert fold(steps, now_s=soon_s).last_step == 59


def test_without_timed_exchanges_only_step_and_input_are_known() -> None:
    slow = untimed(steps_of(N, change=from_step(AT, "compute_s", 1.3, workers=[2]))).reported
    late = untimed(steps_of(N, change=from_step(AT, "input_s", 8.0, workers=[1]))).reported

    assert set(shifts(slow)) == {("step", None)}
    assert set(shifts(late)) == {("step", None), ("own_input", 1)}
    steps = fold(slow)
    baseline = steps.baseline(began_s(slow, AT))
    assert baseline is not None
    effects = steps.effects(baseline, began_s(slow, AT))
    known = {name for name, effect in effects.items() if np.isfinite(effect.size).any()}
    assert known == {"step", "input", "other", "own_input", "jitter"}
    assert float(effects["step"].size) == pytest.approx(0.24, abs=0.01)


def test_exchanges_that_are_sampled_are_values_when_they_are_timed() -> None:
    change = from_step(AT, "compute_s", 1.3, workers=[2])
    steps = sampled(steps_of(800, change=change), every=20).reported

    assert ("own", 2) not in shifts(steps[:AT])
    found = shifts(steps)
    assert {("step", None), ("own", 2)} <= set(found)
    assert {key for key in found if key[1] is not None} == {("own", 2)}
    assert found["own", 2].onset_s == pytest.approx(began_s(steps, AT), abs=45.0)


def test_effects_are_measured_for_all_quantities_since_a_moment() -> None:
    steps = steps_of(N, n_workers=8, change=from_step(AT, "compute_s", 1.3, workers=[2]))
    known = fold(steps)
    baseline = known.baseline(began_s(steps, AT))
    assert baseline is not None
    # Without other time.
    assert baseline.step_s == pytest.approx(float(np.median(steps.step_s[:AT])) - 0.02, rel=0.005)

    effects = known.effects(baseline, began_s(steps, AT))

    sizes = {name: np.round(effect.size, 2) for name, effect in effects.items()}
    assert sizes["step"] == pytest.approx(0.24, abs=0.015)
    # The others wait for as long as one is late.
    assert sizes["wait"] == pytest.approx(0.24, abs=0.015)
    for name in ("compute", "transfer", "input", "other", "uneven", "stage", "jitter"):
        assert abs(sizes[name]) <= 0.01, name
    for name in ("own", "own_compute"):
        assert np.argmax(sizes[name]) == 2
        assert sizes[name][2] == pytest.approx(0.24, abs=0.015)
        assert np.abs(np.delete(sizes[name], 2)).max() <= 0.02
    assert np.abs(sizes["own_input"]).max() == 0.0
    assert all((effect.error[np.isfinite(effect.size)] > 0).all() for effect in effects.values())
    # More values know more.
    early = known.baseline(began_s(steps, AT))
    assert early is not None
    few = fold(steps[: AT + 2]).effects(early, began_s(steps, AT))
    assert float(few["step"].error) > float(effects["step"].error)


def test_a_slow_first_step_is_not_the_usual_one() -> None:
    plan = fold(steps_of(20, change=from_step(0, "compute_s", 8.0, until=1))).plan
    assert plan is not None
    assert plan.usual_s == pytest.approx(STEP_S, abs=0.03)
    assert not shifts(steps_of(N, change=from_step(0, "compute_s", 8.0, until=1)))


def test_short_steps_are_values_of_a_second() -> None:
    def change(phases: dict[str, np.ndarray]) -> None:
        for values in phases.values():
            np.multiply(values, 0.1, out=values)

    steps = steps_of(300, change=change)
    plan = fold(steps).plan
    assert plan is not None
    lasted_s = np.diff(plan.at_s)
    assert (lasted_s >= 1.0).all()
    assert float(median(lasted_s)) < 1.2
    # Which steps are one value does not depend on how they are reported.
    bit_by_bit = fold(*(steps[max(0, i - 40) : i] for i in range(6, 301, 6))).plan
    assert bit_by_bit is not None
    assert bit_by_bit.at_s.tolist() == plan.at_s.tolist()
    assert plan.usual_s == pytest.approx(0.1, abs=0.01)
    assert START_S < plan.at_s[0] < START_S + 2


# Opposite infinities in one worker fail in `StepBatch` already.
IMPOSSIBLE = (np.nan, np.inf, -1.0, -1e300, 1e12, 1e300)
SMALL = (0.0, 5e-324, 1e-300)
ROW = st.integers(0, 79)
PLACE = st.tuples(st.sampled_from(PHASES), ROW, st.integers(0, 3), st.integers(1, 30))


@settings(max_examples=25, deadline=None)
@given(
    spoiled=st.lists(st.tuples(PLACE, st.sampled_from(IMPOSSIBLE + SMALL)), max_size=8),
    jumps=st.lists(
        st.tuples(ROW, st.sampled_from([-1e9, -5.0, 0.5, 3600.0, np.inf, np.nan])), max_size=3
    ),
    seed=st.sampled_from([None, 1]),
    n_stages=st.integers(1, 3),
    n_pieces=st.sampled_from([1, 7]),
)
def test_a_fold_takes_whatever_is_reported(
    spoiled: list[tuple[tuple[str, int, int, int], float]],
    jumps: list[tuple[int, float]],
    seed: int | None,
    n_stages: int,
    n_pieces: int,
) -> None:
    steps = steps_of(80)
    phases = {name: values.copy() for name, values in steps.phases.items()}
    for (phase, row, worker, length), value in spoiled:
        phases[phase][row : row + length, worker] = value
    ended_at_s = steps.ended_at_s.copy()
    for row, jump_s in jumps:
        ended_at_s[row:] += jump_s
    order = np.arange(80) if seed is None else np.random.default_rng(seed).permutation(80)
    steps = replace(steps, step=order, ended_at_s=ended_at_s, phases=phases)

    # A warning of numpy is an error.
    known = fold(*(steps[: 80 * i // n_pieces] for i in range(1, n_pieces + 1)), n_stages=n_stages)

    baseline = known.baseline(began_s(steps, 60))
    if baseline is not None:
        known.effects(baseline, began_s(steps, 60))


@settings(max_examples=25, deadline=None)
@given(spoiled=st.lists(st.tuples(PLACE, st.sampled_from(IMPOSSIBLE)), max_size=4))
def test_what_no_phase_can_last_is_no_evidence(
    spoiled: list[tuple[tuple[str, int, int, int], float]],
) -> None:
    steps = steps_of(110)
    phases = {name: values.copy() for name, values in steps.phases.items()}
    for (phase, row, _, length), value in spoiled:
        phases[phase][row : row + length, 1] = value

    assert not shifts(replace(steps, phases=phases))
