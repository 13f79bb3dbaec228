"""Error rates of trial verdicts, and how often a projection's interval holds the outcome."""

import math
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
from telemetry.statistics.forecast import (
    ASSUMED_OUTAGE_ERROR_LOG,
    ASSUMED_OUTAGE_S,
    EXTRA_NODE_DAYS,
    ArmRates,
    Rate,
    Uncertainty,
    course,
    drawn,
    interval,
    pace_error_log,
    spread_log,
)
from telemetry.statistics.verdicts import DEFAULT_STEPS, MARGIN_RATIO, TrialWord, verdict
from telemetry.units import DAY_S

N_TRIALS = 400
LOOKS = (0.1, 0.25, 0.5, 0.75, 1.0)
REPLICATES = (1, 3, 5)
RUN_CVS = (0.002, 0.005, 0.01)
TRUE_RATIO = 0.10
COST = Measure("usd", "tokens", is_better_low=True)


def measure(env: Mapping[str, str]) -> dict[str, Any]:
    """Judge trials of made steps at five looks, and project long runs from one day."""
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
        projections = [case for found in pool.map(projected, STEPS) for case in found]
    print_table(
        f"Projections of {DAYS:.0f} days from one: outcomes within the 95 % interval (aim 93 %)",
        [
            (
                f"{case['steps']}, {case['failures_per_node_day']:g} failures per node-day",
                f"{case['inside']} of {N_TRIALS} ({case['inside'] / N_TRIALS:.1%})",
            )
            for case in projections
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
        "projections": projections,
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


# A run of four nodes for a day, then one of 14 days elsewhere: dollars do not matter here.
N_NODES, TRIAL_DAYS, DAYS = 4, 1.0, 14.0
RATES_PER_NODE_DAY = (0.02, 0.1, 0.5)
CHECKPOINT_EVERY_S, LOAD_S = 1_800.0, 300.0
# Unknown to the projection: times between failures, outages, and the next run's pace.
WEIBULL_SHAPE, OUTAGE_S, OUTAGE_CV, RUN_CV = 0.7, 1_200.0, 0.5, 0.01


def projected(name: str) -> list[dict[str, Any]]:
    """Count how often 14 days train as many tokens as one day let expect."""
    rng = np.random.default_rng(7)
    runs = STEPS[name](rng, N_TRIALS)
    cases = []
    for rate in RATES_PER_NODE_DAY:
        inside = 0
        for step_s in runs:
            observed_s = step_s * np.exp(RUN_CV * rng.normal())
            tokens = np.ones_like(step_s)
            # A level that moved stays where it ended; all other steps keep their mean.
            ended = name.startswith("drift")
            level_s = step_s[-len(step_s) // 20 :].mean() if ended else STEPS_MEAN_S.get(name, 1.0)
            true_s = level_s * np.exp(RUN_CV * rng.normal())
            trained_s, outages_s = lived(rate, TRIAL_DAYS, rng)
            low, high = expected(tokens, observed_s, trained_s, outages_s)
            inside += low <= lived(rate, DAYS, rng)[0] / true_s <= high
        cases.append({"steps": name, "failures_per_node_day": rate, "inside": inside})
    return cases


def lived(rate: float, days: float, rng: np.random.Generator) -> tuple[float, list[float]]:
    """Live through some days: seconds of training that count, and the outages."""
    mean_s = DAY_S / (rate * N_NODES)
    scale_s = mean_s / math.gamma(1 + 1 / WEIBULL_SHAPE)
    left_s, counted_s = days * DAY_S - LOAD_S, 0.0
    outages_s: list[float] = []
    while left_s > 0:
        until_failure_s = scale_s * rng.weibull(WEIBULL_SHAPE)
        if until_failure_s >= left_s:
            return counted_s + left_s, outages_s
        counted_s += until_failure_s - until_failure_s % CHECKPOINT_EVERY_S
        spread = math.sqrt(math.log1p(OUTAGE_CV**2))
        outages_s.append(float(OUTAGE_S * rng.lognormal(-(spread**2) / 2, spread)))
        left_s -= until_failure_s + outages_s[-1] + LOAD_S
    return counted_s, outages_s


def expected(
    tokens: FloatArray, step_s: FloatArray, trained_s: float, outages_s: list[float]
) -> tuple[float, float]:
    """Return the 95 % interval of the tokens of 14 days, as a schedule computes it."""
    days = trained_s / DAY_S
    failures = Rate(len(outages_s), N_NODES * days, extra_exposure=EXTRA_NODE_DAYS)
    rates = ArmRates(
        n_nodes=N_NODES,
        usd_per_hour=1.0,
        tokens_per_s=float(tokens.sum() / step_s.sum()),
        checkpoint_s_per_hour=0.0,
        checkpoint_every_s=CHECKPOINT_EVERY_S,
        compile_s=0.0,
        load_s=LOAD_S,
        warm_up_s=0.0,
        failures_per_node_day=failures.mean,
        recompiles_per_day=0.0,
        outage_s=float(np.mean(outages_s)) if outages_s else ASSUMED_OUTAGE_S,
    )
    doubt = Uncertainty(
        pace_error_log(tokens, step_s),
        failures,
        outage_error_log=spread_log(outages_s, of_next=False) or ASSUMED_OUTAGE_ERROR_LOG,
    )
    could = drawn(rates, doubt, days=DAYS, rng=np.random.default_rng(8))
    return interval(np.asarray(course(could, has_reuse=True).tokens_by(DAYS)))


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
# Their mean, where it is not one second.
STEPS_MEAN_S: Mapping[str, float] = {"heavy tails (Pareto 2.5)": 1 + 0.05 / (2.5 - 1)}
