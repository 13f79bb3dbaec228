"""Error rates of trial verdicts, with and without a real difference."""

import time
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from bench.table import print_table
from fleet.simulation.demo import FLEET
from telemetry.blocks import FloatArray
from telemetry.simulate.plan import Plan
from telemetry.simulate.shard import clock_at, played_steps, start_clock
from telemetry.statistics.bootstrap import ArmSamples, Measure, differences
from telemetry.statistics.verdicts import DEFAULT_STEPS, TrialWord, verdict

N_TRIALS = 1_000
CHECKS = (0.1, 0.25, 0.5, 0.75, 1.0)
TRUE_RATIO = 1.10
PIECE_S = 6 * 3600
N_STEPS = N_TRIALS * 2 * DEFAULT_STEPS
MEMORY = 0.98
MEASURES = {"usd_per_token": Measure("usd", "tokens", is_better_low=True)}


def measure(env: Mapping[str, str]) -> None:
    """Hold the trials, and print how often a word fell."""
    began_s = time.perf_counter()
    for name, steps in (
        ("a simulated run, checkpoints and all", simulated()),
        ("steps that remember fifty, and rare long ones", autocorrelated()),
    ):
        windows = steps.reshape(-1, 2, DEFAULT_STEPS)
        same = has_verdict(windows, ratio=1.0, checks=CHECKS)
        other = has_verdict(windows, ratio=TRUE_RATIO, checks=(1.0,))
        n = len(windows)
        print_table(
            f"{n:,} trials of {DEFAULT_STEPS:,} steps a side: {name}",
            [
                (
                    "nothing differs: a verdict in one of five looks",
                    counted(same.any(axis=1), "<= 5 %"),
                ),
                ("nothing differs: a word at the end", counted(same[:, -1], "<= 5 %")),
                ("10 % more expensive: found at the end", counted(other[:, -1], ">= 95 %")),
            ],
        )
    print_table("Trials", [("took", f"{time.perf_counter() - began_s:.0f} s")])


def counted(results: npt.NDArray[np.bool_], budget: str) -> str:
    """Format a count of trials, with its budget."""
    return f"{results.sum():,} ({results.mean():.1%}, budget {budget})"


def has_verdict(
    windows: FloatArray, *, ratio: float, checks: tuple[float, ...]
) -> npt.NDArray[np.bool_]:
    """Whether a verdict was given: (n_trials, n_looks)."""
    rng = np.random.default_rng(1)
    results = np.zeros((len(windows), len(checks)), bool)
    for trial, (before, after) in enumerate(windows):
        for check, share in enumerate(checks):
            n = int(share * DEFAULT_STEPS)
            found = differences(arm(before[:n]), arm(ratio * after[:n]), MEASURES, rng=rng)
            result = verdict(
                found["usd_per_token"], is_better_low=True, n_steps=n, n_planned=DEFAULT_STEPS
            )
            results[trial, check] = result.word != TrialWord.CANNOT_TELL
    return results


def arm(step_s: FloatArray) -> ArmSamples:
    """Return an arm of a price of one a second and a token a step."""
    return ArmSamples(("usd", "tokens"), np.stack([step_s, np.ones_like(step_s)], axis=1))


def simulated() -> FloatArray:
    """Return the step times of a run of the demo fleet that trains for weeks, in seconds."""
    demo = next(each.spec for each in FLEET if each.spec.name == "vit-bakeoff-trn2")
    spec = msgspec.structs.replace(demo, compile_s=0)
    plan = Plan(run=spec, seed=1, epoch_s=0)
    clock, found, n_steps = start_clock(plan), [np.zeros(0)], 0
    while n_steps < N_STEPS:
        until = clock.tick + PIECE_S
        found.append(played_steps(plan, clock, until).step_s)
        clock, n_steps = clock_at(plan, clock, until), n_steps + len(found[-1])
    return np.concatenate(found)[-N_STEPS:]


def autocorrelated() -> FloatArray:
    """Return steps of which each remembers 98 % of the one before, and rare long ones."""
    rng = np.random.default_rng(2)
    noise = rng.normal(size=(DEFAULT_STEPS, N_STEPS // DEFAULT_STEPS))
    for step in range(1, DEFAULT_STEPS):
        noise[step] = MEMORY * noise[step - 1] + np.sqrt(1 - MEMORY**2) * noise[step]
    steps = 1.0 + 0.05 * noise.T
    steps[:, 150::200] += 3.0
    return steps.ravel()
