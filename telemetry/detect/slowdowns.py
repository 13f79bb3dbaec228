"""What slows a run: one problem per explanation, from its evidence.

1. Steps (of equal work: `Work`) and hardware are folded into tests, each value once.
2. A shift above its level that no open problem explains opens one.
3. Effects of all quantities since its onset give its cause and place (`explain`).
4. What that signature says of a shift, or does not say, is explained by it; the rest is looked at
   again: a second problem.
5. A problem ends when none of its shifts is above its level any more, or only longer steps that
   others explain, and its own effects are over.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.causes import (
    CLASSES,
    HARDWARE_CAUSES,
    NOT_URGENT,
    SIGNATURES,
    UNKNOWN,
    Scope,
    explanations_json,
    kind_of,
    symptoms_json,
)
from telemetry.detect.checkpoints import find_slow_checkpoint
from telemetry.detect.evidence import clearer, evidence_of, own_time, performance_victims
from telemetry.detect.explain import (
    NAMED,
    SIZES,
    Explanation,
    Place,
    Seen,
    at_device,
    at_place,
    by_chance,
    explain,
    parts_of,
    without,
)
from telemetry.detect.findings import CauseScore, Finding, Problem, json_number
from telemetry.detect.hardware import BURST_RATIO, Parts
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.limits import false_per_year, limits_json
from telemetry.detect.progress import find_slow_progress
from telemetry.detect.quantities import (
    ALARMS,
    KINDS,
    OF_OTHERS,
    OF_PLACE,
    OF_STEPS,
    SHOW_PART,
    SYMPTOMS,
    Kind,
)
from telemetry.detect.rules import RULES
from telemetry.detect.shares import SHARE, Shares, find_share
from telemetry.detect.shifts import Effect, Effects, Shift
from telemetry.detect.standstill import OLDEST_S
from telemetry.detect.steps import QUICK, RUN, WORKER, Baseline, Steps, Usual
from telemetry.detect.work import Work, comparable
from telemetry.evidence.noise import IntArray
from telemetry.statistics.peers import mean, median
from telemetry.steps import StepBatch
from telemetry.units import MINUTE_S

# Seconds of which the memory traffic is read, before and since; steps begin and end in between.
MEMORY, MOMENTS, TRAFFIC_ERROR = "hbm_bandwidth_bytes_per_s", 20, 0.04
# Setting: half of a change is none any more.
HALF = RULES["step_slow"].limits["half_ratio"]
# New row of each row that is still there; of the run as a whole, None, always.
Rows = Mapping[int | None, int | None]
# At most so many problems that begin together: a rack of nodes behind one switch.
MOST_AT_ONCE = 16


@dataclass(slots=True, eq=False)
class Tracked:
    """An open problem: what began when, and what it is believed to be."""

    shift: Shift
    onset_s: float
    baseline: Baseline | None
    explanation: Explanation
    effects: Effects = field(default_factory=dict)
    # By how much longer steps were at worst: a share.
    longest: float = 0.0
    # The culprit at worst.
    score: CauseScore | None = None
    # What else there was since it began, and is over.
    beside: dict[Place, Explanation] = field(default_factory=dict)
    # Quantities of steps at its place: now, and the largest sizes.
    latest: Seen = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)

    @property
    def strength(self) -> float:
        return self.shift.nats / self.shift.level_nats

    def follow(self, rows: Rows, workers: Rows) -> bool:
        """Follow nodes and workers to their new rows; False if one of the problem has left."""
        shift, found = self.shift, self.explanation
        of_shift = workers if shift.quantity in WORKER else rows
        if shift.quantity != "stage" and shift.node is not None:
            if shift.node not in of_shift:
                return False
            self.shift = replace(shift, node=of_shift[shift.node])
        beside = [each for each in self.beside.values() if each.node in rows]
        self.beside = {each.place: each for each in (e.moved(rows) for e in beside)}
        if found.node in rows:
            self.explanation, self.effects = found.moved(rows), {}
        return found.node in rows

    def note(self, of_steps: Effects) -> None:
        """Note what steps show now, where it is believed to be."""
        places = dict.fromkeys([None, self.explanation.node])
        self.latest = {n: seen for p in places for n, seen in at_place(of_steps, p).items()}
        for name, (size, _, _) in self.latest.items():
            self.largest[name] = max(size, self.largest.get(name, 0.0))

    def has_faded(self, others: Collection["Tracked"]) -> bool:
        """Whether what its signature raises, and that of no other problem, is half of what it was.

        By more than the standard error. False where steps show nothing of that kind.
        """
        row, node = self.explanation.signature, self.explanation.node
        raised = (row.raises if row is not None else frozenset()) & self.latest.keys() & OF_STEPS
        for other in others:
            of_other = other.explanation
            if of_other.signature is not None and of_other.node == node:
                raised -= of_other.signature.raises
            elif of_other.signature is not None:
                raised -= of_other.signature.raises - OF_PLACE
        sizes = [(self.latest[name], self.largest[name]) for name in raised]
        return bool(sizes) and all(now + error < HALF * most for (now, error, _), most in sizes)

    def explains(self, shift: Shift, node: int | None, inputs: DetectionInput) -> bool:
        """Whether a shift is part of what this problem's signature predicts, or leaves open."""
        found = self.explanation
        row = found.signature
        if _place_of(shift) == _place_of(self.shift):
            # It was opened by it, whatever it is believed to be now.
            return True
        if row is None:
            return shift.quantity not in OF_PLACE or node in (None, found.node)
        if row.scope == "node":
            if shift.node is not None and shift.quantity != "stage":
                parts = parts_of(shift.quantity, found, inputs.cores_per_device)
                if node != found.node or not _is_within(shift.part, parts):
                    return False
            if shift.quantity in OF_OTHERS and len(inputs.nodes) == 1:
                return True
        name = {"core": "device"}.get(shift.quantity, shift.quantity)
        return shift.quantity == "own" or row.sign(name) != 0


