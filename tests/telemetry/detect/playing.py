"""Steps made, and what detection says of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.detect.findings import Finding
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.slowdowns import find_slowdowns
from telemetry.steps import StepBatch

START_S = 1_000_000.0
TOKENS = 1e6
# Seconds of each phase of a healthy worker, without its wait.
USUAL = {
    "compute_s": 0.82,
    "transfer_s": 0.16,
    "input_s": 0.03,
    "checkpoint_s": 0.0,
    "other_s": 0.02,
}
# The step as detection counts it: without other time.
STEP_S = 1.01
Change = Callable[[dict[str, FloatArray]], None]


def unchanged(_phases: dict[str, FloatArray]) -> None:
    """Leave the phases as they are."""


def steps_of(
    n_steps: int,
    *,
    n_workers: int = 4,
    change: Change = unchanged,
    seed: int = 1,
    noise: float = 0.003,
    first: int = 0,
    start_s: float = START_S,
    tokens: float = TOKENS,
) -> StepBatch:
    """Return steps of little more than a second.

    ``change`` gets phases (n_steps, n_workers) but the wait.

    Workers meet once a step: who is early waits for the latest.
    """
    rng = np.random.default_rng(seed)
    shape = (n_steps, n_workers)
    phases = {name: np.full(shape, usual) for name, usual in USUAL.items()}
    phases["compute_s"] *= np.exp(noise * rng.standard_t(4, shape))
    phases["transfer_s"] *= np.exp(noise * rng.standard_t(4, (n_steps, 1)))
    change(phases)
    own_s = phases["compute_s"] + phases["input_s"] + phases["other_s"]
    phases["wait_s"] = own_s.max(axis=1, keepdims=True) - own_s
    whole_s = sum(phases.values(), np.zeros(shape)).mean(axis=1)
    return StepBatch(
        "r",
        tuple(f"n{i}" for i in range(n_workers)),
        first + np.arange(n_steps),
        start_s + np.cumsum(whole_s),
        phases,
        np.full(n_steps, tokens),
    )


def from_step(at: int, phase: str, factor: float, *, until: int | None = None,
              workers: Sequence[int] | None = None) -> Change:  # fmt: skip
    """Return a change of one phase of some workers, of all by default, from a step on."""

    def change(phases: dict[str, FloatArray]) -> None:
        rows = slice(None) if workers is None else list(workers)
        phases[phase][at:until, rows] *= factor

    return change


def both(*changes: Change) -> Change:
    def change(phases: dict[str, FloatArray]) -> None:
        for each in changes:
            each(phases)

    return change


def joined(*batches: StepBatch) -> StepBatch:
    return StepBatch.joined(batches)


def with_phases(steps: StepBatch, phases: Mapping[str, FloatArray]) -> StepBatch:
    return replace(steps, phases={**steps.phases, **phases})


def untimed(steps: StepBatch) -> StepBatch:
    """Return steps without timed exchanges: they are inside the compute time."""
    missing = np.full_like(steps.phases["wait_s"], np.nan)
    inside = ("compute_s", "wait_s", "transfer_s")
    return with_phases(
        steps,
        {"compute_s": steps.sum_phases(inside), "wait_s": missing, "transfer_s": missing.copy()},
    )


def sampled(steps: StepBatch, *, every: int) -> StepBatch:
    """Return steps of which one in so many has a timed exchange."""
    is_timed = (np.arange(len(steps)) % every == 0)[:, None]
    without = untimed(steps).phases
    return with_phases(
        steps,
        {name: np.where(is_timed, values, without[name]) for name, values in steps.phases.items()},
    )


def uneven(at: int, *, scatter: float = 0.12, seed: int = 5) -> Change:
    """Return a change to sequences of uneven length: another worker is late in each step."""

    def change(phases: dict[str, FloatArray]) -> None:
        compute_s = phases["compute_s"][at:]
        rng = np.random.default_rng(seed)
        compute_s *= np.exp(scatter * rng.standard_normal(compute_s.shape))

    return change


def no_hardware(nodes: tuple[str, ...], now_s: float) -> Callable[[Sequence[str], int], Span]:
    def hardware(_metrics: Sequence[str], last_s: int) -> Span:
        return Span("s", np.arange(int(now_s) - last_s + 1, int(now_s) + 1), nodes, {})

    return hardware


def inputs_of(
    steps: StepBatch, cache: dict[str, Any] | None = None, *, pages: float | None = None
) -> DetectionInput:
    """Return the inputs of a run once these steps were reported; without hardware."""
    now_s = float(steps.ended_at_s[-1]) + 30.0
    return DetectionInput(
        run="r",
        nodes=steps.workers,
        steps=steps,
        hardware=no_hardware(steps.workers, now_s),
        now_s=now_s,
        watches=cache,
        false_pages_per_year=pages,
    )


def found(
    steps: StepBatch,
    *,
    nodes: tuple[str, ...] | None = None,
    n_stages: int = 1,
    now_s: float | None = None,
    cache: dict[str, Any] | None = None,
) -> list[Finding]:
    """Return what detection finds once these steps were reported; without hardware."""
    if now_s is None:
        now_s = float(steps.ended_at_s[-1]) + 30.0 if len(steps) else START_S
    nodes = (
        tuple(dict.fromkeys(w.partition("/")[0] for w in steps.workers))
        if nodes is None
        else nodes
    )
    return find_slowdowns(
        DetectionInput(
            run="r",
            nodes=nodes,
            steps=steps,
            hardware=no_hardware(nodes, now_s),
            now_s=now_s,
            n_stages=n_stages,
            watches=cache,
        )
    )


def watched(
    steps: StepBatch, *, every: int = 5, since: int = 0, n_stages: int = 1
) -> list[list[Finding]]:
    """Return what detection finds after each so many steps, as they are reported."""
    cache: dict[str, Any] = {}
    return [
        found(
            steps[max(0, end - 300) : end],
            cache=cache,
            now_s=float(steps.ended_at_s[end - 1]),
            n_stages=n_stages,
        )
        for end in range(max(every, since), len(steps) + 1, every)
    ]
