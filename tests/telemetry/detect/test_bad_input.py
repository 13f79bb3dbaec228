"""Whatever is reported: no exception, no warning of numpy, and no finding without a problem."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.blocks import FloatArray
from telemetry.steps import PHASES, StepBatch
from tests.telemetry.detect.playing import STEP_S, found, steps_of, untimed

N = 60
# Opposite infinities in one worker fail in `StepBatch` already, before detection sees them.
BAD = (np.nan, np.inf, 0.0, -1.0, -1e12, 1e12)
rows = st.integers(0, N - 1)
SHAPES = ("timed", "untimed", "constant", "one worker", "no worker", "one step", "no step")


def shaped(shape: str) -> StepBatch:
    steps = steps_of(N, n_workers={"one worker": 1, "no worker": 0}.get(shape, 3) or 1)
    if shape == "untimed":
        return untimed(steps)
    if shape == "constant":
        return steps_of(N, n_workers=3, noise=0.0)
    if shape == "no worker":
        empty = {name: np.zeros((N, 0)) for name in PHASES}
        return replace(steps, workers=(), phases=empty)
    return steps[: {"one step": 1, "no step": 0}.get(shape, N)]


def played(steps: StepBatch, *, pieces: int = 3, n_stages: int = 1) -> None:
    """Report steps bit by bit; whatever comes is read."""
    cache: dict[str, Any] = {}
    for end in range(0, len(steps) + 1, max(1, len(steps) // pieces)):
        found(steps[:end], cache=cache, nodes=("n0", "n1", "n2"), n_stages=n_stages)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), shape=st.sampled_from(SHAPES), n_stages=st.integers(1, 3))
def test_bad_values_raise_neither_exception_nor_warning(
    data: st.DataObject, shape: str, n_stages: int
) -> None:
    steps = shaped(shape)
    phases = {name: values.copy() for name, values in steps.phases.items()}
    where = st.tuples(st.sampled_from(PHASES), rows, st.integers(0, 2), st.integers(1, 30))
    for (phase, row, worker, length), value in data.draw(
        st.lists(st.tuples(where, st.sampled_from(BAD)), max_size=8)
    ):
        phases[phase][row : row + length, worker : worker + 1] = value
    ended_at_s = steps.ended_at_s.copy()
    for row, jump_s in data.draw(
        st.lists(st.tuples(rows, st.sampled_from([-1e9, -5.0, 0.5, 3600.0, 1e9])), max_size=3)
    ):
        ended_at_s[row:] += jump_s
    order = np.arange(len(steps))
    kind = data.draw(st.sampled_from(["in order", "shuffled", "repeated", "gaps"]))
    if kind == "shuffled":
        np.random.default_rng(0).shuffle(order)
    elif kind == "repeated":
        order = np.repeat(order, 2)[: len(steps)]
    numbers = steps.step[order] * (3 if kind == "gaps" else 1)
    tokens = steps.tokens.copy()
    for row, value in data.draw(st.lists(st.tuples(rows, st.sampled_from(BAD)), max_size=2)):
        tokens[row:] = value

    played(
        replace(steps, step=numbers, ended_at_s=ended_at_s, phases=phases, tokens=tokens),
        n_stages=n_stages,
    )


def missing_phase(steps: StepBatch, phase: str, spoiled: slice) -> StepBatch:
    phases = {name: values.copy() for name, values in steps.phases.items()}
    phases[phase][spoiled] = np.nan
    return replace(steps, phases=phases)


def with_gaps(steps: StepBatch, spoiled: slice) -> StepBatch:
    """Let a worker go and come again."""
    phases = {name: values.copy() for name, values in steps.phases.items()}
    for values in phases.values():
        values[spoiled, 1] = np.nan
    return replace(steps, phases=phases)


def with_lost_values(steps: StepBatch, spoiled: slice) -> StepBatch:
    compute_s: FloatArray = steps.phases["compute_s"].copy()
    compute_s[spoiled, 0] = np.inf
    compute_s[spoiled.start : spoiled.start + 2, 2] = np.nan
    return replace(steps, phases={**steps.phases, "compute_s": compute_s})


DEFECTS: Mapping[str, Callable[[StepBatch, slice], StepBatch]] = {
    "none": lambda steps, _: steps,
    "a worker comes and goes": with_gaps,
    "infinite and missing values": with_lost_values,
    "input vanishes": lambda steps, spoiled: missing_phase(steps, "input_s", spoiled),
    "checkpoint vanishes": lambda steps, spoiled: missing_phase(steps, "checkpoint_s", spoiled),
    "exchanges vanish": lambda steps, spoiled: missing_phase(
        missing_phase(steps, "wait_s", spoiled), "transfer_s", spoiled
    ),
    "steps are missing": lambda steps, spoiled: steps[
        (np.arange(len(steps)) < spoiled.start) | (np.arange(len(steps)) >= spoiled.stop)
    ],
    "the clock jumps back": lambda steps, spoiled: replace(
        steps,
        ended_at_s=steps.ended_at_s - 3.0 * STEP_S * (np.arange(len(steps)) >= spoiled.start),
    ),
    "the clock jumps ahead": lambda steps, spoiled: replace(
        steps, ended_at_s=steps.ended_at_s + 3600.0 * (np.arange(len(steps)) >= spoiled.start)
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1000), at=st.integers(20, 100), n_workers=st.sampled_from([3, 8]))
def test_a_healthy_run_with_defects_has_no_finding(
    defect: str, seed: int, at: int, n_workers: int
) -> None:
    steps = DEFECTS[defect](steps_of(150, n_workers=n_workers, seed=seed), slice(at, at + 30))
    cache: dict[str, Any] = {}
    for end in (at + 5, at + 20, at + 40, len(steps)):
        now = steps[:end].reported
        assert found(now, cache=cache, nodes=steps.workers) == []


def test_a_run_without_workers_or_steps_has_no_finding() -> None:
    for shape in ("no worker", "no step", "one step", "one worker", "constant"):
        assert found(shaped(shape), nodes=("n0",)) == [], shape
    assert found(StepBatch.empty("r"), nodes=()) == []
