"""Rules about the loss that a job reports: loss_not_finite and loss_spike."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.findings import LEAD_S, Finding
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.rules import RULES
from telemetry.statistics.bootstrap import student_quantile
from telemetry.steps import StepBatch, is_not_finite, is_reported, once
from telemetry.units import DAY_S

NOT_FINITE, SPIKE = "loss_not_finite", "loss_spike"
ENOUGH_STEPS = int(RULES[NOT_FINITE].limits["steps_to_fire"])
# Person's setting: one false warning of a run in a year.
FALSE_EVERY_S = 365 * DAY_S
# The median of so many withstands two outliers among them, and lags little behind the trend.
N_BEFORE = 5
# Fewer distances say nothing of their tails.
ENOUGH_DISTANCES = 20
# Tails of Student's distribution by its degrees of freedom: of distances from the middle, the 0.99
# over the 0.9 quantile.
DEGREES = np.array([1, 2, 2.5, 3, 4, 6, 10, 20, 60, np.inf])
TAILS = np.array([student_quantile(n, 0.995) / student_quantile(n, 0.95) for n in DEGREES])


def loss_not_finite(inputs: DetectionInput) -> list[Finding]:
    """Find a loss that has been NaN or infinite in the newest steps that report one.

    A single one is no finding: mixed precision skips a step whose gradients overflow.
    """
    steps = inputs.steps
    rows = np.flatnonzero(is_reported(steps.loss))
    bad = is_not_finite(steps.loss[rows])
    n = len(bad) if bad.all() else int(np.argmin(bad[::-1]))
    if n < ENOUGH_STEPS:
        return []
    row = int(rows[-n])
    since, onset_s = int(steps.step[row]), float(steps.ended_at_s[row] - steps.step_s[row])
    held = _held(inputs, NOT_FINITE)
    if n == len(bad) and held.get("since_step", since) < since:
        # It began before the window.
        since, onset_s = held["since_step"], held["onset_s"]
    before = rows[:-n][-1:]
    value = float(steps.loss[rows[-1]])
    evidence = {
        "value": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity",
        "since_step": since,
        "last_loss": next(iter(steps.loss[before].tolist()), held.get("last_loss")),
        "last_loss_step": next(iter(steps.step[before].tolist()), held.get("last_loss_step")),
        "checkpoint_step": held.get("checkpoint_step", _checkpoint_before(inputs, since, onset_s)),
    }
    return [_finding(inputs, NOT_FINITE, onset_s, n / ENOUGH_STEPS, evidence)]


def _held(inputs: DetectionInput, rule: str) -> dict[str, Any]:
    """Return the evidence of the rule's open alert; empty without one."""
    return next((dict(each.evidence) for each in inputs.open_problems if each.rule == rule), {})


def _checkpoint_before(inputs: DetectionInput, step: int, at_s: float) -> int | None:
    """Return the newest step before ``step`` in which a checkpoint was written; None: unknown."""
    known = [inputs.steps]
    if inputs.earlier is not None:
        known.append(inputs.earlier(at_s - RULES[NOT_FINITE].limits["earlier_s"]))
    saved = (each.step[(each.phases["checkpoint_s"] > 0).any(axis=1)] for each in known)
    return max((int(number) for each in saved for number in each if number < step), default=None)


def loss_spike(inputs: DetectionInput) -> list[Finding]:
    """Find a loss above those just before by more than chance explains, and still there.

    Each loss is compared with the median of the few before it. How far such distances reach by
    chance follows from those of the run itself.
    """
    newest = _newest_loss(inputs.steps)
    seen = _held(inputs, SPIKE)
    if seen and not math.isnan(newest):
        seen["loss"] = newest
    elif not seen:
        seen = dict(_last_rise(inputs.steps))
    if not seen or not newest - seen["baseline_loss"] > seen["limit_loss"] / 2:
        return []
    over = (seen["loss"] - seen["baseline_loss"]) / seen["limit_loss"]
    kept = {name: seen[name] for name in ("since_step", "loss", "baseline_loss", "limit_loss")}
    return [_finding(inputs, SPIKE, seen["onset_s"], over, kept)]


@once
def _newest_loss(steps: StepBatch) -> float:
    """Return the newest loss, NaN without one: of three, so that one step changes nothing."""
    known = steps.loss[np.isfinite(steps.loss)][-3:]
    return float(np.median(known)) if len(known) else math.nan


@once
def _last_rise(steps: StepBatch) -> Mapping[str, Any]:
    """Return the rise that lasts and stands out most; empty where chance explains it."""
    steps = steps[np.isfinite(steps.loss)]
    if len(steps) < ENOUGH_DISTANCES + N_BEFORE:
        return {}
    before = np.lib.stride_tricks.sliding_window_view(steps.loss, N_BEFORE)[:-1]
    above = steps.loss[N_BEFORE:] - np.median(before, axis=1)
    # A loss that was high and came back is over, and part of how the run scatters.
    lowest_since = np.minimum.accumulate(steps.loss[::-1])[::-1][N_BEFORE:]
    lasting = np.where(lowest_since > steps.loss[N_BEFORE:] - above / 2, above, 0.0)
    # The first of those that stand out most: those after it are no history of a healthy run.
    place = int(np.argmax(lasting >= lasting.max() / 2))
    if place < ENOUGH_DISTANCES:
        return {}
    limit = reach_of_chance(above[:place], every_s=float(np.median(steps.step_s)))
    if not 0 < limit < above[place]:
        return {}
    row = N_BEFORE + place
    return {
        "since_step": int(steps.step[row]),
        "loss": float(steps.loss[-1]),
        "baseline_loss": float(steps.loss[row] - above[place]),
        "limit_loss": limit,
        "onset_s": float(steps.ended_at_s[row] - steps.step_s[row]),
    }


def reach_of_chance(distances: FloatArray, *, every_s: float) -> float:
    """How far a distance gets by chance once in `FALSE_EVERY_S`, of one each ``every_s``.

    Notes
    -----
    The 0.9 quantile shows the scale. The degrees of freedom are the smaller of two: those of the
    tails, and what the scale is known by. The variance of a quantile, ``q (1 - q) / (N f(q)**2)``,
    is that of a deviation with ``0.64 N`` of them.

    References
    ----------
    H. A. David, H. N. Nagaraja, "Order Statistics" (2003), section 10.2.

    Examples
    --------
    >>> distances = 0.02 * np.random.default_rng(1).standard_normal(1000)
    >>> round(reach_of_chance(distances, every_s=1.0) / 0.02, 1)
    6.4
    """
    usual, rare = (float(q) for q in np.quantile(np.abs(distances), (0.9, 0.99)))
    if not usual > 0:
        return 0.0
    per_degree = max(np.interp(-rare / usual, -TAILS, 1 / DEGREES), 1 / (0.64 * len(distances)))
    reach = student_quantile(float(1 / per_degree), 1.0 - max(1.0, every_s) / FALSE_EVERY_S)
    return usual / student_quantile(math.inf, 0.95) * reach


def _finding(
    inputs: DetectionInput, rule: str, onset_s: float, score: float, evidence: dict[str, Any]
) -> Finding:
    shown = {"onset_s": onset_s, "window": [onset_s - LEAD_S, inputs.now_s], "charts": []}
    return Finding(
        rule=rule,
        cause=rule,
        severity=RULES[rule].severity,
        run=inputs.run,
        onset_s=onset_s,
        score=score,
        evidence=shown | evidence,
    )
