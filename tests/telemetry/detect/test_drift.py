"""Tokens that cost more than expected for hours: what counts, and what explains it."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.detect.drift import Drift, MinutePace, drift, pace_of
from telemetry.steps import PHASES, StepBatch

NOTHING = np.zeros((0, 2))
N_MINUTES = 120


def minutes(n_workers: int = 4, *, tokens: float = 1000.0, **phases: float) -> StepBatch:
    """Return two hours of equal average steps."""
    given = {f"{name}_s": value for name, value in phases.items()}
    return StepBatch(
        "run",
        tuple("abcdefgh"[:n_workers]),
        np.arange(N_MINUTES),
        60.0 * np.arange(N_MINUTES),
        {phase: np.full((N_MINUTES, n_workers), given.get(phase, 0.0)) for phase in PHASES},
        np.full(N_MINUTES, tokens),
    )


def paced(batch: StepBatch) -> MinutePace:
    return pace_of(batch, nodes_per_worker=1.0)


def found(
    pace: MinutePace, explained: object = NOTHING, *, expected: float = 0.008
) -> Drift | None:
    return drift(pace, np.asarray(explained), expected=expected, limit_ratio=0.15)


def test_cost_is_nodes_times_seconds_over_tokens() -> None:
    pace = paced(minutes(compute=1.5, wait=0.5))

    assert pace.cost == pytest.approx(4 * 2.0 / 1000)


def test_checkpoints_and_evaluations_are_no_pace() -> None:
    assert paced(minutes(compute=2, checkpoint=9, other=5)).cost == pytest.approx(0.008)


def test_a_step_that_no_one_divides_is_all_work() -> None:
    batch = minutes(other=2.0)
    for phase in PHASES[:-1]:
        batch.phases[phase][:] = np.nan

    assert paced(batch).cost == pytest.approx(0.008)


def test_what_costs_as_expected_or_hardly_more_is_no_drift() -> None:
    assert found(paced(minutes(compute=2.0))) is None
    assert found(paced(minutes(compute=2.29))) is None


def test_what_costs_more_for_two_hours_is() -> None:
    rise = found(paced(minutes(compute=2.4)))

    assert rise is not None
    assert rise.ratio == pytest.approx(0.2)


def test_an_hour_is_not_enough() -> None:
    batch = minutes(compute=2.0)
    batch.phases["compute_s"][60:] = 3.0

    assert found(paced(batch)) is None


def test_spikes_are_not_enough() -> None:
    batch = minutes(compute=2.0)
    batch.phases["compute_s"][::3] = 9.0

    assert found(paced(batch)) is None


def test_what_another_alert_explains_does_not_count() -> None:
    pace = paced(minutes(compute=3.0))

    assert found(pace, [(0.0, np.inf)]) is None
    assert found(pace, [(900.0, 2_400.0)]) is not None
    assert found(pace, [(0.0, 3_000.0)]) is None


def test_a_larger_batch_and_fewer_nodes_cost_the_same_per_token() -> None:
    assert found(paced(minutes(compute=4.0, tokens=2000.0))) is None
    batch = minutes(compute=8 / 3)
    for phase in PHASES:
        batch.phases[phase][:, 3] = np.nan
    assert paced(batch).cost == pytest.approx(0.008)
    assert found(paced(batch)) is None


def test_only_the_layout_of_now_is_judged() -> None:
    batch = minutes(compute=3.0)
    changed = replace(batch, tokens=np.where(np.arange(N_MINUTES) < 50, 500.0, 1000.0))

    assert found(paced(changed)) is None


def test_minutes_without_steps_are_no_evidence() -> None:
    batch = minutes(compute=3.0)
    for phase in PHASES:
        batch.phases[phase][::2] = np.nan
        batch.phases[phase][:30] = np.nan

    assert found(paced(batch)) is None