def _place_of(shift: Shift) -> tuple[str, int | None, int | None]:
    return shift.quantity, shift.node, shift.part


def _is_within(part: int | None, parts: slice) -> bool:
    return part is None or parts.start is None or parts.start <= part < parts.stop


class RunWatch:
    """Fold over one run, and the problems that are open in it."""

    def __init__(self, inputs: DetectionInput) -> None:
        self.steps = Steps(n_stages=inputs.n_stages, false_per_year=false_per_year(inputs)[0])
        self.parts = _parts(inputs)
        self.shares, self.work = Shares(), Work()
        self.problems: list[Tracked] = []
        # The same as findings show them, and what could be found in the run.
        self.shown: list[Problem] = []
        self._limits: Mapping[str, Any] | None = None
        # Times of problems: since when one is open, what was usual then; from and to, if over.
        self._open_s: float | None = None
        self._before: Baseline | None = None
        self.over: list[tuple[float, float]] = []

    def note(self, problems: Collection[Problem], now_s: float) -> None:
        """Note that these problems are open now."""
        self.over = [each for each in self.over if each[1] > now_s - OLDEST_S]
        if problems:
            first_s = min(problem.onset_s for problem in problems)
            self._open_s = first_s if self._open_s is None else min(self._open_s, first_s)
        elif self._open_s is not None:
            self.over.append((self._open_s, now_s))
            self.steps.leave_out(*self.over[-1], self._before)
            self.parts.leave_out(*self.over[-1])
            self._open_s = None

    @property
    def n_nodes(self) -> int:
        return len(self.parts.nodes)

    @property
    def n_workers(self) -> int:
        return len(self.steps.plan.workers) if self.steps.plan is not None else 0

    def without_hardware(self) -> "RunWatch":
        """Return a copy that knows steps and problems alone."""
        other = copy(self)
        other.parts = self.parts.unread()
        return other

    def resume(self) -> None:
        """Go on after seconds without a look: steps that are stored still count."""
        self.steps.resume()

    @property
    def shifts(self) -> list[Shift]:
        """Shifts that are alarms; other hardware tells causes apart."""
        of_parts = [s for s in self.parts.shifts if s.quantity in ALARMS]
        return [*self.steps.shifts, *of_parts, *self.shares.shifts]

    def update(self, inputs: DetectionInput, *, is_share_open: bool) -> None:
        of_steps, self.parts.false_per_year = false_per_year(inputs)
        if self.steps.n_stages != inputs.n_stages:
            # Workers are compared within other stages; open alerts say what was wrong.
            self.steps, self.problems = (
                Steps(n_stages=inputs.n_stages, false_per_year=of_steps),
                [],
            )
        self.steps.accept(of_steps)
        self.steps.is_calm = not self.problems
        plan, parts = self.steps.plan, self.parts
        known = _known(inputs) if plan is None else []
        self.steps.usual = known[0][0] if known else None
        is_new = self.steps.update(
            inputs.steps, inputs.now_s, earlier=inputs.earlier, started_s=inputs.started_s
        )
        if is_new:
            self._limits = None
        if self.steps.plan is not None:
            self.problems += [tracked for _, tracked in known]
        if not parts.is_of(inputs):
            # Peers are other ones: what hardware showed among those before says nothing of them.
            self.parts = _parts(inputs)
        if self.steps.plan is not plan or self.parts is not parts:
            rows = _rows(parts.nodes, inputs.nodes)
            workers = _rows(*(each.workers if each else () for each in (plan, self.steps.plan)))
            self.problems = [each for each in self.problems if each.follow(rows, workers)]
        if self.steps.plan is not plan:
            # What was usual was usual of other work.
            for problem in self.problems:
                problem.baseline = None
        steps = inputs.steps.reported
        was_open = self.shares.is_open
        if len(steps) and steps.is_timed_now:
            self.shares.update(inputs, steps.timed, is_open=is_share_open)
        is_new |= self.shares.is_open != was_open
        if self.parts.update(inputs) or is_new:
            self._follow(inputs)
            if self.problems and self._limits is None:
                self._limits = limits_json(self.steps)
            self.shown = [_problem(inputs, each, self._limits) for each in self.problems]

    def _follow(self, inputs: DetectionInput) -> None:
        """See with what is new which problems last, and which have begun."""
        shifts = self.shifts
        for problem in self.problems:
            self._reconsider(inputs, problem)
        lasting = self._lasting(inputs, shifts)
        over = [problem for problem in self.problems if problem not in lasting]
        if over and not lasting:
            self.shares.forget(min(problem.onset_s for problem in over))
            self._before = over[0].baseline
        for problem in lasting:
            problem.beside |= {other.explanation.place: other.explanation for other in over}
        self.problems = [p for p in lasting if not self._is_part_of_another(inputs, p)]
        for _ in range(MOST_AT_ONCE):
            rest = [s for s in shifts if not self._is_explained(inputs, s)]
            if not rest:
                break
            first = max(rest, key=lambda s: s.nats / s.level_nats)
            # What shows at another place is another problem, if this one does not explain it.
            here = (None, self._node_of(inputs, first))
            self._open(inputs, first, [s for s in rest if self._node_of(inputs, s) in here])

    def _lasting(self, inputs: DetectionInput, shifts: list[Shift]) -> list[Tracked]:
        """Return the problems of which a shift lasts, if only of the run one that is not over."""
        of = {p: [s for s in shifts if self._explains(inputs, p, s)] for p in self.problems}
        lasting = [problem for problem in self.problems if of[problem]]
        for problem in lasting[:]:
            others = [other for other in lasting if other is not problem]
            known = [s for other in others for s in of[other] if s.node is None]
            if others and all(s in known for s in of[problem]) and problem.has_faded(others):
                lasting.remove(problem)
        return lasting

    def _is_part_of_another(self, inputs: DetectionInput, problem: Tracked) -> bool:
        """Whether a clearer problem, which this one does not explain, explains what opened it."""
        return any(
            self._explains(inputs, other, problem.shift)
            and not self._explains(inputs, problem, other.shift)
            for other in self.problems
            if other is not problem and other.strength >= problem.strength
        )

    def _explains(self, inputs: DetectionInput, problem: Tracked, shift: Shift) -> bool:
        return problem.explains(shift, self._node_of(inputs, shift), inputs)

    def explains_steps(self, inputs: DetectionInput) -> bool:
        """Whether an open problem makes the steps of the run longer."""
        return self._is_explained(inputs, Shift("step", None, None, inputs.now_s, 0.0, 0.0, 0.0))

    def _is_explained(self, inputs: DetectionInput, shift: Shift) -> bool:
        accused = {problem.explanation.node for problem in self.problems} - {None}
        if shift.quantity == "compute" and len(accused) > (1.0 - QUICK) * len(inputs.nodes):
            # The quick workers are on nodes that are accused.
            return True
        return any(self._explains(inputs, problem, shift) for problem in self.problems)

    def _node_of(self, inputs: DetectionInput, shift: Shift) -> int | None:
        """Row of the node of a shift; workers are places on nodes."""
        if shift.node is None or shift.quantity == "stage":
            return None
        plan = self.steps.plan
        if shift.quantity in WORKER and plan is not None:
            name = inputs.node_of(plan.workers[shift.node])
            return inputs.row_of[name] if name is not None else None
        return shift.node

    def _baseline(self, onset_s: float) -> Baseline | None:
        """Return what was usual before a moment; a usual step is one before all open problems."""
        found = self.steps.baseline(onset_s)
        earlier = [each for each in self.problems if each.baseline and each.onset_s < onset_s]
        first = min(earlier, key=lambda problem: problem.onset_s, default=None)
        if found is None or first is None or first.baseline is None:
            return found
        return replace(found, usual_step_s=first.baseline.usual_step_s)

    def _open(self, inputs: DetectionInput, first: Shift, shifts: list[Shift]) -> None:
        onset_s = min(s.onset_s for s in shifts)
        baseline = self._baseline(onset_s)
        problem = Tracked(
            first, onset_s, baseline, Explanation(UNKNOWN, None, None, {}, 0.0, None)
        )
        self._explain(inputs, problem)
        self.problems.append(problem)

    def _reconsider(self, inputs: DetectionInput, problem: Tracked) -> None:
        """Explain again with what came since; a cause is replaced by one that is better known."""
        before = problem.explanation
        self._explain(inputs, problem)
        now = problem.explanation
        is_vaguer = now.cause in (UNKNOWN, *CLASSES) and before.cause not in (UNKNOWN, *CLASSES)
        if is_vaguer or (before.node is not None and now.node is None):
            problem.explanation = before

    def _explain(self, inputs: DetectionInput, problem: Tracked) -> None:
        again = problem.shift if problem.shift.every_s is not None else None
        # Hardware is measured in blocks, in which what comes again is diluted.
        effects = {} if again else dict(self.parts.effects(problem.onset_s))
        if "core" in effects and "device" in effects:
            effects["core_own"] = _own_of_cores(effects["core"], effects["device"])
        if "retransmits" in effects:
            effects["retransmits"] = _in_bursts(effects["retransmits"])
        if problem.baseline is None:
            problem.baseline = self._baseline(problem.onset_s)
        if problem.baseline is not None:
            of_steps: Effects = self.steps.effects(problem.baseline, problem.onset_s, again=again)
            if not of_steps and problem.shift.quantity not in ALARMS:
                # What steps have shown is explained by steps: of hardware something always stands
                # out.
                return
            of_steps = self._by_node(inputs, of_steps)
            problem.note(of_steps)
            longer = float(of_steps["step"].size) if of_steps else 0.0
            if longer < HALF * problem.longest:
                # It is over, or nearly: what steps show now is not what it was.
                return
            problem.longest = max(problem.longest, longer)
            effects.update(of_steps)
        if not effects:
            return
        traffic = _traffic(inputs, problem)
        if traffic is not None and again is None:
            effects["traffic"] = traffic
        others = [other.explanation for other in self.problems if other is not problem]
        others += problem.beside.values()
        for other in others:
            effects = without(effects, other, per_device=inputs.cores_per_device)
        shift = problem.shift
        if shift.part is not None and shift.node is not None:
            effects = at_device(
                effects, shift.node, shift.quantity, shift.part, per_device=inputs.cores_per_device
            )
        problem.effects = effects
        nodes = self._candidates(inputs, problem, {other.node for other in others})
        problem.explanation = explain(
            effects,
            nodes,
            n_nodes=len(inputs.nodes),
            n_stages=inputs.n_stages,
            lasts_s=inputs.now_s - problem.onset_s,
        )
        if problem.explanation.node is None and problem.explanation.run_weight < 1.0 - NAMED:
            self._take_clearest(problem, {other.node for other in others})
        if problem.explanation.node is None and problem.explanation.cause == UNKNOWN:
            self._take_late(inputs, problem)

    def _take_late(self, inputs: DetectionInput, problem: Tracked) -> None:
        """Accuse the only node that is late: workers are compared at one time, without a past.

        Where a past is known, by more than the worst of all may seem to be since the onset.
        """
        own = problem.effects.get("own")
        late = {
            self._node_of(inputs, s)
            for s in self.shifts
            if s.quantity == "own" and s.onset_s >= problem.onset_s
        }
        if own is not None:
            is_by_chance = own.size < CHANGED_ERRORS * own.error + by_chance(
                own.error, own.size.size
            )
            late = {node for node in late if node is None or not is_by_chance[node]}
        if len(late) == 1:
            problem.explanation = replace(problem.explanation, node=late.pop())

    def _take_clearest(self, problem: Tracked, accused: Collection[int | None]) -> None:
        """Accuse one of several nodes that show a cause alike: of each a test of parts says so.

        The others are what is left.
        """
        found = problem.explanation
        row = next((r for r in SIGNATURES if (r.name, r.scope) == (found.cause, "node")), None)
        shown = [
            shift
            for shift in self.parts.shifts
            if row is not None and row.sign(shift.quantity) and shift.node not in accused
        ]
        if shown:
            first = max(shown, key=lambda shift: shift.nats / shift.level_nats)
            problem.explanation = replace(found, node=first.node, part=first.part, signature=row)

    def _candidates(
        self, inputs: DetectionInput, problem: Tracked, accused: Collection[int | None]
    ) -> list[int]:
        """Where a problem may be: where it shows, else where anything stands out most."""
        node = self._node_of(inputs, problem.shift)
        if node is not None:
            return [node]
        found = {self._node_of(inputs, shift) for shift in self.shifts}
        for name in OF_PLACE & problem.effects.keys():
            size = np.abs(problem.effects[name].size)
            if size.size and np.isfinite(size).any():
                flat = int(np.nanargmax(size))
                found.add(flat // (size.size // len(size)))
        return sorted(each for each in found - set(accused) if each is not None)

    def _by_node(self, inputs: DetectionInput, effects: Effects) -> Effects:
        """Give each node the effect of its latest worker."""
        plan = self.steps.plan
        if plan is None or plan.workers == inputs.nodes:
            return effects
        rows: dict[int, list[int]] = {}
        for i, worker in enumerate(plan.workers):
            name = inputs.node_of(worker)
            if name is not None:
                rows.setdefault(inputs.row_of[name], []).append(i)
        found = dict(effects)
        for quantity in ("own", "own_input", "own_compute"):
            if quantity in effects:
                effect, latest = effects[quantity], np.full(len(inputs.nodes), -1)
                for node, of_node in rows.items():
                    latest[node] = of_node[int(np.argmax(np.nan_to_num(effect.size[of_node])))]
                found[quantity] = Effect(
                    _rows_of(effect.size, latest),
                    _rows_of(effect.error, latest),
                    None if effect.usual_error is None else _rows_of(effect.usual_error, latest),
                )
        return found


def _rows_of(values: FloatArray, rows: IntArray) -> FloatArray:
    return np.where(rows < 0, np.nan, values[rows])


def _parts(inputs: DetectionInput) -> Parts:
    return Parts(
        inputs.nodes,
        cores_per_device=inputs.cores_per_device,
        report_every_s=inputs.report_every_s,
        false_per_year=false_per_year(inputs)[1],
    )


def _known(inputs: DetectionInput) -> list[tuple[Usual, Tracked]]:
    """Return what open alerts say of the steps of a run: what was usual, and what is wrong."""
    keys = ("baseline_step_s", "tokens", "onset_s", "nats", "level_nats")
    known = []
    for alert in inputs.open_problems:
        said = alert.evidence
        weights: dict[str, float] = said.get("posterior") or {}
        if any(said.get(key) is None for key in keys):
            continue
        step_s, tokens, onset_s, nats, level_nats = (float(said[key]) for key in keys)
        if inputs.started_s is not None and onset_s < inputs.started_s:
            # It was about another start.
            continue
        node = inputs.row_of.get(alert.node) if alert.node is not None else None
        scope, cause = (
            "run" if node is None else "node",
            max(weights, key=weights.__getitem__, default=""),
        )
        row = next((r for r in SIGNATURES if (r.name, r.scope) == (cause, scope)), None)
        found = Explanation(alert.cause, node, alert.device, weights, 1.0, row)
        shift = Shift("step", None, None, onset_s, 0.0, nats, level_nats)
        known.append((Usual(step_s, tokens, onset_s), Tracked(shift, onset_s, None, found)))
    return sorted(known, key=lambda each: each[0].until_s)


def _rows(before: Sequence[str], now: Sequence[str]) -> Rows:
    """Return the new row of each name that is still there."""
    row_of = {name: row for row, name in enumerate(now)}
    return {None: None} | {row: row_of[name] for row, name in enumerate(before) if name in row_of}


def _own_of_cores(core: Effect, device: Effect) -> Effect:
    """How far each core is from the usual one of its device: (n_nodes, n_cores)."""
    if device.size.shape[1] == 1:
        # The only device of a node is compared with those of others, cores with their mates.
        return core
    per_device = core.size.shape[1] // max(1, device.size.shape[1])
    return Effect(core.size - np.repeat(device.size, per_device, axis=1), core.error)


def _in_bursts(loss: Effect) -> Effect:
    """Return a share of packets as a logarithm, of which healthy bursts are the unit."""
    usual = BURST_RATIO + np.maximum(loss.size, 0.0)
    return Effect(np.log(usual / BURST_RATIO), loss.error / usual)


def _traffic(inputs: DetectionInput, problem: Tracked) -> Effect | None:
    """By how much more all memories move per step than before, as a logarithm.

    The same work done more slowly moves as many bytes a step; starved cores move fewer.
    """
    steps = inputs.steps.reported
    age_s = inputs.now_s - problem.onset_s
    if inputs.hardware_at is None or problem.baseline is None or not len(steps):
        return None
    spans = (
        inputs.hardware_at([MEMORY], [int(first - back) for back in range(MOMENTS)])
        for first in (age_s + MOMENTS, max(age_s, MOMENTS))
    )
    rates = [
        _finite_mean(span.values[MEMORY]) if MEMORY in span.values else np.nan for span in spans
    ]
    since = steps.step_s[steps.ended_at_s - steps.step_s >= problem.onset_s]
    if not since.size or not np.isfinite(rates).all() or min(rates) <= 0:
        return None
    longer = float(np.median(since)) / problem.baseline.step_s
    return Effect(np.asarray(np.log(rates[1] * longer / rates[0])), np.asarray(TRAFFIC_ERROR))


def _finite_mean(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else np.nan


def find_slowdowns(inputs: DetectionInput, *, open_rules: Collection[str] = ()) -> list[Finding]:
    """Return what slows the run: at most one finding per problem."""
    watches = inputs.watches if inputs.watches is not None else {}
    watch: RunWatch | None = watches.get(inputs.run)
    if watch is None:
        watch = watches[inputs.run] = RunWatch(inputs)
    if watch.parts.is_stale(inputs.now_s):
        watch.parts = watch.parts.unread()
        watch.resume()
    inputs = watch.work.of(inputs)
    watch.update(inputs, is_share_open=SHARE in open_rules)
    found = [*watch.shown]
    steps = inputs.steps.reported
    saving = find_slow_checkpoint(inputs, comparable(steps))
    found += saving
    if not len(steps):
        if not saving and not watch.explains_steps(inputs):
            found += find_slow_progress(inputs, over=watch.over)
        watch.note(found, inputs.now_s)
        return _findings(inputs, steps, found)
    watch.note(watch.shown, inputs.now_s)
    share = None
    if steps.is_timed_now:
        share, found = find_share(watch.shares, inputs, steps.timed, found)
    return ([share] if share else []) + _findings(inputs, steps, found)


def _findings(inputs: DetectionInput, steps: StepBatch, problems: list[Problem]) -> list[Finding]:
    """Return one finding per rule and subject, the strongest."""
    found: dict[tuple[str, str | None], Finding] = {}
    for problem in sorted(problems, key=lambda p: -p.strength):
        rule = RULES[problem.rule]
        subject = (rule.name, problem.node if rule.subject == "node" else None)
        other = found.get(subject)
        if other is not None and problem.device not in (None, other.device):
            # A second part of a node is a finding about the steps of the run.
            rule = RULES["step_slow"]
            subject = (rule.name, None)
        if subject in found:
            continue
        is_vague = problem.cause in NOT_URGENT and problem.node is None
        found[subject] = Finding(
            rule=rule.name,
            cause=problem.cause,
            severity="warn" if is_vague else rule.severity,
            run=inputs.run,
            node=problem.node,
            device=problem.device,
            onset_s=problem.onset_s,
            score=problem.strength,
            victims=performance_victims(inputs, steps, problem),
            evidence=evidence_of(inputs, steps, problem),
        )
    return list(found.values())


def _problem(
    inputs: DetectionInput, tracked: Tracked, limits: Mapping[str, Any] | None
) -> Problem:
    found = tracked.explanation
    node = inputs.nodes[found.node] if found.node is not None else None
    if len(inputs.nodes) == 1 and found.cause in HARDWARE_CAUSES:
        # Hardware of the whole run is that of its only node.
        node = inputs.nodes[0]
    kind = kind_of(found.cause) if found.cause != UNKNOWN else KINDS[tracked.shift.quantity]
    usual_s, now_s = _longer(tracked, PART_OF_KIND[kind])
    score = None
    if node is not None or found.cause != UNKNOWN:
        score = tracked.score = clearer(tracked.score, _score(inputs, tracked, node))
    late = (node,) if node is not None and kind in ("waiting", "input") else ()
    tokens = float(inputs.steps.tokens[-1]) if len(inputs.steps) else np.nan
    extra: dict[str, Any] = {
        "phase_s": json_number(now_s),
        "baseline_phase_s": json_number(usual_s),
        "tokens": tokens if np.isfinite(tokens) else None,
        "nats": tracked.shift.nats,
        "level_nats": tracked.shift.level_nats,
        "limits": limits,
        "posterior": {name: round(share, 3) for name, share in found.weights.items()},
    }
    if tracked.baseline is not None and np.isfinite(tracked.baseline.usual_step_s):
        extra["baseline_step_s"] = tracked.baseline.usual_step_s
    if tracked.shift.every_s is not None:
        extra["every_s"] = tracked.shift.every_s
    symptoms = _symptoms(tracked)
    scope: Scope = "run" if found.node is None else "node"
    extra["symptoms"] = symptoms_json(symptoms)
    extra["causes"] = explanations_json(symptoms, scope=scope, named=found.cause)
    return Problem(
        cause=found.cause,
        score=score,
        kind=kind,
        onset_s=tracked.onset_s,
        strength=tracked.strength,
        late=tuple(w for w in late if w),
        extra=extra,
    )


# The part of a step that a problem makes longer.
PART_OF_KIND: Mapping[Kind, str] = {
    "waiting": "wait",
    "transferring": "transfer",
    "computing": "compute",
    "input": "input",
    "checkpoint": "step",
    "step": "step",
}


def _longer(tracked: Tracked, part: str) -> tuple[float, float]:
    """How long the part of a step is usually, and since the onset: seconds, NaN if unknown."""
    baseline, effect = tracked.baseline, tracked.effects.get(part)
    if baseline is None:
        return np.nan, np.nan
    of_run = baseline.run[RUN.index(part)]
    one_s = baseline.unit_s
    usual_s = float(one_s * (1.0 + of_run if part == "step" else of_run))
    return usual_s, float(usual_s + one_s * (effect.size if effect is not None else np.nan))


FIGURE_S, CORES = 8, "core_utilization_ratio"
# From so many standard errors on an effect is a change.
CHANGED_ERRORS = 3.0


def _symptoms(tracked: Tracked) -> dict[str, int]:
    """Which quantities are raised, lowered or unchanged at the place of a problem."""
    seen = at_place(tracked.effects, tracked.explanation.node)
    return {
        SYMPTOMS[name]: int(np.sign(size))
        if abs(size) >= max(CHANGED_ERRORS * error, float(SIZES[0]))
        else 0
        for name, (size, error, _) in seen.items()
        if name in SYMPTOMS
    }


def _score(inputs: DetectionInput, tracked: Tracked, node: str | None) -> CauseScore:
    """Return the culprit with its figure: a part's metric, or how long it works per step."""
    found, strength = tracked.explanation, tracked.strength
    row = found.signature
    if row is None or node is None or found.part is None:
        value_s, peers_s, n_peers = own_time(inputs, node, since_s=tracked.onset_s)
        return CauseScore(
            found.cause, strength, "own_s", value_s, peers_s, n_peers, "s", node, found.part
        )
    shown = next(shown for name, shown in SHOW_PART.items() if row.sign(name))
    metric = shown.metric
    nodes: Sequence[str] = [node]
    read = inputs.hardware([metric], inputs.lagging(FIGURE_S))
    is_only = read.values[metric].shape[2] == 1
    if is_only:
        # As in `hardware`, it is compared with those of other nodes: over a step, since others
        # wait where it works.
        last_s = int(np.fmax(FIGURE_S, np.fmin(_longer(tracked, "step")[1], MINUTE_S)))
        read, nodes = inputs.hardware([metric], inputs.lagging(last_s)), inputs.nodes
    values = mean(read.of(nodes).values[metric], 0)
    per_part = inputs.cores_per_device if found.cause != "slow_core" and metric == CORES else 1
    of_part = values.reshape(-1, 1 if is_only else per_part).mean(axis=1)
    at = inputs.row_of[node] if is_only else found.part
    is_here = np.arange(len(of_part)) == at
    value = float(of_part[at]) if is_here.any() else np.nan
    others = of_part[~is_here & np.isfinite(of_part)]
    return CauseScore(
        found.cause,
        strength,
        metric,
        value,
        float(median(others)) if others.size else np.nan,
        others.size,
        shown.unit,
        node,
        found.part,
    )
