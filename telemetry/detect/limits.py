"""How small a slowdown a run's own noise lets detection find, and the budget that decides it."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.rules import SEVERITIES
from telemetry.detect.steps import LEAST_S, Steps
from telemetry.evidence import student
from telemetry.evidence.budget import PAGES_PER_YEAR, share
from telemetry.evidence.noise import CHUNK, N_RECENT
from telemetry.evidence.sequential import SIZES, Sensitivity
from telemetry.statistics.peers import GAUSSIAN
from telemetry.units import MINUTE_S

# The rules whose alerts a false alarm of steps, or of hardware, can be.
OF_STEPS, OF_PARTS = ("step_slow", "input_stall"), ("core_slow", "hbm_slow", "efa_degraded")
# Slowdowns between these are distinguished to 2 %: halved eight times.
LEAST, MOST, N_HALVES = 0.01, 1.0, 8
# In u = arcsinh t a density is smooth and its tail exponential: trapezoids suffice.
T, DT = (function(np.linspace(-10.0, 10.0, 201)) for function in (np.sinh, np.cosh))


def false_per_year(inputs: DetectionInput) -> tuple[float, float]:
    """Return the false alarms a year of one run that are accepted of its steps and its hardware.

    Any of them may page, so they are within the budget of pages.
    """
    pages = inputs.false_pages_per_year
    pages = PAGES_PER_YEAR if pages is None else pages
    of_steps, of_parts = (
        sum(share(rule, "page", severities=SEVERITIES, pages_per_year=pages) for rule in rules)
        for rules in (OF_STEPS, OF_PARTS)
    )
    return of_steps, of_parts


@dataclass(frozen=True, slots=True)
class Limits:
    """What can be found in a run now; ratios are of the usual step.

    Values scatter by ``scatter_ratio`` (a robust deviation). The smallest slowdown of all workers
    that is found within ``within_s`` is ``slowdown_ratio``, after ``within_steps``; of one worker
    ``worker_ratio``, None where it cannot be found so soon, or workers are not timed.
    ``within_s`` is a minute, or the time in which the largest slowdown is found if that is longer.
    A young run has little past: only large slowdowns are found.
    """

    scatter_ratio: float
    slowdown_ratio: float
    within_steps: int
    within_s: float
    worker_ratio: float | None
    is_young: bool


def limits_json(steps: Steps) -> dict[str, Any] | None:
    found = limits_of(steps)
    return asdict(found) if found is not None else None


def limits_of(steps: Steps) -> Limits | None:
    """Return what can be found in the steps of a run; None before its usual step is known.

    None also where steps of a run that is as it was are as long as any: nothing is found then.
    """
    plan = steps.plan
    if plan is None or plan.test is None:
        return None
    seen = plan.test.sensitivity(plan.cells["step"])
    if seen is None:
        return None
    steps_per_value = max(1, math.ceil(LEAST_S / plan.usual_s))
    value_s = steps_per_value * plan.usual_s
    least_values = values_until_found(math.log1p(MOST), seen)
    if math.isinf(least_values):
        return None
    # What is not found until it is part of the past is taken for wander of the level.
    n_values = max(min(int(MINUTE_S / value_s), N_RECENT * CHUNK), math.ceil(least_values))
    found = smallest(seen, n_values, written=math.log1p)
    if found is None:
        return None
    needed = math.ceil(values_until_found(math.log1p(found), seen))
    of_worker = plan.test.sensitivity(plan.cells["own"]) if "own" in plan.cells else None
    return Limits(
        scatter_ratio=scatter(seen.scale, seen.df),
        slowdown_ratio=found,
        within_steps=needed * steps_per_value,
        within_s=max(float(MINUTE_S), n_values * value_s),
        worker_ratio=smallest(of_worker, n_values, written=float) if of_worker else None,
        is_young=seen.is_young,
    )


def scatter(scale: float, df: float) -> float:
    """Return the robust deviation of a Student distribution: 1.48 times its median distance.

    Examples
    --------
    >>> round(scatter(0.01, 30.0), 4), round(scatter(0.01, 1.0), 4)
    (0.0101, 0.0148)
    """
    return GAUSSIAN * scale * float(np.interp(df, student.DEGREES, student.MEDIAN_DISTANCE))


def smallest(
    seen: Sensitivity, n_values: int, *, written: Callable[[float], float]
) -> float | None:
    """Return the smallest slowdown that is found within so many values; None if none is.

    ``written`` is a ratio as the test takes it.
    """
    if values_until_found(written(MOST), seen) > n_values:
        return None
    low, high = math.log(LEAST), math.log(MOST)
    for _ in range(N_HALVES):
        middle = (low + high) / 2
        is_found = values_until_found(written(math.exp(middle)), seen) <= n_values
        low, high = (low, middle) if is_found else (middle, high)
    return math.exp(high)


def values_until_found(shift: float, seen: Sensitivity) -> float:
    """Return within how many values the test finds a lasting shift, in five of six cases.

    Notes
    -----
    Evidence of n values is ``n m`` nats with a deviation of ``s sqrt(n)``: it has passed the alarm
    level with a chance of 84 % once ``n m - s sqrt(n)`` has. Of the size that finds it first. No
    test can be quicker on average than the level over the divergence of shifted values from usual
    ones (Lorden's bound). This one is slower: it allows for a level that wanders, and a value
    proves no more than its rarity in this run allows.

    References
    ----------
    A. Wald, "Sequential Analysis" (1947), 3.4 (average number of values). G. Lorden, "Procedures
    for Reacting to a Change in Distribution", Ann. Math. Stat. 42 (1971), 1897-1908, theorem 3.

    Examples
    --------
    >>> nothing, free = np.zeros(len(SIZES)), np.full(len(SIZES), np.inf)
    >>> seen = Sensitivity(20.0, 0.005, 3.0, nothing, free, free, is_young=False)
    >>> bound = 20.0 / student.divergence(0.0583, 0.005, 3.0)  # 6 %, in logarithms
    >>> round(values_until_found(0.0583, seen), 1), round(bound, 1)
    (3.2, 2.9)
    >>> values_until_found(0.01, seen)
    inf
    """
    residual, chance = _shifted(shift, seen.scale, seen.df)
    gain = student.log_ratio(
        residual[:, None], SIZES, scale=np.array(seen.scale), df=np.array(seen.df), band=seen.band
    )
    first = chance @ np.clip(gain, -seen.first, seen.first)
    further = np.clip(gain, -seen.further, seen.further)
    mean = chance @ further
    deviation = np.sqrt(np.maximum(chance @ further**2 - mean**2, 0.0))
    rest = np.maximum(seen.level_nats - first, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        root = (deviation + np.sqrt(deviation**2 + 4 * mean * rest)) / (2 * mean)
    return float(np.where(rest == 0.0, 1.0, np.where(mean > 0.0, 1.0 + root**2, np.inf)).min())


def _shifted(shift: float, scale: float, df: float) -> tuple[FloatArray, FloatArray]:
    """Return residuals of a shift, and how likely each is."""
    height = np.exp(-(df + 1) / 2 * np.log1p(T**2 / df)) * DT
    return shift + scale * T, height / height.sum()
