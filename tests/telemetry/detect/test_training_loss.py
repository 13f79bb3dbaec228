"""The rules about the loss: NaN and infinity, and sudden rises by the run's own scatter."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from telemetry.detect import Finding, find
from telemetry.detect.inputs import OpenProblem
from telemetry.detect.training_loss import loss_not_finite, loss_spike
from telemetry.steps import REPORTED_NAN, StepBatch, is_not_finite, is_reported
from tests.telemetry.detect.runs import inputs, steps_at

NAN, INF, UNKNOWN = REPORTED_NAN, math.inf, math.nan
FINE = [3.0, 2.9, 2.8]


def steps_with(losses: Any, *, checkpoints: tuple[int, ...] = ()) -> StepBatch:
    loss = np.array(losses, "f8")
    steps = steps_at([0.1] * len(loss))
    took_s = np.zeros_like(steps.phases["checkpoint_s"])
    took_s[list(checkpoints)] = 2.0
    return replace(steps, reported_loss=loss, phases={**steps.phases, "checkpoint_s": took_s})


def found_in(steps: StepBatch, **more: Any) -> list[Finding]:
    found = loss_not_finite(inputs(steps, **more))
    for each in found:
        assert json.loads(json.dumps(each.evidence, allow_nan=False)) == each.evidence
    return found


def test_what_was_not_reported_is_apart_from_nan() -> None:
    loss = np.array([1.0, UNKNOWN, NAN, INF, -INF])

    assert is_reported(loss).tolist() == [True, False, True, True, True]
    assert is_not_finite(loss).tolist() == [False, False, True, True, True]
    assert is_reported(loss.astype("f4").astype("f8")).tolist() == is_reported(loss).tolist()
    assert np.isnan(loss).tolist() == [False, True, True, False, False]


@pytest.mark.parametrize(
    ("losses", "since", "value"),
    [
        ([*FINE, NAN, NAN], 103, "NaN"),
        ([*FINE, INF, NAN, -INF], 103, "-Infinity"),
        # Of a job that logs every other step.
        ([3.0, UNKNOWN, NAN, UNKNOWN, NAN, UNKNOWN], 102, "NaN"),
        ([NAN, NAN], 100, "NaN"),
        ([*FINE, NAN, 2.7, NAN, NAN], 105, "NaN"),
    ],
)
def test_it_pages_from_the_second_step_on(losses: list[float], since: int, value: str) -> None:
    (finding,) = found_in(steps_with(losses))

    assert (finding.rule, finding.severity) == ("loss_not_finite", "page")
    assert (finding.evidence["since_step"], finding.evidence["value"]) == (since, value)


@pytest.mark.parametrize(
    "losses",
    [
        [*FINE, NAN],
        [*FINE, NAN, NAN, 2.7],
        [NAN, 2.0, NAN, 2.0, NAN],
        [UNKNOWN] * 5,
        [*FINE, UNKNOWN, UNKNOWN],
        [],
    ],
)
def test_one_step_and_a_loss_that_is_not_reported_are_no_finding(losses: list[float]) -> None:
    assert not found_in(steps_with(losses))


def test_it_names_the_last_finite_loss_and_the_last_checkpoint_before() -> None:
    (finding,) = found_in(steps_with([*FINE, NAN, NAN, NAN], checkpoints=(0, 1, 4)))

    evidence = finding.evidence
    assert (evidence["last_loss"], evidence["last_loss_step"]) == (2.8, 102)
    assert evidence["checkpoint_step"] == 101


def test_a_checkpoint_before_the_window_is_found_and_none_is_not_made_up() -> None:
    before = steps_with([3.0] * 4, checkpoints=(2,))
    before = replace(before, step=before.step - 50)

    (finding,) = found_in(steps_with([NAN, NAN]), earlier=lambda _since_s: before)
    assert finding.evidence["checkpoint_step"] == 52
    (finding,) = found_in(steps_with([NAN, NAN], checkpoints=(1,)))
    assert finding.evidence["checkpoint_step"] is None


def test_its_beginning_stays_after_it_has_left_the_window() -> None:
    (first,) = found_in(steps_with([*FINE, NAN, NAN], checkpoints=(1,)))
    known = OpenProblem(first.rule, first.cause, evidence=first.evidence)
    later = steps_with([NAN] * 4)
    later = replace(later, step=later.step + 1000, ended_at_s=later.ended_at_s + 1000)

    (finding,) = found_in(later, open_problems=(known,))

    kept = ("since_step", "last_loss", "last_loss_step", "checkpoint_step", "onset_s")
    assert [finding.evidence[each] for each in kept] == [first.evidence[each] for each in kept]


def noise(n: int, *, seed: int = 1, heavy: bool = False) -> Any:
    rng = np.random.default_rng(seed)
    scatter = rng.standard_t(4, n) if heavy else rng.standard_normal(n)
    return 3.0 - 0.2 * np.linspace(0, 1, n) + 0.02 * scatter


@pytest.mark.parametrize("value", [97.0, 3.4])
def test_a_spike_warns_by_the_runs_own_scatter(value: float) -> None:
    losses = [*noise(100), value, value]

    (finding,) = loss_spike(inputs(steps_with(losses)))

    assert (finding.rule, finding.severity) == ("loss_spike", "warn")
    evidence = finding.evidence
    assert evidence["since_step"] == 200
    assert evidence["loss"] == value
    assert evidence["baseline_loss"] == pytest.approx(2.8, abs=0.03)
    assert 0.05 < evidence["limit_loss"] < 0.59
    assert json.loads(json.dumps(evidence, allow_nan=False)) == evidence


def test_the_same_rise_is_usual_in_a_run_that_scatters_more() -> None:
    quiet, loud = noise(100), 3.0 + 10 * (noise(100) - 3.0)

    assert loss_spike(inputs(steps_with([*quiet, 3.4, 3.4])))
    assert not loss_spike(inputs(steps_with([*loud, *[loud[-5:].mean() + 0.4] * 2])))


def test_it_is_over_when_the_loss_is_back_and_stays_while_it_is_not() -> None:
    assert not loss_spike(inputs(steps_with([*noise(100), 97.0, 2.8, 2.8])))

    # An earlier one does not hide the next.
    (again,) = loss_spike(inputs(steps_with([*noise(200), 97.0, *noise(200), 97.0, 97.0])))
    assert again.evidence["since_step"] == 501

    (first,) = loss_spike(inputs(steps_with([*noise(100), 97.0, 97.0])))
    known = OpenProblem(first.rule, first.cause, evidence=first.evidence)
    # It has been high for longer than what is read.
    (still,) = loss_spike(inputs(steps_with([95.0] * 50), open_problems=(known,)))
    assert still.evidence["since_step"] == 200
    back = steps_with([*[95.0] * 50, 2.9, 2.8, 2.8])
    assert not loss_spike(inputs(back, open_problems=(known,)))


def test_it_fires_once_whichever_step_is_evaluated_next() -> None:
    """What fires it holds it: else it fires, resolves and fires again, a step each."""
    losses, seen = [*noise(100), *[97.0] * 6], []
    known: tuple[OpenProblem, ...] = ()
    for n in range(100, 107):
        found = loss_spike(inputs(steps_with(losses[:n]), open_problems=known))
        seen.append(bool(found))
        known = tuple(OpenProblem(f.rule, f.cause, evidence=f.evidence) for f in found)

    assert seen == [False, False, True, True, True, True, True]


@pytest.mark.parametrize("heavy", [False, True])
def test_noise_is_no_spike(heavy: bool) -> None:  # noqa: FBT001
    """A thousand windows of two minutes: chance has a warning once in a year."""
    fired = sum(
        bool(loss_spike(inputs(steps_with(noise(120, seed=seed, heavy=heavy)))))
        for seed in range(1000)
    )

    assert fired <= (5 if heavy else 0)


def test_few_steps_say_nothing() -> None:
    assert not loss_spike(inputs(steps_with([3.0] * 20 + [97.0])))


def test_both_rules_are_evaluated() -> None:
    rules = {each.rule for each in find(inputs(steps_with([*FINE, NAN, NAN])))}

    assert "loss_not_finite" in rules
