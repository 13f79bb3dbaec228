"""Steps of one run: quantities, residuals and evidence, as a fold over steps that are complete.

1. Steps are taken in order, each once; a step that may still come holds up those after it.
2. Other tokens, other workers or a restart begin a new plan: nothing before is a reference.
3. Rows of a second at least are one value. Phases are shares of the run's usual step.
4. Of the run: the step, and what all its workers have alike (compute, transfer, input).
5. Of workers: own time (compute, input, other) minus the median of all; who is late, others wait
   for. Of a pipeline stage: its own time minus that of the other stages.
6. Each of these has a sequential test; its noise is learned from the run (`telemetry.evidence`).
7. What is above its level is a shift, with an onset.
8. Since any moment, the mean of every quantity and its standard error are its effects.
"""

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect2.shifts import Effect, Shift
from telemetry.evidence.noise import BoolArray, middle, step_scale
from telemetry.evidence.sequential import YEAR_S, EvidenceTest, Quantity
from telemetry.statistics.peers import GAUSSIAN, lower_median, median
from telemetry.steps import StepBatch

RUN = ("step", "compute", "transfer", "input", "wait", "other", "uneven", "stage")
# Of these a rise by itself is a shift; the others tell causes apart.
TESTED = RUN[1:4]
WORKER = ("own", "own_input", "own_compute")
# One value is a second of steps at least, so that the number of looks is known.
LEAST_S = 1.0
# Protocol: a report is awaited for so long (`telemetry.ingest`), and sent every few seconds.
AWAITED_S = 12.0
# A change of plan: tokens or workers differ by more than rounding.
SAME_RATIO = 0.01
# Recorded runs: after a pause the next steps are longer, by 3 to 4 % for up to five.
PAUSE_S, AFTER_PAUSE = 10.0, 3
# Lasting offsets of workers have a deviation of 0.4 to 0.7 % (traces of 8 to 64 ranks): within
# six of them no worker of a fleet is slow.
OFFSET_REACH = 0.04
# Scatter of single operations is 1.5 to 2.2 %; steps are sums of many.
WORKER_SCALE = 0.005
N_VALUES, N_BEFORE, N_SINCE = 120, 60, 20
# A median that withstands one wild value.
FIRST_VALUES = 3


@dataclass(slots=True)
class Baseline:
    """Usual values before a moment, and their scatter: (n_quantities,), (n_workers, 3)."""

    run: FloatArray
    run_scale: FloatArray
    workers: FloatArray
    worker_scale: FloatArray
    n: int
    step_s: float
    jitter: float


@dataclass(frozen=True, slots=True)
class Value:
    """One value of every quantity, in seconds: of the run, (n_workers, 3), (n_stages,)."""

    began_s: float
    at_s: float
    step_s: float
    run: FloatArray
    workers: FloatArray
    stages: FloatArray
    n_steps: int


@dataclass(slots=True)
class Plan:
    """What a run does: tests, the newest values and the usual step, until its plan changes."""

    workers: tuple[str, ...]
    tokens: float
    n_workers: int
    usual_s: float = math.nan
    tests: dict[str, EvidenceTest] = field(default_factory=dict)
    # The first values, until there are enough to know the usual step.
    waiting: list["Value"] = field(default_factory=list)
    at_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    began_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    run: FloatArray = field(default_factory=lambda: np.zeros((0, len(RUN))))
    of_workers: FloatArray = field(default_factory=lambda: np.zeros((0, 0, len(WORKER))))


