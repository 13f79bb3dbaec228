"""What noise lets detection find, against what it finds; and whose budget decides it."""

import json
import math
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.detect.limits import (
    OF_PARTS,
    OF_STEPS,
    Limits,
    false_per_year,
    limits_of,
    smallest,
)
from telemetry.detect.rules import SEVERITIES
from telemetry.detect.slowdowns import find_slowdowns
from telemetry.detect.steps import Steps
from telemetry.evidence.budget import share
from telemetry.evidence.sequential import YEAR_S, EvidenceTest
from telemetry.steps import StepBatch
from tests.telemetry.detect.playing import Change, from_step, inputs_of, steps_of

# A quarter of an hour of steps of three seconds.
N = 320


def folded(steps: StepBatch, *, false_per_year: float = 0.8) -> Steps:
    fold = Steps(n_stages=1, false_per_year=false_per_year)
    fold.update(steps, float(steps.ended_at_s[-1]) + 30.0)
    return fold


def longer(steps: StepBatch, factor: float) -> StepBatch:
    began_s = steps.ended_at_s[0]
    return replace(
        steps,
        ended_at_s=began_s + factor * (steps.ended_at_s - began_s),
        phases={name: factor * values for name, values in steps.phases.items()},
    )


def limits(steps: StepBatch, *, factor: float = 3.0) -> Limits:
    found = limits_of(folded(longer(steps, factor)))
    assert found is not None
    return found


def common(scale: float, seed: int) -> Change:
    """Return a change by which all workers of a step vary together."""

    def change(phases: dict[str, FloatArray]) -> None:
        n = len(phases["compute_s"])
        steps = np.random.default_rng(seed).standard_normal((n, 1))
        for name in phases:
            phases[name] *= np.exp(scale * steps)

    return change


def test_a_run_that_scatters_more_hides_larger_slowdowns() -> None:
    quiet, noisy = (limits(steps_of(N, change=common(s, 7))) for s in (0.003, 0.06))

    # Pauses of workers for each other add to it.
    assert quiet.scatter_ratio == pytest.approx(0.003, rel=0.6)
    assert noisy.scatter_ratio == pytest.approx(0.06, rel=0.3)
    assert 0.01 < quiet.slowdown_ratio < 0.06 < noisy.slowdown_ratio < 0.3
    for each in (quiet, noisy):
        assert not each.is_young
        assert each.within_s == 60.0
        assert each.within_steps <= 20
        # Peers are compared within a step, which does not vary so.
        assert each.worker_ratio is not None
        assert each.worker_ratio < 0.1


def test_a_young_run_finds_large_slowdowns_only() -> None:
    young, old = limits(steps_of(60)), limits(steps_of(N))

    assert young.is_young
    assert not old.is_young
    assert young.slowdown_ratio > 2 * old.slowdown_ratio


def test_before_the_usual_step_is_known_nothing_is_said() -> None:
    assert limits_of(Steps(n_stages=1, false_per_year=0.8)) is None
    assert limits_of(folded(steps_of(2))) is None


def test_steps_of_minutes_are_given_the_time_that_the_largest_slowdown_takes() -> None:
    found = limits(steps_of(N), factor=40.0)

    assert found.within_s > 120.0
    assert found.slowdown_ratio <= 1.0
    assert found.within_steps * 40.0 <= found.within_s + 5.0


@pytest.mark.parametrize("noise", [0.003, 0.02])
def test_what_is_said_to_be_found_within_some_values_is_found_so(noise: float) -> None:
    rng, n_runs, n_past, n_since = np.random.default_rng(1), 60, 400, 30
    scatter = noise * rng.standard_t(3, (n_past + n_since, n_runs))
    quiet = EvidenceTest((n_runs,), looks_per_year=YEAR_S / 10.0, false_per_year=0.8)
    for i in range(n_past):
        quiet.update(10.0 * np.exp(scatter[i]), 10.0 * i)
    seen = quiet.sensitivity()
    assert seen is not None
    ratio = smallest(seen, 15, written=math.log1p)
    assert ratio is not None

    def share_found(by: float) -> float:
        test = deepcopy(quiet)
        shifted = 10.0 * (1.0 + by) * np.exp(scatter[n_past : n_past + 15])
        verdicts = [test.update(v, 10.0 * (n_past + i)) for i, v in enumerate(shifted)]
        return float(np.any([each.opened for each in verdicts], axis=0).mean())

    # Five of six; runs differ in what they have shown.
    assert share_found(ratio) > 0.65
    # Half of it is not found so soon: the figure is no bound that is far off.
    assert share_found(ratio / 2) < 0.35


def test_the_budget_is_the_share_of_rules_that_the_page_of_rules_shows() -> None:
    inputs = inputs_of(steps_of(20), pages=1.5)

    for rules, accepted in zip((OF_STEPS, OF_PARTS), false_per_year(inputs), strict=True):
        shares = [share(r, "page", severities=SEVERITIES, pages_per_year=1.5) for r in rules]
        assert 0 not in shares
        assert accepted == pytest.approx(sum(shares))
    # Without a setting: the usual one.
    usual = inputs_of(steps_of(20))
    assert false_per_year(usual)[0] == pytest.approx(4 * false_per_year(inputs)[0])


def test_a_smaller_budget_asks_for_more_evidence_at_once() -> None:
    steps = steps_of(200, change=from_step(140, "compute_s", 1.2, workers=[2]))
    cache: dict[float, dict[str, Any]] = {6.0: {}, 0.06: {}}
    needed = {}
    for pages, each in cache.items():
        [finding] = find_slowdowns(inputs_of(steps, each, pages=pages))
        needed[pages] = finding.evidence["level_nats"]
    assert needed[0.06] / needed[6.0] > 1.1

    # A run that others have joined since: what it needs from its next value on.
    watch = cache[6.0]["r"]
    before = watch.steps.plan.test.level_nats[0]
    hardware_before = watch.parts.alarm_level()
    find_slowdowns(inputs_of(steps, cache[6.0], pages=0.06))
    after = watch.steps.plan.test.level_nats[0]
    assert after - before >= math.log(100) - 1e-6
    assert watch.parts.alarm_level() - hardware_before == pytest.approx(math.log(100))


def test_a_finding_carries_what_could_be_found_in_its_run() -> None:
    cache: dict[str, Any] = {}
    steps = steps_of(200, change=from_step(140, "compute_s", 1.2, workers=[2]))
    [finding] = find_slowdowns(inputs_of(steps, cache))

    limits = limits_of(cache["r"].steps)
    assert limits is not None
    assert finding.evidence["limits"] == asdict(limits)
    assert json.loads(json.dumps(finding.evidence["limits"])) == asdict(limits)
