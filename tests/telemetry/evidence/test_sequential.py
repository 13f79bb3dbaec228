"""The sequential test on simulated noise, a recorded run and bad input."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.blocks import FloatArray
from telemetry.evidence.sequential import YEAR_S, EvidenceTest, Quantity, Verdicts

STEP_S = 10.0
FALSE_PER_YEAR = 6.0


def played(
    values: FloatArray,
    at_s: FloatArray | None = None,
    *,
    quantity: Quantity | None = None,
    restarted_at: int = -1,
) -> list[Verdicts]:
    """Play (n_values, …) values of ten seconds each."""
    test = EvidenceTest(
        values.shape[1:],
        looks_per_year=YEAR_S / STEP_S,
        false_per_year=FALSE_PER_YEAR,
        **({"quantity": quantity} if quantity else {}),
    )
    times = np.arange(len(values)) * STEP_S if at_s is None else at_s
    return [
        test.update(
            value, float(time), restarted=np.ones(value.shape, bool) if i == restarted_at else None
        )
        for i, (value, time) in enumerate(zip(values, times, strict=True))
    ]


def noisy(n: int, *, n_members: int = 1, scale: float = 0.003, seed: int = 1) -> FloatArray:
    rng = np.random.default_rng(seed)
    return np.asarray(STEP_S * np.exp(scale * rng.standard_t(3, (n, n_members))))


def opened(verdicts: list[Verdicts]) -> list[int]:
    return [i for i, each in enumerate(verdicts) if each.opened.any()]


def ended(verdicts: list[Verdicts]) -> list[int]:
    return [i for i, each in enumerate(verdicts) if each.ended.any()]


@pytest.mark.parametrize("shift", [0.05, 0.1, 0.2, 1.0])
def test_a_shift_has_onset_and_size_and_ends_when_it_ends(shift: float) -> None:
    values = noisy(700)
    values[500:600] *= 1 + shift

    verdicts = played(values)

    [at] = opened(verdicts)
    assert 500 <= at < 515
    assert abs(float(verdicts[at].onset_s[0]) - 500 * STEP_S) <= 2 * STEP_S
    assert float(verdicts[590].shift[0]) == pytest.approx(shift, abs=0.01)
    assert float(verdicts[590].nats[0]) > float(verdicts[590].level_nats[0])
    [end] = ended(verdicts)
    assert 600 <= end < 615


def test_a_slow_drift_is_found_by_what_keeps_its_first_reference() -> None:
    values = noisy(1200)
    values[400:] *= 1 + np.linspace(0.0, 0.07, 800)[:, None]
    anchored = Quantity("step_s", anchored=True, young_reach=0.035)

    assert opened(played(values)) == []
    [at] = opened(played(values, quantity=anchored))
    # Half of it is as far as runs drift.
    assert 800 <= at < 1100
    assert opened(played(noisy(1200), quantity=anchored)) == []
    # A start that is slower is none: nothing is tested before it is over.
    start = noisy(1200)
    start[:50] *= 1.1
    assert opened(played(start, quantity=anchored)) == []


def test_a_fault_that_comes_again_does_not_raise_its_own_level() -> None:
    values = noisy(1000)
    for at in range(400, 1000, 100):
        values[at : at + 20] *= 1.2

    verdicts = played(values)

    assert [at // 100 for at in opened(verdicts)] == [4, 5, 6, 7, 8, 9]
    assert len({float(verdicts[at].level_nats[0]) for at in opened(verdicts)}) == 1


def test_an_improvement_is_no_alert() -> None:
    values = noisy(700)
    values[500:] *= 0.8

    assert opened(played(values)) == []


def test_isolated_long_steps_are_no_alert() -> None:
    values = noisy(2000)
    values[400::40] *= 1.43
    values[450::400] *= 4.0
    values[1000:1002] *= 1.95

    assert opened(played(values)) == []


def test_a_wandering_level_is_no_alert_and_delays_that_of_a_shift() -> None:
    rng = np.random.default_rng(3)
    level = np.zeros(3000)
    for i in range(1, 3000):
        level[i] = 0.98 * level[i - 1] + 0.0024 * rng.standard_normal()
    values = noisy(3000) * np.exp(level)[:, None]

    assert level.std() > 0.008
    assert opened(played(values)) == []
    values[2500:] *= 1.3
    assert 2500 <= opened(played(values))[0] < 2530


def test_the_level_rises_with_a_second_excursion_that_has_passed() -> None:
    values = noisy(600)
    values[400:403] *= 1.06
    values[450:453] *= 1.06

    verdicts = played(values)

    assert opened(verdicts) == []
    usual = float(verdicts[300].level_nats[0])
    assert [float(verdicts[i].level_nats[0]) for i in (402, 410, 452)] == [usual] * 3
    assert float(verdicts[460].level_nats[0]) > usual


def test_a_shift_that_ended_just_too_soon_hides_no_other() -> None:
    """It is neither an excursion of chance nor a group of long steps, as two of them are."""
    missed, once, often = noisy(900), noisy(900), noisy(900)
    often[300:304] *= 1.4
    for values in (missed, often):
        values[400:404] *= 1.4
    for values in (missed, once, often):
        values[600:] *= 1.4

    assert opened(played(missed[:600])) == opened(played(often[:600])) == []
    [found], [alone], [late] = (opened(played(values)) for values in (missed, once, often))
    assert found <= alone + 1
    assert late > found


@pytest.mark.parametrize("every_s", [1.0, STEP_S])
def test_a_young_run_is_tested_for_gross_shifts_only(every_s: float) -> None:
    """Young is a run before a quarter of an hour and before 300 steps."""
    quiet = Quantity("step_s", prior_scale=0.003)
    times = np.arange(400) * every_s
    for shift, is_found in ((0.05, False), (0.25, True)):
        values = noisy(280)
        values[100:] *= 1 + shift

        verdicts = played(values, times[:280], quantity=quiet)

        assert bool(opened(verdicts)) is is_found, shift
        if is_found:
            [at] = opened(verdicts)
            assert 100 <= at < 110
            assert abs(float(verdicts[at].onset_s[0]) - 100 * every_s) <= every_s
            assert float(verdicts[279].shift[0]) == pytest.approx(shift, abs=0.02)


def test_the_shift_that_is_too_small_for_a_young_run_is_found_in_an_old_one() -> None:
    values = noisy(700)
    values[500:] *= 1.05

    assert 500 <= opened(played(values))[0] < 515


def test_recorded_starts_of_healthy_runs_are_no_alert() -> None:
    """A slow first step, a fairly slow second one, and a drift of 5 % over the first minute."""
    for seed in range(20):
        values = noisy(290, seed=seed)
        values[0] *= 5.0
        values[1] *= 1.3
        values[:6] *= 1 + 0.05 * np.linspace(1, 0, 6)[:, None]

        assert opened(played(values)) == [], seed
        values[:60] *= 1 + 0.05 * np.linspace(1, 0, 60)[:, None]
        assert opened(played(values, np.arange(290.0))) == [], seed


def test_after_a_restart_the_old_level_is_no_reference() -> None:
    values = noisy(1000)
    values[500:] *= 1.2

    assert opened(played(values, restarted_at=500)) == []
    values[560:] *= 1.25
    verdicts = played(values, restarted_at=500)
    [at] = opened(verdicts)
    assert 560 <= at < 570
    assert float(verdicts[620].shift[0]) == pytest.approx(0.25, abs=0.03)


MEMBERS = Quantity(
    "own", may_be_zero=True, start=0.0, young_reach=0.04, pooled=True,
    prior_scale=0.005,
)  # fmt: skip


def shares(n: int, *, n_members: int = 8, scale: float = 0.003, seed: int = 1) -> FloatArray:
    """Shares of a step around zero, as members differ from their peers."""
    return scale * np.random.default_rng(seed).standard_t(3, (n, n_members))


def found_members(verdicts: list[Verdicts]) -> set[int]:
    return {int(member) for each in verdicts for member in np.flatnonzero(each.opened)}


@pytest.mark.parametrize("offset", [0.0, 0.12, 0.03])
def test_a_member_that_is_slow_from_its_first_value_is_found_beyond_usual_offsets(
    offset: float,
) -> None:
    values = shares(200)
    values[:, 3] += offset

    verdicts = played(values, quantity=MEMBERS)

    assert found_members(verdicts) == ({3} if offset > 0.1 else set())
    if offset > 0.1:
        assert 0 <= opened(verdicts)[0] < 15
        assert float(verdicts[15].onset_s[3]) <= STEP_S


def test_without_a_start_the_first_values_are_the_reference_of_a_member() -> None:
    values = shares(200)
    values[:, 3] += 0.12

    alone = Quantity("stage", may_be_zero=True, young_reach=0.04, pooled=True)
    assert opened(played(values, quantity=alone)) == []


def test_a_lasting_offset_is_part_of_the_reference() -> None:
    values = shares(1200)
    values[:, 3] += 0.02

    assert opened(played(values, quantity=MEMBERS)) == []
    values[1000:, 3] += 0.04
    verdicts = played(values, quantity=MEMBERS)
    assert found_members(verdicts) == {3}
    assert 1000 <= opened(verdicts)[0] < 1040
    assert float(verdicts[1100].shift[3]) == pytest.approx(0.04, abs=0.01)


def test_what_may_be_zero_is_tested_as_it_is() -> None:
    values = shares(600, n_members=1)
    values[500:] += 0.1
    share = Quantity("input", may_be_zero=True, prior_scale=MEMBERS.prior_scale)

    verdicts = played(values, quantity=share)

    [at] = opened(verdicts)
    assert 500 <= at < 515
    assert float(verdicts[590].shift[0]) == pytest.approx(0.1, abs=0.004)
    # A share has no logarithm: half of its values are below zero, and those are values as well.
    assert all(bool(each.tested[0]) for each in verdicts[20:])
    positive = played(values, quantity=Quantity("step_s"))
    assert not all(bool(each.tested[0]) for each in positive[20:])


def test_pooled_cells_share_their_noise_and_the_others_do_not() -> None:
    """One member of eight has scattered little so far: alone it would be judged by that."""
    values = shares(800, scale=0.006)
    values[:600, 3] = shares(600, n_members=1, scale=0.0004)[:, 0]

    def scales(*, pooled: bool) -> FloatArray:
        test = EvidenceTest(
            (8,),
            looks_per_year=YEAR_S / STEP_S,
            false_per_year=FALSE_PER_YEAR,
            quantity=Quantity("own", may_be_zero=True, start=0.0, young_reach=0.04, pooled=pooled),
        )
        for i, value in enumerate(values[:600]):
            test.update(value, i * STEP_S)
        return test.state.noise.scale

    together, apart = scales(pooled=True), scales(pooled=False)
    assert together.max() == pytest.approx(together.min())
    assert apart[3] < 0.4 * np.median(apart)
    assert together[3] == pytest.approx(np.median(apart), rel=0.3)


def test_cells_do_not_know_each_other() -> None:
    values = noisy(600, n_members=6).reshape(600, 2, 1, 3)
    values[450:, 1, 0, 2] *= 1.1
    values[100:300, 0, 0, 1] = np.nan

    together = played(values)

    for cell in np.ndindex(2, 1, 3):
        alone = played(values[(slice(None), *cell)][:, None])
        for one, all_of_them in zip(alone, together, strict=True):
            assert float(one.nats[0]) == pytest.approx(float(all_of_them.nats[cell]))
            assert bool(one.opened[0]) == bool(all_of_them.opened[cell])
    assert {tuple(at[1:]) for at in np.argwhere([each.opened for each in together])} == {(1, 0, 2)}


@pytest.mark.parametrize("scale", [0.0005, 0.003, 0.01, 0.03])
def test_noise_keeps_the_budget(scale: float) -> None:
    n, n_members = 1500, 200
    run_years = n * n_members * STEP_S / YEAR_S

    verdicts = played(noisy(n, n_members=n_members, scale=scale))

    # Each cell has the budget for itself; twice the square root is two deviations of Poisson.
    expected = FALSE_PER_YEAR * run_years
    assert sum(int(each.opened.sum()) for each in verdicts) <= expected + 2 * np.sqrt(expected)


def test_a_recorded_run_on_slower_machines_is_found() -> None:
    """Means of 100 steps, 147 s each; 6 % slower for 3.8 h from value 273 on."""
    path = Path(__file__).with_name("slower_machines.csv")
    steps, values = np.loadtxt(path, delimiter=",", skiprows=1).T
    test = EvidenceTest((1,), looks_per_year=YEAR_S / 147, false_per_year=FALSE_PER_YEAR)
    verdicts = [
        test.update(np.array([value]), float(at_s), n_steps=100)
        for value, at_s in zip(values, steps * np.median(values), strict=True)
    ]

    [at] = opened(verdicts)
    assert 270 <= at < 285
    assert float(verdicts[at].shift[0]) == pytest.approx(0.064, abs=0.01)


BAD = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -1.0, -1e300])
JUMPS = st.sampled_from([0.0, -1e9, 1e9, np.nan, -STEP_S, 3600.0])
SERIES: dict[str, Callable[[int, int], FloatArray]] = {
    "constant": lambda n, members: np.full((n, members), STEP_S),
    "noise": lambda n, members: noisy(n, n_members=members),
    "tiny": lambda n, members: noisy(n, n_members=members) * 1e-300,
    "huge": lambda n, members: noisy(n, n_members=members) * 1e300,
}


@settings(max_examples=30, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(SERIES)), n_members=st.integers(1, 4))
def test_bad_input_raises_neither_exception_nor_alert(
    data: st.DataObject, kind: str, n_members: int
) -> None:
    n = data.draw(st.sampled_from([1, 2, 11, 450]))
    values = SERIES[kind](n, n_members)
    cell = st.tuples(st.integers(0, n - 1), st.integers(0, n_members - 1))
    for at, value in data.draw(st.lists(st.tuples(cell, BAD), max_size=40)):
        values[at] = value
    for (first, member), length in data.draw(
        st.lists(st.tuples(cell, st.integers(1, 200)), max_size=4)
    ):
        values[first : first + length, member] = np.nan  # it goes and comes again
    at_s = np.arange(n) * STEP_S
    for first, jump in data.draw(st.lists(st.tuples(st.integers(0, n - 1), JUMPS), max_size=4)):
        at_s[first:] += jump

    verdicts = played(values, at_s)

    assert opened(verdicts) == []


def test_no_cell_at_all_is_no_exception() -> None:
    assert opened(played(np.empty((5, 0)))) == []
