"""A run's cost by use: training, saving, compiling, idle."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.statistics.time_use import SORTS, TimeSlice, TimeUse, merged, spent
from telemetry.steps import PHASES, StepBatch

NOTHING = np.zeros((0, 2))
ALWAYS = np.zeros(1)


def steps(
    ended_at_s: list[float], *, first: int = 1, by: int = 1, tokens: float = 10.0, **phases: float
) -> StepBatch:
    """Return steps of one worker that end at these moments; phases in seconds, all alike."""
    n = len(ended_at_s)
    reported = {f"{name}_s": value for name, value in (phases or {"compute": 1.0}).items()}
    return StepBatch(
        "run",
        ("a",),
        first + by * np.arange(n),
        np.array(ended_at_s, dtype=float),
        {phase: np.full((n, 1), reported.get(phase, 0.0)) for phase in PHASES},
        np.full(n, tokens),
    )


def went_into(batch: StepBatch, edges_s: Any = ALWAYS, **stretch: Any) -> tuple[TimeUse, Any]:
    """Return what a stretch went into, whole and by sort, as far as it is anything."""
    found = spent(batch, TimeSlice(**{"compiled": NOTHING, **stretch}), edges_s=np.array(edges_s))
    total = found.seconds.sum(axis=0)
    return found, {s: round(float(v), 6) for s, v in zip(SORTS, total, strict=True) if v > 1e-9}


def test_a_step_is_divided_by_its_phases() -> None:
    batch = steps([10], compute=6, wait=1, transfer=1, input=0.5, checkpoint=1, other=0.5)

    assert went_into(batch, start_s=0, end_s=10, last_step=0)[1] == {
        "training": 6,
        "communication": 2,
        "input": 0.5,
        "saving": 1.5,
    }


def test_a_step_that_no_one_divides_trained() -> None:
    batch = steps([10], other=10)
    for phase in PHASES[:-1]:
        batch.phases[phase][:] = np.nan

    assert went_into(batch, start_s=0, end_s=10, last_step=0)[1] == {"training": 10}


def test_what_lies_between_steps_is_idle_unless_it_compiled() -> None:
    batch = steps([1, 11, 12])
    reported = merged([(2, 4), (3, 5), (11.2, 11.4)])

    assert went_into(batch, start_s=0, end_s=12, last_step=0)[1] == {"training": 3, "idle": 9}
    assert went_into(batch, start_s=0, end_s=12, last_step=0, compiled=reported)[1] == {
        "training": 3,
        "compiling": 3,
        "idle": 6,
    }


def test_compiling_that_a_step_holds_is_no_evaluation() -> None:
    batch = steps([10], compute=4, other=6)

    assert went_into(batch, start_s=0, end_s=10, last_step=0, compiled=merged([(1, 5)]))[1] == {
        "training": 4,
        "saving": 2,
        "compiling": 4,
    }


def test_up_to_the_first_step_it_gets_ready() -> None:
    batch = steps([100, 101])

    assert went_into(batch, start_s=0, end_s=101, compiled=merged([(0, 90)]))[1] == {
        "training": 2,
        "compiling": 90,
        "warming_up": 9,
    }


def test_steps_of_the_warm_up_stand_apart_with_their_tokens() -> None:
    found, sorts = went_into(steps([1, 2, 3]), start_s=0, end_s=3, last_step=0, warm_step=3)

    assert sorts == {"training": 1, "warming_up": 2}
    assert found.tokens.tolist() == [10, 20, 0]


def test_steps_trained_again_are_paid_twice_and_count_once() -> None:
    found, sorts = went_into(
        steps([1, 2, 3]), start_s=0, end_s=3, last_step=0, again=merged([(1, 3)])
    )

    assert sorts == {"training": 1, "repeated": 2}
    assert found.tokens.tolist() == [10, 0, 20]


def test_a_row_may_stand_for_several_steps() -> None:
    batch = steps([4, 10], first=4, by=4)

    found, sorts = went_into(batch, start_s=0, end_s=10, last_step=0, again=merged([(0, 2)]))

    assert sorts == {"repeated": 2, "training": 6, "idle": 2}
    assert found.tokens.tolist() == [60, 0, 20]


def test_the_step_under_way_is_not_idle_and_what_hangs_is() -> None:
    batch = steps([2, 4], compute=2)

    assert went_into(batch, start_s=0, end_s=5, last_step=0, goes_on=True)[1] == {"training": 5}
    assert went_into(batch, start_s=0, end_s=9, last_step=0, goes_on=True)[1] == {
        "training": 6,
        "idle": 3,
    }
    assert went_into(batch, start_s=0, end_s=5, last_step=0)[1] == {"training": 4, "idle": 1}


def test_without_a_step_all_is_getting_ready_or_else_idle() -> None:
    none = StepBatch.empty("run")

    assert went_into(none, start_s=0, end_s=5, compiled=merged([(0, 3)]))[1] == {
        "compiling": 3,
        "warming_up": 2,
    }
    assert went_into(none, start_s=0, end_s=5, last_step=7)[1] == {"idle": 5}


def test_unstored_time_is_reported_as_such() -> None:
    batch = steps([100, 101], first=5000)

    assert went_into(batch, start_s=0, end_s=101, stored_from_s=90)[1] == {
        "training": 2,
        "warming_up": 9,
        "untold": 90,
    }


def test_seconds_are_priced_at_the_rate_of_their_time() -> None:
    found, _ = went_into(steps([1, 2, 3]), [0.0, 1.5], start_s=0, end_s=4, last_step=0)

    assert found.seconds.sum(axis=1).tolist() == [1.5, 2.5]


@given(
    st.lists(st.floats(0.1, 50), max_size=20),
    st.lists(st.tuples(st.floats(0, 400), st.floats(0, 400)), max_size=4),
    st.lists(st.floats(1, 500), max_size=3),
    st.floats(0, 30),
    st.sampled_from([0.0, 1.0]),
)
def test_every_second_has_one_sort(
    spans: list[float],
    compiled: list[tuple[float, float]],
    cuts: list[float],
    n_again: float,
    usual: float,
) -> None:
    batch = steps(list(np.cumsum(spans)), compute=1.5, wait=0.5, other=1.0)
    end_s = float(sum(spans)) + 7
    stretch = {
        "compiled": merged([(min(span), max(span)) for span in compiled]),
        "again": merged([(2, n_again)]),
        "warm_step": 3,
        "stored_from_s": 5.0,
        "goes_on": bool(usual),
    }

    found, _ = went_into(batch, [0.0, *sorted(cuts)], start_s=0, end_s=end_s, **stretch)

    assert found.seconds.min() >= -1e-9
    assert found.seconds.sum() == pytest.approx(end_s)
