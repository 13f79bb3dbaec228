"""Steps of one run: quantities, residuals and evidence, as a fold over steps that are complete.

1. Steps are taken in order, each once; a step that may still come holds up those after it. A
   process that has just begun takes all that are stored.
2. Other tokens, other workers or a restart begin a new plan: nothing before is a reference. The
   plan before, if it comes back without a restart, goes on.
3. Rows of a second at least are one value. Phases are shares of the run's usual step.
4. Of the run: the step, what all its workers have alike (compute, transfer, input), how long the
   usual one waits, and how far own times scatter that are others in each step.
5. Of workers: own time (compute, input, other) minus the median of all; who is late, others wait
   for. Of a pipeline stage: its own time minus that of the other stages.
6. Each of these has a sequential test; its noise is learned from the run (`telemetry.evidence`).
   The step has a second one, whose reference stays the first one: a slow drift.
7. What is above its level is a shift, with an onset.
8. Since any moment, the mean of every quantity and its standard error are its effects.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, pairwise

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.shifts import Effect, Shift
from telemetry.evidence.noise import BoolArray, middle, step_scale
from telemetry.evidence.recurring import LONG, RecurrenceTest
from telemetry.evidence.sequential import YEAR_S, EvidenceTest, Quantity
from telemetry.statistics.peers import GAUSSIAN, lower_median, median, scatter_of
from telemetry.steps import StepBatch
from telemetry.units import DAY_S

RUN = ("step", "compute", "transfer", "input", "wait", "uneven", "other")
# Of these a rise by itself is a shift; other time tells causes apart.
TESTED = RUN[1:6]
# Cells of the run; of the others each is of a worker or a stage.
OF_RUN = ("step", "drift", "run")
# Without a value for so long, what a trace showed says nothing of now.
STALE_S = 60.0
# What may be long again and again.
RECURRING = ("step", "own")
WORKER = ("own", "own_input", "own_compute")
# One value is a second of steps at least, so that the number of looks is known.
LEAST_S = 1.0
# Protocol: a report is awaited for so long (`telemetry.ingest`), and sent every few seconds.
AWAITED_S = 12.0
# A change of plan: tokens or workers differ by more than rounding.
SAME_RATIO = 0.01
# Physics: no phase is shorter than a microsecond or takes a month. What says so is no measurement,
# and its squares would not be numbers.
SHORTEST_S, LONGEST_S = 1e-6, 30.0 * DAY_S
# Recorded runs: after a pause the next steps are longer, by 3 to 4 % for up to five.
PAUSE_S, AFTER_PAUSE = 10.0, 3
# Lasting offsets of workers have a deviation of 0.4 to 0.7 % (traces of 8 to 64 ranks): within
# six of them no worker of a fleet is slow.
OFFSET_REACH = 0.04
# Recorded runs drift by 0.4 % an hour, nine of ten by 3.5 % at most, and by 2.1 % in all.
DRIFT_REACH = 0.035
# Scatter of single operations is 1.5 to 2.2 %; steps are sums of many.
WORKER_SCALE = 0.005
# The run computes as its quicker workers do: the others may be slow.
QUICK = 0.2
# A run that transfers less than this share of its steps exchanges within its work, if at all.
LEAST_EXCHANGE = 0.001
N_VALUES, N_BEFORE, N_SINCE = 120, 60, 20
# A median that withstands one wild value.
FIRST_VALUES = 3


@dataclass(slots=True)
class Baseline:
    """Usual values before a moment, and their scatter, as shares of ``unit_s``.

    Of the run and its stages (n_quantities + n_stages,), of workers (n_workers, 3). Of the step
    what it is longer than the unit. ``usual_step_s`` is a step without any problem; that of the
    moment, ``step_s``, may be slowed by another one.
    """

    run: FloatArray
    run_scale: FloatArray
    workers: FloatArray
    worker_scale: FloatArray
    n: int
    step_s: float
    jitter: float
    unit_s: float
    usual_step_s: float


@dataclass(frozen=True, slots=True)
class Usual:
    """What an open alert says: how long steps of so many tokens took until some moment."""

    step_s: float
    tokens: float
    until_s: float


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
    # Own time of each worker, by itself.
    own_s: FloatArray


class Newest:
    """The newest rows, oldest first: a ring without a seam, as it is written twice as long."""

    def __init__(self, shape: tuple[int, ...] = (), dtype: type = float) -> None:
        self._rows: FloatArray = np.zeros((2 * N_VALUES, *shape), dtype)
        self._end = 0

    def add(self, row: FloatArray | float) -> None:
        if self._end == len(self._rows):
            self._rows[:N_VALUES], self._end = self._rows[N_VALUES:], N_VALUES
        self._rows[self._end] = row
        self._end += 1

    @property
    def rows(self) -> FloatArray:
        return self._rows[max(0, self._end - N_VALUES) : self._end]

    def drop(self, rows: BoolArray) -> None:
        kept = self.rows[~rows]
        self._rows[: len(kept)], self._end = kept, len(kept)


@dataclass(slots=True)
class Plan:
    """What a run does: tests, the newest values and the usual step, until its plan changes."""

    workers: tuple[str, ...]
    tokens: float
    n_stages: int
    usual_s: float = math.nan
    own_s: FloatArray | None = None
    # What was usual when drift began to be tested, and before the problems that are over.
    anchor: Baseline | None = None
    before: Baseline | None = None
    # One test of all quantities, and the cells of each.
    test: EvidenceTest | None = None
    cells: dict[str, slice] = field(default_factory=dict)
    recurring: dict[str, RecurrenceTest] = field(default_factory=dict)
    # The first values, until there are enough to know the usual step.
    waiting: list["Value"] = field(default_factory=list)
    ended_s: Newest = field(default_factory=Newest)
    started_s: Newest = field(default_factory=Newest)
    # Quantities of the run, then its stages.
    of_run: Newest = field(init=False)
    of_worker: Newest = field(init=False)

    def __post_init__(self) -> None:
        self.of_run = Newest((len(RUN) + self.n_stages,))
        self.of_worker = Newest((len(self.workers), len(WORKER)), np.float32)

    @property
    def at_s(self) -> FloatArray:
        return self.ended_s.rows

    @property
    def began_s(self) -> FloatArray:
        return self.started_s.rows

    @property
    def run(self) -> FloatArray:
        return self.of_run.rows

    @property
    def of_workers(self) -> FloatArray:
        return self.of_worker.rows

    def is_as_long(self, tokens: float) -> bool:
        """Whether steps of so many tokens do as much work."""
        return abs(tokens - self.tokens) <= SAME_RATIO * abs(self.tokens)

    def _are_mine(self, workers: tuple[str, ...]) -> bool:
        """Whether these are some of its workers; in a pipeline each in its place."""
        here = set(workers)
        if self.n_stages == 1:
            return here <= set(self.workers)
        return workers == tuple(worker for worker in self.workers if worker in here)

    def is_of(self, rows: StepBatch) -> bool:
        """Whether these steps do the same work on the same workers."""
        tokens = float(_or_zero(rows.tokens[-1]))
        reporting = _reporting(rows)
        n_lost = len(self.workers) - len(reporting)
        # A lost report is no change: one worker in a hundred, or one of a few.
        return (
            self.is_as_long(tokens)
            and n_lost <= max(1, int(SAME_RATIO * len(self.workers)))
            and (reporting == self.workers or self._are_mine(reporting))
        )


class Steps:
    """Fold over the steps of one run; `false_per_year` is the budget of all its tests."""

    def __init__(self, *, n_stages: int, false_per_year: float) -> None:
        self.n_stages, self.false_per_year = n_stages, false_per_year
        self.plan: Plan | None = None
        self.last_step = -1
        # Whether no problem is open: what is wrong is not usual. Nor is what came since a problem
        # began that another process found.
        self.is_calm = True
        self.usual: Usual | None = None
        # Steps that ended by then belong to an earlier start of the run.
        self._since_s = self._started_s = -np.inf
        self._last_ended_s = -np.inf
        self._before: Plan | None = None
        self._is_new = True
        self._skip = 0
        self._incomplete: list[StepBatch] = []
        self._shifts: dict[str, tuple[Shift, ...]] = {}

    def accept(self, false_per_year: float) -> None:
        """Set the budget of all tests together: other runs have come or gone."""
        self.false_per_year = false_per_year
        if self.plan is not None and self.plan.test is not None:
            self.plan.test.accept(false_per_year)

    def resume(self) -> None:
        """Take the steps that are stored at the next update, not those of its window alone."""
        self._is_new = True

    @property
    def shifts(self) -> list[Shift]:
        found = dict(self._shifts)
        if found.get("step"):
            # The same shift, against an older reference.
            found.pop("drift", None)
        return [shift for shifts in found.values() for shift in shifts]

    def update(
        self,
        steps: StepBatch,
        now_s: float,
        *,
        earlier: Callable[[float], StepBatch] | None = None,
        started_s: float | None = None,
    ) -> bool:
        """Take the new steps of a window, or of all stored ones; return whether there were any.

        What ends after ``started_s`` is of another start than what ended by then.
        """
        self._started_s = -np.inf if started_s is None else started_s
        if self._is_new and len(steps) and earlier is not None:
            steps = earlier(0.0)
        self._is_new &= not len(steps)
        if not len(steps) or steps.ended_at_s.max() <= self._last_ended_s:
            return False
        # All of them: each takes what is new in it.
        taken = [self._take_start(start, now_s) for start in _starts(steps)]
        return any(taken)

    def _take_start(self, steps: StepBatch, now_s: float) -> bool:
        """Take the new ones of the steps of one start of the run."""
        if not len(steps) or steps.ended_at_s.max() <= self._since_s:
            return False
        again = steps.step <= self.last_step
        if (again & (steps.ended_at_s > self._last_ended_s + PAUSE_S)).any():
            # It began again from a checkpoint.
            self._begin_again()
            self._since_s, self.last_step = self._last_ended_s, -1
        new = steps[(steps.step > self.last_step) & (steps.ended_at_s > self._since_s)]
        is_before, is_any = new.ended_at_s <= self._started_s, False
        for of_start in (new[is_before], new[~is_before]):
            if len(of_start) and self._last_ended_s <= self._started_s < of_start.ended_at_s[0]:
                self._begin_again()
            for piece in _blocks(of_start[_is_settled(of_start, now_s)].reported):
                self._take(piece)
                self.last_step, is_any = int(piece.step[-1]), True
        return is_any

    def _begin_again(self) -> None:
        """Know nothing of the steps of another start."""
        self.plan = self._before = None
        self._shifts, self._skip, self._incomplete = {}, 0, []

    def _take(self, rows: StepBatch) -> None:
        began_s = float(rows.ended_at_s[0] - rows.step_s[0])
        if began_s - self._last_ended_s > PAUSE_S:
            self._skip = AFTER_PAUSE if self.plan is not None else 0
        self._last_ended_s = max(self._last_ended_s, float(rows.ended_at_s[-1]))
        if self._skip > 0:
            self._skip -= 1
            return
        # Steps wait while it is open whether a report was lost or its worker has left.
        waiting = [*self._incomplete, rows]
        gone = self._missing_in_all(waiting)
        self._incomplete = waiting if gone and len(waiting) < FIRST_VALUES else []
        if self._incomplete:
            return
        if gone:
            self._before, self._shifts = self.plan, {}
            self.plan = self._new_plan(rows)
        for each in waiting:
            self._fold(each, float(each.ended_at_s[0] - each.step_s[0]))

    def _missing_in_all(self, waiting: list[StepBatch]) -> set[str]:
        """Workers of which none of these steps has a report, of a plan that they are of."""
        plan = self.plan
        if plan is None or not plan.is_of(waiting[-1]):
            return set()
        gone = set(plan.workers).difference(*map(_reporting, waiting))
        return gone if len(gone) > SAME_RATIO * len(plan.workers) else set()

    def _fold(self, rows: StepBatch, began_s: float) -> None:
        plan = self.plan = self._plan_of(rows)
        value = _value(_of_workers(rows, plan.workers), began_s, self.n_stages, plan.own_s)
        plan.own_s = value.own_s
        if np.isnan(value.step_s) or value.step_s <= SHORTEST_S:
            return
        if plan.test is None:
            plan.waiting.append(value)
            if len(plan.waiting) < FIRST_VALUES:
                return
            # The first step of a process may take several times as long.
            plan.usual_s = float(np.median([each.step_s for each in plan.waiting]))
            before = self._before_these(plan)
            if before is not None:
                plan.usual_s, plan.waiting[:0] = before.step_s, _values_of(before, plan)
            plan.test = self._begin(plan)
        for each in plan.waiting or [value]:
            self._keep(plan, each)
            self._test(plan, plan.test, each)
        plan.waiting = []

    def _before_these(self, plan: Plan) -> Usual | None:
        """Return what was usual, if it is known and was before all steps that are stored."""
        usual = self.usual
        if usual is None or not plan.is_as_long(usual.tokens):
            return None
        return usual if usual.until_s <= plan.waiting[0].began_s else None

    def _plan_of(self, rows: StepBatch) -> Plan:
        """Return the plan of some steps: the present one, the one before, or a new one."""
        plan, before = self.plan, self._before
        if plan is not None and plan.is_of(rows):
            return plan
        self._before, self._shifts = plan, {}
        if before is not None and before.is_of(rows):
            return before
        return self._new_plan(rows)

    def _new_plan(self, rows: StepBatch) -> Plan:
        return Plan(_reporting(rows), float(_or_zero(rows.tokens[-1])), self.n_stages)

    def _begin(self, plan: Plan) -> EvidenceTest:
        """Return a test that knows nothing but the usual step."""
        n = len(plan.workers)
        scale = float(step_scale(np.log(np.array([plan.usual_s])))[0])
        peers = partial(
            Quantity,
            may_be_zero=True,
            prior_scale=WORKER_SCALE,
            young_reach=OFFSET_REACH,
            pooled=True,
        )
        cells = {
            "step": (Quantity("step"), 1),
            "drift": (Quantity("step", anchored=True, young_reach=DRIFT_REACH), 1),
            "run": (Quantity("run", may_be_zero=True, prior_scale=scale), len(TESTED)),
        }
        if n > 1:
            cells["own"] = (peers("own", start=0.0), n)
            cells["own_input"] = (peers("own_input", start=0.0), n)
        if self.n_stages > 1:
            cells["stage"] = (peers("stage"), self.n_stages)
        quantities: list[Quantity] = []
        for name, (quantity, n_cells) in cells.items():
            plan.cells[name] = slice(len(quantities), len(quantities) + n_cells)
            quantities += [quantity] * n_cells
        values_per_year = YEAR_S / max(plan.usual_s, LEAST_S)
        n_again = {name: cells[name][1] for name in RECURRING if name in cells}
        looks = sum(n_again.values()) * values_per_year
        plan.recurring = {
            name: RecurrenceTest(n, looks_per_year=looks, false_per_year=self.false_per_year)
            for name, n in n_again.items()
        }
        return EvidenceTest(
            (len(quantities),),
            looks_per_year=len(quantities) * values_per_year,
            false_per_year=self.false_per_year,
            quantity=quantities,
        )

    def _keep(self, plan: Plan, value: Value) -> None:
        plan.ended_s.add(value.at_s)
        plan.started_s.add(value.began_s)
        run = [value.step_s - plan.usual_s], value.run, value.stages
        plan.of_run.add(np.concatenate(run) / plan.usual_s)
        plan.of_worker.add(value.workers / plan.usual_s)

    def _test(self, plan: Plan, test: EvidenceTest, value: Value) -> None:
        values = {
            "step": np.array([value.step_s]),
            "drift": np.array([value.step_s]),
            "run": value.run[: len(TESTED)] / plan.usual_s,
            "own": value.workers[:, 0] / plan.usual_s,
            "own_input": value.workers[:, 1] / plan.usual_s,
            "stage": value.stages / plan.usual_s,
        }
        usual = test.state.noise.reference.copy()
        found = test.update(
            np.concatenate([values[name] for name in plan.cells]),
            value.began_s,
            n_steps=value.n_steps,
            is_calm=self.is_calm and not (self.usual and value.began_s >= self.usual.until_s),
        )
        shows = found.is_open & (test.state.at_s >= value.began_s - STALE_S)
        for name, cells in plan.cells.items():
            if name in plan.recurring:
                excess = (
                    values[name] / np.exp(usual[cells]) - 1.0
                    if name == "step"
                    else values[name] - usual[cells]
                )
                calm = ~found.is_open[cells]
                self._again(plan.recurring[name], name, excess, value.began_s, calm)
            self._shifts[name] = tuple(
                Shift(
                    TESTED[at] if name == "run" else "step" if name == "drift" else name,
                    None if name in OF_RUN else int(at),
                    None,
                    *(float(each[cells][at]) for each in (found.onset_s, found.shift)),
                    *(float(each[cells][at]) for each in (found.nats, found.level_nats)),
                )
                for at in np.flatnonzero(shows[cells])
            )
        if plan.anchor is None and test.state.noise.n_chunks[plan.cells["drift"]][0]:
            plan.anchor = self.baseline(math.inf)

    def _again(
        self, test: RecurrenceTest, name: str, excess: FloatArray, at_s: float, calm: BoolArray
    ) -> None:
        again = test.update(excess, at_s, calm)
        self._shifts[f"{name} again"] = tuple(
            Shift(
                name,
                None if name == "step" else int(cell),
                None,
                float(again.onset_s[cell]),
                float(again.lost[cell]),
                float(again.nats[cell]),
                float(again.level_nats[cell]),
                float(again.every_s[cell]),
            )
            for cell in np.flatnonzero(again.is_open)
        )

    def leave_out(self, since_s: float, until_s: float, before: Baseline | None) -> None:
        """Let steps of a problem that is over be no part of what is usual."""
        plan = self.plan
        if plan is not None:
            rows = (plan.at_s > since_s) & (plan.began_s <= until_s)
            for each in (plan.ended_s, plan.started_s, plan.of_run, plan.of_worker):
                each.drop(rows)
            plan.before = before if before is not None else plan.before

    def baseline(self, before_s: float) -> Baseline | None:
        """Return what was usual before a moment; None without a plan."""
        plan = self.plan
        if plan is None or plan.test is None:
            return None
        if before_s in [drift.onset_s for drift in self._shifts.get("drift", ())]:
            return plan.anchor
        rows = np.flatnonzero(plan.at_s <= before_s)[-N_BEFORE:]
        if len(rows) < FIRST_VALUES and plan.before is not None:
            return plan.before
        run, workers = plan.run[rows], plan.of_workers[rows]
        n = len(rows)
        usual = middle(run.T) if n else np.full(plan.run.shape[1], np.nan)
        scale = (
            GAUSSIAN * middle(np.abs(run - usual).T) if n else np.full(plan.run.shape[1], np.nan)
        )
        own = median(np.moveaxis(workers, 0, -1)) if n else np.zeros(plan.of_workers.shape[1:])
        apart = np.abs(workers - own)
        own_scale = GAUSSIAN * _middle(apart.ravel()) if n > 1 else WORKER_SCALE
        step_s = plan.usual_s * float(1.0 + np.nan_to_num(usual[0]))
        return Baseline(
            usual,
            np.fmax(scale, float(step_scale(np.log(np.array([plan.usual_s])))[0])),
            own,
            np.full(len(WORKER), max(float(np.nan_to_num(own_scale)), WORKER_SCALE)),
            n,
            step_s,
            float(scale[0]) if n > 1 else np.nan,
            plan.usual_s,
            step_s if n else np.nan,
        )

    def effects(
        self, baseline: Baseline, since_s: float, *, again: Shift | None = None
    ) -> dict[str, Effect]:
        """How far every quantity is from its baseline in the newest values since a moment.

        Of what comes `again` and again, in its long values.
        """
        plan = self.plan
        if plan is None or plan.test is None:
            return {}
        counts = plan.began_s >= since_s
        if again is not None and again.node is None:
            counts &= plan.run[:, 0] - np.nan_to_num(baseline.run[0]) > LONG[0]
        elif again is not None:
            own = plan.of_workers[:, again.node, 0] - np.nan_to_num(
                baseline.workers[again.node, 0]
            )
            counts &= own > LONG[0]
        rows = np.flatnonzero(counts)[-N_SINCE:]
        if not rows.size:
            return {}
        run, workers = middle(plan.run[rows].T), plan.of_workers[rows]
        n = len(rows)
        # The variance of a median is pi / 2 that of a mean; long memory adds as much again.
        inflation = 1.0 / n + 1.0 / max(baseline.n, 1)
        error = baseline.run_scale * np.sqrt(np.pi * inflation)
        error = np.hypot(error, scatter_of(plan.run[rows]))
        known = baseline.n > 1
        size = run - baseline.run if known else np.full(len(run), np.nan)
        # The stage that has become longest; in uneven work it is another one in each step.
        longest = len(RUN) + int(np.argmax(np.nan_to_num(size[len(RUN) :])))
        found = {
            name: Effect(np.asarray(size[i]), np.asarray(error[i]))
            for name, i in (*zip(RUN, range(len(RUN)), strict=True), ("stage", longest))
        }
        transfer = RUN.index("transfer")
        if max(abs(run[transfer]), abs(baseline.run[transfer])) < LEAST_EXCHANGE:
            del found["transfer"]
        own = median(np.moveaxis(workers, 0, -1)) - baseline.workers
        usual_error = np.broadcast_to(
            baseline.worker_scale * np.sqrt(np.pi * inflation), own.shape
        )
        own_error = np.hypot(usual_error, scatter_of(workers))
        for i, name in enumerate(WORKER):
            found[name] = Effect(own[:, i], own_error[:, i], usual_error[:, i])
        found["jitter"] = _jitter(plan.run[rows, 0], baseline)
        return found


def _values_of(usual: Usual, plan: Plan) -> list[Value]:
    """Return as many values as a reference needs; of these steps only the length is known."""
    at_s = usual.until_s - usual.step_s * np.arange(FIRST_VALUES + 1)[::-1]
    unknown, n_workers = np.full(len(RUN) - 1, np.nan), len(plan.workers)
    # Of workers it is known how far healthy ones are from their peers.
    of_workers, of_stages = np.zeros((n_workers, len(WORKER))), np.full(plan.n_stages, np.nan)
    own = np.full(n_workers, np.nan)
    return [
        Value(began, ended, usual.step_s, unknown, of_workers, of_stages, 1, own)
        for began, ended in pairwise(at_s.tolist())
    ]


def _jitter(step: FloatArray, baseline: Baseline) -> Effect:
    """By how much more steps scatter than before, as a share of the step."""
    if len(step) < 4 or not np.isfinite(baseline.jitter):
        return Effect(np.asarray(np.nan), np.asarray(np.nan))
    scatter = GAUSSIAN * float(np.median(np.abs(step - np.median(step))))
    error = np.hypot(scatter, baseline.jitter) * 1.2 / np.sqrt(len(step)) + WORKER_SCALE
    return Effect(np.asarray(scatter - baseline.jitter), np.asarray(error))


def _starts(steps: StepBatch) -> list[StepBatch]:
    """Cut steps where, as time passes, their numbers begin again after a pause.

    A run that began again from a checkpoint repeats numbers; both are stored for a while.
    """
    known = np.isfinite(steps.ended_at_s)
    order = np.argsort(steps.ended_at_s, kind="stable")[: int(known.sum())]
    passed_s, ahead = np.diff(steps.ended_at_s[order]), np.diff(steps.step[order])
    begins = np.concatenate([[0], np.cumsum((ahead <= 0) & (passed_s > PAUSE_S))])[: len(order)]
    start = np.full(len(steps), -1)
    start[order] = begins
    return [steps[start == each] for each in range(int(start.max(initial=-1)) + 1)]


def _reporting(rows: StepBatch) -> tuple[str, ...]:
    """Return the workers that report; a batch has those of all its steps."""
    reports = np.asarray(np.isfinite(rows.phases["compute_s"]).any(axis=0))
    return rows.workers if reports.all() else tuple(compress(rows.workers, reports))


def _of_workers(rows: StepBatch, workers: tuple[str, ...]) -> StepBatch:
    """Return the steps with these workers, NaN where there is no report."""
    if rows.workers == workers:
        return rows
    column = {name: i for i, name in enumerate(rows.workers)}
    columns = np.array([column.get(name, -1) for name in workers], int)
    phases = {
        name: np.where(columns >= 0, values[:, columns], np.nan)
        for name, values in rows.phases.items()
    }
    return replace(rows, workers=workers, phases=phases)


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
    for row, step_s in enumerate(_or_zero(steps.step_s).tolist()):
        lasted_s += step_s
        if lasted_s >= LEAST_S:
            pieces.append(steps[begin : row + 1])
            begin, lasted_s = row + 1, 0.0
    return pieces


def _value(
    rows: StepBatch, began_s: float, n_stages: int, own_before_s: FloatArray | None
) -> Value:
    """Measure all quantities of some rows.

    Workers are compared with those of the same stage, stages with the usual one.
    """
    n_workers = len(rows.workers)
    stage = (np.arange(1, n_workers + 1) * n_stages - 1) // max(1, n_workers)
    of_rows = {
        name: np.where((values >= 0.0) & (values <= LONGEST_S), values, np.nan)
        for name, values in rows.phases.items()
    }
    phases = {name: _mean_of_rows(values) for name, values in of_rows.items()}
    compute, transfer, wait = (phases[f"{n}_s"] for n in ("compute", "transfer", "wait"))
    # Without checkpoints and other time.
    step = of_rows["compute_s"] + sum(
        _or_zero(of_rows[f"{n}_s"]) for n in ("wait", "transfer", "input")
    )
    # Without a timed exchange, others wait inside what seems to be a worker's own compute time.
    timed = np.isfinite(compute + wait)
    own_parts = np.stack(
        [
            compute + _or_zero(phases["input_s"]) + _or_zero(phases["other_s"]),
            phases["input_s"],
            compute,
        ],
        axis=1,
    )
    own_parts[~timed, 0] = own_parts[~timed, 2] = np.nan
    own = own_parts.copy()
    for s in range(n_stages):
        own[stage == s] -= lower_median(own_parts[stage == s].T)
    alone = (np.bincount(stage, minlength=n_stages)[stage] == 1) & (n_stages > 1)
    # The only worker of a stage is the stage, which works as long as it does. All read alike.
    own[alone] = np.nan
    own[alone, 1] = (own_parts[:, 1] - lower_median(own_parts[:, 1]))[alone]
    uneven = _uneven(own_parts[:, 0], own_before_s)
    of_stages = np.array([float(median(own_parts[stage == s, 0])) for s in range(n_stages)])
    # That of a worker, not between two: one of two may be the slow one.
    quick = np.nanquantile(compute, QUICK, method="lower") if timed.any() else np.nan
    run = np.array(
        [
            quick,
            _middle(transfer),
            _middle(phases["input_s"]),
            # The usual one: a worker that is quicker than before waits longer and slows no step.
            _middle(wait),
            uneven,
            _middle(phases["other_s"]),
        ]
    )
    stages = of_stages - lower_median(of_stages)
    return Value(
        began_s,
        float(rows.ended_at_s[-1]),
        _mean(_mean_of_rows(step)),
        run,
        own,
        stages,
        len(rows),
        own_parts[:, 0],
    )


def _uneven(own_s: FloatArray, before_s: FloatArray | None) -> float:
    """How far own times scatter that are others in each step: seconds, a robust deviation.

    Lasting differences between workers and between stages are none, nor is what changes for all.
    """
    if before_s is None:
        return math.nan
    change_s = own_s - before_s
    # Each change is the difference of two.
    return GAUSSIAN / math.sqrt(2.0) * _middle(np.abs(change_s - _middle(change_s)))


def _mean_of_rows(values: FloatArray) -> FloatArray:
    known = np.isfinite(values)
    n = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, n, out=np.full(len(n), np.nan), where=n > 0))


def _or_zero(values: FloatArray) -> FloatArray:
    """Return zero for what is missing; `nan_to_num` also looks for infinite values, four times."""
    return np.asarray(np.where(np.isnan(values), 0.0, values))


def _mean(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else np.nan


def _middle(values: FloatArray) -> float:
    return float(median(values))