class Steps:
    """Fold over the steps of one run; `false_per_year` is the budget of all its tests."""

    def __init__(self, *, n_stages: int, false_per_year: float) -> None:
        self.n_stages, self.false_per_year = n_stages, false_per_year
        self.plan: Plan | None = None
        self.last_step = -1
        self._last_ended_s = -np.inf
        self._skip = 0
        self._shifts: dict[str, tuple[Shift, ...]] = {}

    def accept(self, false_per_year: float) -> None:
        """Set the budget of all tests together: other runs have come or gone."""
        self.false_per_year = false_per_year
        for test in self.plan.tests.values() if self.plan is not None else ():
            test.accept(false_per_year)

    @property
    def shifts(self) -> list[Shift]:
        return [shift for shifts in self._shifts.values() for shift in shifts]

    def update(self, steps: StepBatch, now_s: float) -> bool:
        """Take the new steps of a window; return whether there were any."""
        rows = np.flatnonzero((steps.step > self.last_step) & _is_settled(steps, now_s))
        if len(steps) and steps.step[-1] < self.last_step:
            # It began again from a checkpoint.
            self.plan, rows = None, np.arange(len(steps))
        if not rows.size:
            return False
        pieces = _blocks(steps[slice(rows[0], rows[-1] + 1)])
        for piece in pieces:
            self._take(piece)
            self.last_step = int(piece.step[-1])
        return bool(pieces)

    def _take(self, rows: StepBatch) -> None:
        began_s = float(rows.ended_at_s[0] - rows.step_s[0])
        if began_s - self._last_ended_s > PAUSE_S:
            self._skip = AFTER_PAUSE
        self._last_ended_s = float(rows.ended_at_s[-1])
        plan = self.plan
        if self._skip > 0 and plan is not None:
            self._skip -= 1
            return
        value = _value(rows, began_s, self.n_stages)
        tokens = float(np.nan_to_num(rows.tokens[-1]))
        n_workers = int(np.isfinite(rows.phases["compute_s"]).any(axis=0).sum())
        if plan is None or _differs(plan, rows.workers, tokens, n_workers):
            plan = self.plan = Plan(rows.workers, tokens, n_workers)
            self._shifts = {}
        if not plan.tests:
            plan.waiting.append(value)
            if len(plan.waiting) < FIRST_VALUES:
                return
            # The first step of a process may take several times as long.
            plan.usual_s = float(np.median([each.step_s for each in plan.waiting]))
            plan.of_workers = np.zeros((0, len(rows.workers), len(WORKER)), np.float32)
            plan.tests = self._tests(plan)
        for each in plan.waiting or [value]:
            self._keep(plan, each)
            self._test(plan, each)
        plan.waiting = []

    def _tests(self, plan: Plan) -> dict[str, EvidenceTest]:
        """Return tests that know nothing but the usual step."""
        n = len(plan.workers)
        scale = float(step_scale(np.log(np.array([plan.usual_s])))[0])
        share = partial(
            Quantity, may_be_zero=True, prior_scale=partial(np.full_like, fill_value=scale)
        )
        peers = partial(
            Quantity,
            may_be_zero=True,
            prior_scale=partial(np.full_like, fill_value=WORKER_SCALE),
            young_reach=OFFSET_REACH,
            pooled=True,
        )
        cells = {"step": (1, Quantity("step")), "run": (len(TESTED), share("run"))}
        if n > 1:
            cells["own"] = (n, peers("own", start=0.0))
            cells["own_input"] = (n, peers("own_input", start=0.0))
        if self.n_stages > 1:
            cells["stage"] = (self.n_stages, peers("stage"))
        looks = sum(n for n, _ in cells.values()) * YEAR_S / max(plan.usual_s, LEAST_S)
        return {
            name: EvidenceTest(
                (n_cells,),
                looks_per_year=looks,
                false_per_year=self.false_per_year,
                quantity=quantity,
            )
            for name, (n_cells, quantity) in cells.items()
        }

    def _keep(self, plan: Plan, value: Value) -> None:
        plan.at_s = np.append(plan.at_s, value.at_s)[-N_VALUES:]
        plan.began_s = np.append(plan.began_s, value.began_s)[-N_VALUES:]
        run = np.append(value.step_s - plan.usual_s, value.run) / plan.usual_s
        plan.run = np.concatenate([plan.run, run[None]])[-N_VALUES:]
        new = (value.workers[None] / plan.usual_s).astype(np.float32)
        plan.of_workers = np.concatenate([plan.of_workers, new])[-N_VALUES:]

    def _test(self, plan: Plan, value: Value) -> None:
        values = {
            "step": np.array([value.step_s]),
            "run": value.run[: len(TESTED)] / plan.usual_s,
            "own": value.workers[:, 0] / plan.usual_s,
            "own_input": value.workers[:, 1] / plan.usual_s,
            "stage": value.stages / plan.usual_s,
        }
        for name, test in plan.tests.items():
            found = test.update(values[name], value.began_s, n_steps=value.n_steps)
            self._shifts[name] = tuple(
                Shift(
                    TESTED[cell] if name == "run" else name,
                    None if name in ("step", "run") else int(cell),
                    None,
                    float(found.onset_s[cell]),
                    float(found.shift[cell]),
                    float(found.nats[cell]),
                    float(found.level_nats[cell]),
                )
                for cell in np.flatnonzero(found.is_open)
            )

    def baseline(self, before_s: float) -> Baseline | None:
        """Return what was usual before a moment; None without a plan."""
        plan = self.plan
        if plan is None or not plan.tests:
            return None
        rows = np.flatnonzero(plan.at_s <= before_s)[-N_BEFORE:]
        run, workers = plan.run[rows], plan.of_workers[rows]
        n = len(rows)
        usual = middle(run.T) if n else np.full(len(RUN), np.nan)
        scale = GAUSSIAN * middle(np.abs(run - usual).T) if n else np.full(len(RUN), np.nan)
        own = median(np.moveaxis(workers, 0, -1)) if n else np.zeros(plan.of_workers.shape[1:])
        apart = np.abs(workers - own)
        own_scale = GAUSSIAN * np.nanmedian(apart) if n > 1 else WORKER_SCALE
        return Baseline(
            usual,
            np.fmax(scale, float(step_scale(np.log(np.array([plan.usual_s])))[0])),
            own,
            np.full(len(WORKER), max(float(np.nan_to_num(own_scale)), WORKER_SCALE)),
            n,
            plan.usual_s * float(1.0 + np.nan_to_num(usual[0])),
            float(scale[0]) if n > 1 else np.nan,
        )

    def effects(self, baseline: Baseline, since_s: float) -> dict[str, Effect]:
        """How far every quantity is from its baseline in the newest values since a moment."""
        plan = self.plan
        if plan is None or not plan.tests:
            return {}
        rows = np.flatnonzero(plan.began_s >= since_s)[-N_SINCE:]
        if not rows.size:
            return {}
        run, workers = middle(plan.run[rows].T), plan.of_workers[rows]
        n = len(rows)
        # The variance of a median is pi / 2 that of a mean; long memory adds as much again.
        inflation = 1.0 / n + 1.0 / max(baseline.n, 1)
        error = baseline.run_scale * np.sqrt(np.pi * inflation)
        error = np.hypot(error, _scatter(plan.run[rows]))
        known = baseline.n > 1
        found = {
            name: Effect(
                np.asarray(run[i] - baseline.run[i] if known else np.nan), np.asarray(error[i])
            )
            for i, name in enumerate(RUN)
        }
        own = median(np.moveaxis(workers, 0, -1)) - baseline.workers
        own_error = np.hypot(baseline.worker_scale * np.sqrt(np.pi * inflation), _scatter(workers))
        for i, name in enumerate(WORKER):
            found[name] = Effect(own[:, i], own_error[:, i])
        found["jitter"] = _jitter(plan.run[rows, 0], baseline)
        return found


