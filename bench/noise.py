"""Noise of simulated steps beside that of public runs."""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.evidence import detrended, fit, recordings
from bench.table import print_table
from telemetry.blocks import FloatArray
from telemetry.simulate.plan import Noise, Plan, RunSpec
from telemetry.simulate.shard import played_steps, start_clock
from telemetry.simulate.step_model import step_plan

# Of 36 configurations of 96 public series, steps of 2 to 27 s on several devices: 10th percentile,
# median, 90th percentile over configurations. docs/physics.md has the sources.
MEASURED: Mapping[str, tuple[float, float, float]] = {
    "robust deviation %, detrended": (0.10, 0.34, 2.2),
    "robust deviation %": (0.29, 0.63, 2.6),
    "degrees of freedom": (0.85, 1.7, 3.0),
    "skew, cut off at 5 deviations": (0.68, 1.25, 1.44),
    "% of steps above 1.05": (0.24, 1.7, 7.7),
    "% of steps above 1.1": (0.0, 0.44, 3.7),
    "% of steps above 1.2": (0.0, 0.26, 2.6),
    "% of steps above 1.5": (0.0, 0.04, 1.1),
    "correlation with the next, detrended": (-0.07, 0.12, 0.46),
    "correlation with the next": (0.11, 0.39, 0.76),
    "variance of means of 5 steps, over independent": (1.4, 2.4, 4.0),
    "variance of means of 20 steps, over independent": (3.0, 6.4, 13.0),
    "variance of means of 100 steps, over independent": (7.1, 15.0, 39.0),
    "first step, over the median": (1.0, 1.4, 7.4),
}
N_RUNS, N_STEPS = 200, 1500
# Of the same configurations: seconds of a step.
SHARES, STEP_S = (0.1, 0.5, 0.9), (2.0, 12.5, 26.5)
RUN = RunSpec(
    name="noise",
    model="llama2-7b",
    instance="trn1.32xlarge",
    nodes=8,
    tp=8,
    seq_len=4096,
    global_batch=32,
    compile_s=0,
)
EPOCH_S = 1_800_000_000
# Figures but the last begin with the first step that is this close to the median.
SETTLED_RATIO = 0.05


def measure(env: Mapping[str, str], *, folder: str = "") -> dict[str, Any]:
    """Draw runs with measured noise, and compare their figures with those of public runs.

    With a folder of recorded step times, as for `evidence`, their figures are computed, too.
    """
    columns = {"simulated": percentiles([figures(step_s) for step_s in simulated()])}
    columns["measured"] = {name: list(each) for name, each in MEASURED.items()}
    if folder:
        columns["recorded"] = percentiles(list(recorded(recordings(folder, env))))
    title = f"Noise of {N_RUNS} simulated runs: 10th percentile, median, 90th percentile"
    print_table(f"{title}; {'; '.join(columns)}", rows(columns))
    return {"bench": "noise", "runs": N_RUNS} | columns


def rows(columns: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[tuple[str, str]]:
    for name in MEASURED:
        triples = (" ".join(f"{x:7.2f}" for x in each[name]) for each in columns.values())
        yield name, "   ".join(triples)


def simulated(n_runs: int = N_RUNS, n_steps: int = N_STEPS) -> Iterator[FloatArray]:
    """Play runs of different pace, each with noise of its own: yield (n_steps,) seconds."""
    each_s = step_plan(RUN).step_s
    for seed in range(n_runs):
        wanted_s = float(np.exp(np.interp((seed + 0.5) / n_runs, SHARES, np.log(STEP_S))))
        batch = RUN.global_batch * max(1, round(wanted_s / each_s))
        run = msgspec.structs.replace(RUN, global_batch=batch, max_steps=n_steps)
        plan = Plan(run=run, seed=seed, epoch_s=EPOCH_S, noise=Noise(measured=True))
        until = EPOCH_S + 3600 + int(3 * n_steps * wanted_s)
        yield played_steps(plan, start_clock(plan), until).step_s


def recorded(folder: Path) -> Iterator[dict[str, float]]:
    """Yield the figures of each configuration of single steps: medians of its repeats."""
    found = defaultdict(list)
    with (folder / "MANIFEST.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["label"] in {"healthy", "incident"} and row["kind"] != "block mean":
                series = np.genfromtxt(folder / f"{row['name']}.csv", delimiter=",", names=True)
                found[row["config"]].append(figures(np.atleast_1d(series["step_s"])))
    for each in found.values():
        yield {name: float(np.median([f[name] for f in each])) for name in MEASURED}


def percentiles(runs: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {
        name: np.nanpercentile([run[name] for run in runs], [10, 50, 90]).tolist()
        for name in MEASURED
    }


def figures(step_s: FloatArray) -> dict[str, float]:
    """Compute the figures of one run; the long steps at its beginning count as such only.

    NaN where all values are equal: recordings are rounded.
    """
    ratio = step_s / np.median(step_s)
    level = np.log(ratio[max(1, int(np.argmax(np.abs(ratio - 1) < SETTLED_RATIO))) :])
    residual, ratio = detrended(level), np.exp(level)
    df, _ = fit(residual)
    cut, cut_level = cut_off(residual), cut_off(level)
    above = (100 * float(np.mean(ratio > limit)) for limit in (1.05, 1.1, 1.2, 1.5))
    with np.errstate(invalid="ignore", divide="ignore"):
        values = (
            100 * robust_deviation(residual),
            100 * robust_deviation(level),
            df,
            float(np.mean((cut - cut.mean()) ** 3) / cut.std() ** 3),
            *above,
            float(np.corrcoef(cut[1:], cut[:-1])[0, 1]),
            float(np.corrcoef(cut_level[1:], cut_level[:-1])[0, 1]),
            *(inflated(cut_level, n) for n in (5, 20, 100)),
            float(step_s[0] / np.median(step_s)),
        )
    return dict(zip(MEASURED, values, strict=True))


def robust_deviation(values: FloatArray) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def cut_off(values: FloatArray) -> FloatArray:
    most = 5 * robust_deviation(values)
    return np.clip(values, np.median(values) - most, np.median(values) + most)


def inflated(values: FloatArray, n: int) -> float:
    """Compare the variance of means of n values with that of independent values.

    NaN where there are fewer than five means.
    """
    n_means = len(values) // n
    if n_means < 5:
        return float("nan")
    means = values[: n_means * n].reshape(n_means, n).mean(axis=1)
    return float(n * means.var() / values.var())
