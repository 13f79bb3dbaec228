"""Error rates of trial verdicts, with and without a real difference."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from bench.table import print_table
from telemetry.blocks import FloatArray
from telemetry.statistics.bootstrap import (
    ArmSamples,
    Measure,
    RunEstimate,
    difference,
    estimate,
)
from telemetry.statistics.verdicts import DEFAULT_STEPS, MARGIN_RATIO, TrialWord, verdict

N_TRIALS = 400
LOOKS = (0.1, 0.25, 0.5, 0.75, 1.0)
REPLICATES = (1, 3, 5)
RUN_CVS = (0.002, 0.005, 0.01)
TRUE_RATIO = 0.10
COST = Measure("usd", "tokens", is_better_low=True)


def measure(env: Mapping[str, str]) -> dict[str, Any]:
    """Judge trials of made steps at five looks, and count the words that are wrong."""
    began_s = time.perf_counter()
    cases = []
    with ProcessPoolExecutor() as pool:
        for name, found in zip(STEPS, pool.map(judged, STEPS), strict=True):
            cases += found
            print_table(
                f"{name}: {N_TRIALS:,} trials of {DEFAULT_STEPS:,} steps",
                [
                    (f"{case['runs']} per arm, {case['run_cv']:.1%} between runs", written(case))
                    for case in found
                ],
            )
    took_s = round(time.perf_counter() - began_s, 1)
    print_table("Trials", [("took", f"{took_s:.0f} s")])
    return {
        "bench": "trials",
        "trials": N_TRIALS,
        "looks": LOOKS,
        "margin_ratio": MARGIN_RATIO,
        "took_s": took_s,
        "cases": cases,
    }


def written(case: Mapping[str, Any]) -> str:
    """Write the counts of one case, with the budget of the wrong words."""
    return (
        f"equal: wrong {case['wrong']:3} ({case['wrong'] / N_TRIALS:5.1%}, budget 5 %), "
        f"equivalent {case['equivalent']:3}; "
        f"differ by {MARGIN_RATIO:.0%}: wrong {case['wrong_at_margin']:3}; "
        f"by {TRUE_RATIO:.0%}: found {case['found']:3} ({case['found'] / N_TRIALS:.1%})"
    )


def judged(name: str) -> list[dict[str, Any]]:
    """Count the words of every case of one kind of steps."""
    runs = STEPS[name](np.random.default_rng(5), N_TRIALS * 2 * max(REPLICATES))
    return [{"steps": name} | case for case in counted(estimates(runs))]


def estimates(runs: FloatArray) -> list[list[RunEstimate]]:
    """Measure each of (n_runs, n_steps) runs at every look."""
    return [
        [
            estimate(
                ArmSamples(("usd", "tokens"), np.stack([so_far, np.ones_like(so_far)], axis=1)),
                COST,
            )
            for so_far in (run[: int(look * DEFAULT_STEPS)] for look in LOOKS)
        ]
        for run in runs
    ]


def counted(runs: list[list[RunEstimate]]) -> list[dict[str, Any]]:
    """Count the words by variation between runs and runs per arm.

    Wrong words count if they fall in any look, right ones at the last.
    """
    cases = []
    most = max(REPLICATES)
    # The same runs with another pace each: it changes nothing but their value.
    deviations = np.random.default_rng(6).normal(size=len(runs))
    for run_cv in RUN_CVS:
        paced = [
            [replace(each, value=each.value * float(np.exp(run_cv * off))) for each in run]
            for run, off in zip(runs, deviations, strict=True)
        ]
        for n in REPLICATES:
            counts = dict.fromkeys(("wrong", "equivalent", "wrong_at_margin", "found"), 0)
            for trial in range(N_TRIALS):
                first = 2 * most * trial
                arms = (paced[first : first + n], paced[first + most : first + most + n])
                same = words(arms, 0.0)
                counts["wrong"] += bool({TrialWord.BETTER, TrialWord.WORSE} & set(same))
                counts["equivalent"] += same[-1] == TrialWord.EQUIVALENT
                close = words(arms, MARGIN_RATIO)
                counts["wrong_at_margin"] += bool(
                    {TrialWord.BETTER, TrialWord.EQUIVALENT} & set(close)
                )
                counts["found"] += words(arms, TRUE_RATIO)[-1] == TrialWord.WORSE
            cases.append({"run_cv": run_cv, "runs": n} | counts)
    return cases


def words(
    arms: tuple[list[list[RunEstimate]], list[list[RunEstimate]]], ratio: float
) -> list[TrialWord]:
    """Judge a trial at each look, the candidate dearer by ``ratio``."""
    found = []
    for look, share in enumerate(LOOKS):
        baseline, candidate = ([run[look] for run in arm] for arm in arms)
        candidate = [replace(run, value=run.value * (1 + ratio)) for run in candidate]
        found.append(
            verdict(
                difference(baseline, candidate),
                is_better_low=True,
                n_steps=int(share * DEFAULT_STEPS),
                n_planned=DEFAULT_STEPS,
            ).word
        )
    return found


def remembering(rng: np.random.Generator, n_runs: int, ratio: float) -> FloatArray:
    """Return first-order autoregressions of variance one: (n_runs, n_steps)."""
    values = rng.normal(size=(DEFAULT_STEPS, n_runs))
    for step in range(1, DEFAULT_STEPS):
        values[step] = ratio * values[step - 1] + np.sqrt(1 - ratio**2) * values[step]
    return np.asarray(values.T)


def independent(rng: np.random.Generator, n_runs: int) -> FloatArray:
    return rng.normal(size=(n_runs, DEFAULT_STEPS))


def regimes(rng: np.random.Generator, n_runs: int, stay: int) -> FloatArray:
    """Return levels of plus and minus one, each for ``stay`` steps on average."""
    is_change = rng.random((n_runs, DEFAULT_STEPS)) < 1 / stay
    is_change[:, 0] = rng.random(n_runs) < 0.5
    return np.where(np.cumsum(is_change, axis=1) % 2, 1.0, -1.0)


def drifting(rng: np.random.Generator, n_runs: int, rise_cv: float) -> FloatArray:
    """Return steps whose level changes steadily, each run's by another amount."""
    rise = rise_cv * rng.normal(size=(n_runs, 1)) * np.linspace(0, 1, DEFAULT_STEPS)
    return 1 + 0.05 * independent(rng, n_runs) + rise


# Step times of runs with a mean of one second: (n_runs, n_steps).
STEPS: Mapping[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "independent": lambda rng, n: 1 + 0.05 * independent(rng, n),
    "autoregression 0.9": lambda rng, n: 1 + 0.05 * remembering(rng, n, 0.9),
    "autoregression 0.98": lambda rng, n: 1 + 0.05 * remembering(rng, n, 0.98),
    "two regimes, 5 % apart": lambda rng, n: (
        1 + 0.025 * regimes(rng, n, 400) + 0.02 * independent(rng, n)
    ),
    "two memories, 0.5 and 0.995": lambda rng, n: (
        1 + 0.03 * remembering(rng, n, 0.5) + 0.02 * remembering(rng, n, 0.995)
    ),
    "drift of 2 %, either way": lambda rng, n: drifting(rng, n, 0.02),
    "drift of 4 %, either way": lambda rng, n: drifting(rng, n, 0.04),
    "heavy tails (Pareto 2.5)": lambda rng, n: 1 + 0.05 * rng.pareto(2.5, size=(n, DEFAULT_STEPS)),
}