def _scatter(values: FloatArray) -> FloatArray:
    """Return the standard error of medians by what the values (n_values, …) scatter by now."""
    n = len(values)
    if n < 2:
        return np.zeros(values.shape[1:])
    # Of two or three values half their range.
    apart = (
        np.ptp(values, axis=0) / 2
        if n < 4
        else GAUSSIAN * median(np.moveaxis(np.abs(values - np.median(values, axis=0)), 0, -1))
    )
    return np.asarray(np.nan_to_num(apart) * np.sqrt(np.pi / 2 / n))


def _jitter(step: FloatArray, baseline: Baseline) -> Effect:
    """By how much more steps scatter than before, as a share of the step."""
    if len(step) < 4 or not np.isfinite(baseline.jitter):
        return Effect(np.asarray(np.nan), np.asarray(np.nan))
    scatter = GAUSSIAN * float(np.median(np.abs(step - np.median(step))))
    error = np.hypot(scatter, baseline.jitter) * 1.2 / np.sqrt(len(step)) + WORKER_SCALE
    return Effect(np.asarray(scatter - baseline.jitter), np.asarray(error))


def _is_settled(steps: StepBatch, now_s: float) -> BoolArray:
    """Whether no step before each may still come: (n_steps,) flags."""
    if len(steps) < 2:
        return np.ones(len(steps), bool)
    jump = np.diff(steps.step)
    is_awaited = (jump > np.median(jump)) & (steps.ended_at_s[1:] > now_s - AWAITED_S)
    return np.concatenate([[True], ~np.logical_or.accumulate(is_awaited)])


