"""Which steps of a run do the same work, and what those of other work would take.

1. Steps are alike if they train as many tokens, on as many workers.
2. Batches that are not packed hold other tokens in each step. Then steps are compared per token:
   as if each trained as many as the usual one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.steps import AFTER_PAUSE, PAUSE_S, SAME_RATIO
from telemetry.evidence.noise import BoolArray
from telemetry.statistics.peers import median
from telemetry.steps import StepBatch, once

# So many steps show whether batches vary: as many as withstand one change of the batch.
N_STEPS = 12
# What takes as long however many tokens a step trains.
FIXED = ("checkpoint_s", "other_s")


@dataclass(slots=True)
class Work:
    """Tokens of the usual step of a run whose batches differ from step to step, else NaN."""

    tokens: float = math.nan
    last_step: int = -1

    def of(self, inputs: DetectionInput) -> DetectionInput:
        """Return the same with steps of equal work."""
        self._update(inputs.steps)
        if math.isnan(self.tokens):
            return inputs
        earlier = inputs.earlier
        return replace(
            inputs,
            steps=self._even(inputs.steps),
            earlier=None if earlier is None else lambda since_s: self._even(earlier(since_s)),
        )

    def _update(self, steps: StepBatch) -> None:
        if not len(steps) or steps.step[-1] == self.last_step:
            return
        self.last_step = int(steps.step[-1])
        tokens = steps.tokens[-N_STEPS:]
        if len(tokens) < N_STEPS or not ((tokens > 0) & np.isfinite(tokens)).all():
            return
        # Two sizes that alternate are two plans.
        now = tokens[2:]
        differs = ~is_same(tokens[1:-1], now) & ~is_same(tokens[:-2], now)
        if not differs.any():
            self.tokens = math.nan
        elif math.isnan(self.tokens) and 2 * differs.sum() > len(differs):
            self.tokens = float(np.median(tokens))

    def _even(self, steps: StepBatch) -> StepBatch:
        even: StepBatch
        known = steps.computed
        tokens, even = known.get(Work._even, (math.nan, steps))
        if tokens != self.tokens:
            with np.errstate(divide="ignore"):
                share = self.tokens / steps.tokens
            share = np.where(np.isfinite(share) & (share > 0), share, 1.0)[:, None]
            phases: Mapping[str, FloatArray] = {
                name: values if name in FIXED else values * share
                for name, values in steps.phases.items()
            }
            even = replace(steps, phases=phases, tokens=np.full(len(steps), self.tokens))
            known[Work._even] = self.tokens, even
        return even


def is_same(was: FloatArray, now: FloatArray, *, least: float = 0.0) -> BoolArray:
    """Whether figures of what a run does, as its tokens, differ by no more than rounding."""
    return np.asarray(np.abs(was - now) <= np.maximum(least, SAME_RATIO * np.abs(now)))


def alike(
    step: FloatArray,
    ended_s: FloatArray,
    step_s: FloatArray,
    tokens: FloatArray,
    n_workers: FloatArray,
) -> BoolArray:
    """Which steps did the work of the newest one, on as many workers: (n_steps,) each.

    The first ones of a process take longer: those of the run, and those after a pause. A lost
    report is no change: of one worker, or of one in a hundred.
    """
    n_missing = np.diff(step, prepend=step[:1] - 1) - 1
    with np.errstate(invalid="ignore"):
        paused_s = np.diff(ended_s, prepend=ended_s[:1]) - step_s - n_missing * median(step_s)
        same = is_same(tokens, tokens[-1:]) & is_same(n_workers, n_workers[-1:], least=1.0)
    first = np.append(0.0, step[paused_s > PAUSE_S])
    since = np.searchsorted(first, step, side="right") - 1
    return np.asarray(same & (step - first[np.maximum(since, 0)] >= AFTER_PAUSE))


@once
def comparable(steps: StepBatch) -> StepBatch:
    """Keep the steps that are `alike`; all while there are none."""
    rows = alike(
        steps.step.astype(float),
        steps.ended_at_s,
        steps.step_s,
        np.nan_to_num(steps.tokens),
        np.isfinite(steps.phases["compute_s"]).sum(axis=1).astype(float),
    )
    return steps if rows.all() or not rows.any() else steps[rows]
