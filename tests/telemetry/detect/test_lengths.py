"""Steps that differ by much, as those of texts of any length do."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from telemetry.blocks import FloatArray
from telemetry.detect.findings import Finding
from telemetry.detect.slowdowns import find_slowdowns
from tests.telemetry.detect.playing import Change, inputs_of, steps_of, untimed

N_STEPS, SLOW_FROM = 500, 350
IN_TURN = "one after the other"
Draw = Callable[[np.random.Generator, int], FloatArray]
LENGTHS: dict[str, Draw] = {
    "two buckets": lambda rng, n: np.where(rng.random(n) < 0.5, 1.6, 1.0),
    "mostly long": lambda rng, n: np.where(rng.random(n) < 0.8, 1.6, 1.0),
    "three buckets": lambda rng, n: rng.choice([1.0, 1.3, 1.9], n),
    IN_TURN: lambda _, n: 1.0 + 0.6 * (np.arange(n) % 2),
}


def of_lengths(draw: Draw, seed: int, *, slower: float) -> Change:
    """Return a change to steps of these lengths, alike for all workers."""

    def change(phases: dict[str, FloatArray]) -> None:
        n_steps = len(phases["compute_s"])
        factor = draw(np.random.default_rng(seed), n_steps)
        factor = factor * np.where(np.arange(n_steps) >= SLOW_FROM, slower, 1.0)
        for name in ("compute_s", "transfer_s"):
            phases[name] *= factor[:, None]

    return change


def alerts(draw: Draw, seed: int, *, slower: float) -> Iterator[tuple[int, list[Finding]]]:
    """Look after each ten steps; yield after how many something is found, and what."""
    steps = untimed(steps_of(N_STEPS, change=of_lengths(draw, seed, slower=slower)))
    watches: dict[str, Any] = {}
    for end in range(10, N_STEPS + 1, 10):
        seen = inputs_of(steps[max(0, end - 120) : end], watches)
        now_s = float(steps.ended_at_s[end - 1]) + 0.5
        if findings := find_slowdowns(replace(seen, now_s=now_s)):
            yield end, findings


@pytest.mark.parametrize("name", LENGTHS)
def test_steps_of_any_length_are_no_slowdown(name: str) -> None:
    for seed in range(3 if name != IN_TURN else 1):
        assert list(alerts(LENGTHS[name], seed, slower=1.0)) == []


@pytest.mark.parametrize("name", LENGTHS)
def test_a_slowdown_of_them_all_is_found(name: str) -> None:
    end, [finding] = next(alerts(LENGTHS[name], 7, slower=2.0))
    assert (finding.rule, finding.node) == ("step_slow", None)
    assert SLOW_FROM < end <= SLOW_FROM + 100