def _blocks(steps: StepBatch) -> list[StepBatch]:
    """Cut steps into the shortest pieces of a second at least; what is left waits for more.

    Where a piece ends does not depend on how many steps a report brings.
    """
    pieces, begin, lasted_s = [], 0, 0.0
    for row, step_s in enumerate(np.nan_to_num(steps.step_s).tolist()):
        lasted_s += step_s
        if lasted_s >= LEAST_S:
            pieces.append(steps[begin : row + 1])
            begin, lasted_s = row + 1, 0.0
    return pieces


def _differs(plan: Plan, workers: tuple[str, ...], tokens: float, n_workers: int) -> bool:
    is_other_work = abs(tokens - plan.tokens) > SAME_RATIO * abs(plan.tokens)
    # A lost report is no change: one worker in a hundred, or one of a few.
    n_lost = max(1, int(SAME_RATIO * plan.n_workers))
    return is_other_work or workers != plan.workers or abs(n_workers - plan.n_workers) > n_lost


def _value(rows: StepBatch, began_s: float, n_stages: int) -> Value:
    """Measure all quantities of some rows.

    Workers are compared with those of the same stage, stages with the usual one.
    """
    n_workers = len(rows.workers)
    stage = (np.arange(1, n_workers + 1) * n_stages - 1) // max(1, n_workers)
    phases = {name: _mean_of_rows(values) for name, values in rows.phases.items()}
    compute, transfer, wait = (phases[f"{n}_s"] for n in ("compute", "transfer", "wait"))
    checkpoint = np.nan_to_num(phases["checkpoint_s"])
    step = _mean_of_rows(rows.worker_step_s) - checkpoint - np.nan_to_num(phases["other_s"])
    # Without a timed exchange, others wait inside what seems to be a worker's own compute time.
    timed = np.isfinite(wait)
    own_parts = np.stack(
        [
            compute + np.nan_to_num(phases["input_s"]) + np.nan_to_num(phases["other_s"]),
            phases["input_s"],
            compute,
        ],
        axis=1,
    )
    own_parts[~timed, 0] = own_parts[~timed, 2] = np.nan
    own = own_parts.copy()
    for s in range(n_stages):
        own[stage == s] -= lower_median(own_parts[stage == s].T)
    uneven = GAUSSIAN * float(lower_median(np.abs(own[:, 0])))
    of_stages = np.array([float(median(own_parts[stage == s, 0])) for s in range(n_stages)])
    quick = np.nanquantile(compute, 0.2) if timed.any() else np.nan
    run = np.array(
        [
            quick,
            _middle(transfer),
            _middle(phases["input_s"]),
            _mean(wait),
            _middle(phases["other_s"]),
            uneven,
            # Without stages none is longer.
            float(np.nan_to_num((of_stages - lower_median(of_stages)).max()))
            if timed.any()
            else np.nan,
        ]
    )
    stages = of_stages - lower_median(of_stages)
    return Value(began_s, float(rows.ended_at_s[-1]), _mean(step), run, own, stages, len(rows))


def _mean_of_rows(values: FloatArray) -> FloatArray:
    known = np.isfinite(values)
    n = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, n, out=np.full(len(n), np.nan), where=n > 0))


def _mean(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else np.nan


def _middle(values: FloatArray) -> float:
    return float(median(values))
