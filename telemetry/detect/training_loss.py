"""Rules about the loss that a job reports: loss_not_finite and loss_spike."""

import math

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.findings import LEAD_S, Finding
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.parts import limit_of_chance
from telemetry.detect.rules import RULES
from telemetry.steps import StepBatch, is_not_finite, is_reported

NOT_FINITE, SPIKE = "loss_not_finite", "loss_spike"
ENOUGH_STEPS = int(RULES[NOT_FINITE].limits["steps_to_fire"])
# The median of so many withstands two outliers among them, and lags little behind the trend.
N_BEFORE = 5
# Fewer distances say nothing of their tails.
ENOUGH_DISTANCES = 20


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
    held = next((each.evidence for each in inputs.open_problems if each.rule == NOT_FINITE), {})
    if n == len(bad) and held.get("since_step", since) < since:
        # It began before the window.
        since, onset_s = held["since_step"], held["onset_s"]
    before = rows[:-n]
    last = int(before[-1]) if len(before) else None
    value = float(steps.loss[rows[-1]])
    evidence = {
        "value": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity",
        "since_step": since,
        "last_loss": held.get("last_loss") if last is None else float(steps.loss[last]),
        "last_loss_step": held.get("last_loss_step") if last is None else int(steps.step[last]),
        "checkpoint_step": held.get("checkpoint_step", _checkpoint_before(inputs, since, onset_s)),
    }
    return [_finding(inputs, NOT_FINITE, onset_s, score=n / ENOUGH_STEPS, **evidence)]


def _checkpoint_before(inputs: DetectionInput, step: int, at_s: float) -> int | None:
    """Return the newest step before ``step`` in which a checkpoint was written; None: unknown."""
    known = [inputs.steps]
    if inputs.earlier is not None:
        known.append(inputs.earlier(at_s - RULES[NOT_FINITE].limits["earlier_s"]))
    found = [int(number) for steps in known for number in _saved(steps) if number < step]
    return max(found, default=None)


def _saved(steps: StepBatch) -> list[int]:
    took_s = np.fmax.reduce(steps.phases["checkpoint_s"], axis=1, initial=0.0)
    found: list[int] = steps.step[took_s > 0].tolist()
    return found


def loss_spike(inputs: DetectionInput) -> list[Finding]:
    """Find a loss above those just before by more than chance explains, and still there.

    Notes
    -----
    Each loss is compared with the median of the few before it. How far such distances reach by
    chance follows from those of the run itself (`limit_of_chance`): one false warning of a run in
    a year.
    """
    steps = inputs.steps[np.isfinite(inputs.steps.loss)]
    held = next((each.evidence for each in inputs.open_problems if each.rule == SPIKE), None)
    if held is not None and len(steps):
        newest = _newest(steps)
        if newest - held["baseline_loss"] <= held["limit_loss"] / 2:
            return []
        return [_spike(inputs, steps, {**held, "loss": newest})]
    if len(steps) < ENOUGH_DISTANCES + N_BEFORE:
        return []
    above = _above_before(steps.loss)
    # A loss that was high and came back is over, and part of how the run scatters.
    lowest_since = np.minimum.accumulate(steps.loss[::-1])[::-1][N_BEFORE:]
    lasting = np.where(lowest_since > steps.loss[N_BEFORE:] - above / 2, above, 0.0)
    # The first of those that stand out most: those after it are no history of a healthy run.
    place = int(np.argmax(lasting >= lasting.max() / 2))
    row, history = N_BEFORE + place, above[:place]
    if len(history) < ENOUGH_DISTANCES or lasting[place] <= 0:
        return []
    limit = limit_of_chance(
        # Each distance is an independent value, as those of so many parts.
        1.0 + history[None, None, :],
        0,
        n_reports=1,
        n_compared=1,
        report_every_s=max(1, round(float(np.median(steps.step_s)))),
    )
    baseline = float(steps.loss[row] - above[place])
    if above[place] <= limit or limit <= 0 or _newest(steps) - baseline <= limit / 2:
        return []
    evidence = {
        "since_step": int(steps.step[row]),
        "loss": float(steps.loss[-1]),
        "baseline_loss": baseline,
        "limit_loss": limit,
        "onset_s": float(steps.ended_at_s[row] - steps.step_s[row]),
    }
    return [_spike(inputs, steps, evidence)]


def _newest(steps: StepBatch) -> float:
    """Return the newest loss: of three, so that a single step neither fires nor resolves."""
    return float(np.median(steps.loss[-3:]))


def _above_before(loss: FloatArray) -> FloatArray:
    """Return how far each loss is above the median of those before: (n - N_BEFORE,)."""
    before = np.lib.stride_tricks.sliding_window_view(loss, N_BEFORE)[:-1]
    return np.asarray(loss[N_BEFORE:] - np.median(before, axis=1))


def _spike(inputs: DetectionInput, steps: StepBatch, evidence: dict[str, float]) -> Finding:
    figures = dict(evidence)
    over = (figures["loss"] - figures["baseline_loss"]) / figures["limit_loss"]
    onset_s = figures.pop("onset_s")
    kept = {name: figures[name] for name in ("since_step", "loss", "baseline_loss", "limit_loss")}
    return _finding(inputs, SPIKE, onset_s, score=over, **kept)


def _finding(
    inputs: DetectionInput, rule: str, onset_s: float, *, score: float, **evidence: object
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
