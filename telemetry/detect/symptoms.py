"""What changed with a problem, as symptoms that the table of causes knows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.detect.causes import (
    CLASS_OF,
    CLASSES,
    UNKNOWN,
    Scope,
    Symptoms,
    alternatives,
    any_of,
    best_explanation,
    explanations_json,
    kind_of,
    refine,
    separable,
    symptoms_json,
)
from telemetry.detect.findings import Problem
from telemetry.detect.input_stall import MOST_STALLED_STEPS
from telemetry.detect.inputs import (
    DetectionInput,
    new_measurements,
    node_values,
    part_values,
    recent,
    times_transfer,
)
from telemetry.detect.pace import quickest_fifth, work_s
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import OLDEST_S
from telemetry.statistics.change_points import noise
from telemetry.statistics.peers import lower_median, mean, median, middle
from telemetry.steps import StepBatch

# A phase changed that takes this share of a step more or less.
LEAST_RATIO = RULES["step_slow"].limits["least_ratio"]
# Steps before and since the onset; the first one since then may be half healthy.
BEFORE_STEPS, SINCE_STEPS, ENOUGH_STEPS = 24, 12, 3
# Steps vary more than before: by this ratio, and by this share of a step.
JITTER_STEPS, JITTER_TIMES, JITTER_RATIO = 6, 2.5, 0.008
# Median and longest execution, when they are read, and which rise of them is one of steps.
EXECUTION_METRICS = ("execution_latency_p50_s", "execution_latency_p100_s")
EXECUTION_MOMENTS, EXECUTIONS_S, HARDLY, HALF, APART = 12, 60.0, 0.25, 0.5, 1.2
# Deviation over excess. Minimum of uneven lengths, times the number of workers: the longest of
# many varies little. Maximum of a slower exchange (assumed).
UNEVEN_JITTER, EXCHANGE_JITTER = 0.6, 0.1
# So many probes since the onset show that links answer as before. Seconds and moments to read.
PROBES, PROBED_S, PROBE_MOMENTS = 3, 240.0, 24
# An alert names a more exact cause only this soon after its onset.
SETTLES_S = 60.0
LATENCY, HOST = "efa_latency_s", "vcpu_usage_ratio"
# The hosts before and since an onset: seconds of each, at least so many since then. They are
# busier from the first ratio on, and as before up to the second one.
HOSTS_S, HOSTS_LEAST_S, HOSTS_BUSIER, HOSTS_AS_BEFORE = 45, 10, 1.05, 1.03
# Finders compare these metrics with peers and with before, each second. One that stands out in a
# metric shows its symptom. Without one the metric is unchanged where it is reported.
METRIC_OF: Mapping[str, tuple[str, int]] = {
    "efa_latency": (LATENCY, 1),
    "efa_retransmits": ("efa_retransmits_per_s", 1),
    "efa_device_bytes": ("efa_tx_bytes_per_s", -1),
    "hbm_bandwidth": ("hbm_bandwidth_bytes_per_s", -1),
}
EFA = ("efa_latency", "efa_retransmits", "efa_device_bytes")


@dataclass(frozen=True, slots=True)
class Case:
    """A problem, what is known about its run, and the problems found in the same second."""

    inputs: DetectionInput
    steps: StepBatch
    problem: Problem
    others: Sequence[Problem]

    @property
    def problems(self) -> tuple[Problem, ...]:
        return (*self.others, self.problem)


# Measures symptoms of a case; the second argument holds those measured before. A symptom that is
# not in the result is unmeasured.
Measure = Callable[[Case, Symptoms], Symptoms]


def symptoms_of(
    inputs: DetectionInput, steps: StepBatch, problem: Problem, others: Sequence[Problem]
) -> Symptoms:
    """Measure the symptoms of a problem; ``others`` are those found at the same time."""
    case, found = Case(inputs, steps, problem, others), dict[str, int]()
    for measure in dict.fromkeys(MEASURES.values()):
        found |= measure(case, found)
    return found


def scope_of(problem: Problem) -> Scope:
    return "run" if problem.node is None else "node"


def causes_json(
    inputs: DetectionInput, steps: StepBatch, problem: Problem, others: list[Problem]
) -> dict[str, Any]:
    """Which causes were weighed, and by which symptoms."""
    symptoms = symptoms_of(inputs, steps, problem, others)
    scope = scope_of(problem)
    return {
        "symptoms": symptoms_json(symptoms),
        "causes": explanations_json(symptoms, scope=scope, named=problem.cause),
    }


def with_best_cause(
    inputs: DetectionInput, steps: StepBatch, problem: Problem, others: Sequence[Problem]
) -> Problem:
    """Name the cause of a problem, or its class, by the table of causes.

    A cause that was found by its own evidence stays unless another cause of its class would look
    the same in this data. An unknown one is named where the data leaves one cause, or one class.
    Where the finder knows only the phase, the symptoms choose among the causes of the phase, and
    choose again when they show more.
    """
    if len(names := alternatives(problem.cause)) > 1 and problem.score is not None:
        held = (a.cause for a in inputs.open_problems if a.node == problem.node)
        name = next((cause for cause in held if cause in names), problem.cause)
        symptoms = symptoms_of(inputs, steps, problem, others)
        name = refine(name, symptoms, scope=scope_of(problem))
        return replace(problem, cause=name, score=replace(problem.score, cause=name))
    is_held = any((a.cause, a.node) == (problem.cause, problem.node) for a in inputs.open_problems)
    if is_held and problem.cause != UNKNOWN:
        return problem
    named = _named_by_table(inputs, steps, problem, others)
    is_watched = any(alert.cause in CLASSES for alert in inputs.open_problems)
    symptoms = symptoms_of(inputs, steps, problem, []) if is_watched else {}
    return _with_open_cause(inputs, named, symptoms)


def _named_by_table(
    inputs: DetectionInput, steps: StepBatch, problem: Problem, others: Sequence[Problem]
) -> Problem:
    scope = scope_of(problem)
    if problem.cause in CLASS_OF and problem.score is not None:
        symptoms = symptoms_of(inputs, steps, problem, [])
        name = separable(problem.cause, symptoms, scope=scope)
        return replace(problem, cause=name, score=replace(problem.score, cause=name))
    if "every_s" in problem.extra and problem.node is None:
        # Symptoms compare before and after, and say little about steps that are long at times.
        return problem
    is_late = problem.kind == "waiting" and _computes_longer(inputs, steps, problem.node)
    if problem.cause == UNKNOWN and (problem.node is None or is_late):
        held = (a.cause for a in inputs.open_problems if a.evidence.get("kind") == problem.kind)
        kept = next((cause for cause in held if cause in CLASSES), None)
        symptoms = symptoms_of(inputs, steps, problem, others)
        return replace(problem, cause=kept or best_explanation(symptoms, scope=scope))
    return problem


def _with_open_cause(inputs: DetectionInput, problem: Problem, symptoms: Symptoms) -> Problem:
    """Keep the cause and the part of an open alert of the same node and class.

    Evidence from before the onset is read for a short time only. An alert that names a class
    becomes more exact only while it is young, or when a symptom is measured that was not before.
    """
    score, is_class = problem.score, problem.cause in {UNKNOWN, *CLASSES}
    is_settled = inputs.now_s - problem.onset_s > SETTLES_S
    # What was missing then and is measured now may name the cause at any age.
    measured = symptoms.keys() if is_settled and not is_class else ()
    for alert in inputs.open_problems:
        of_class = CLASS_OF.get(alert.cause, alert.cause)
        is_same = of_class in CLASSES and (
            of_class == CLASS_OF.get(problem.cause, problem.cause)
            or (problem.cause == UNKNOWN and kind_of(of_class) == problem.kind)
        )
        was_class = alert.cause in CLASSES
        has_learned = bool(set(measured) - set(alert.evidence.get("symptoms") or measured))
        is_kept = is_same and (is_class or (was_class and is_settled and not has_learned))
        if is_kept and score is not None and score.node == alert.node is not None:
            score = replace(score, cause=alert.cause, device=alert.device)
            return replace(problem, cause=alert.cause, score=score)
    return problem


def _computes_longer(inputs: DetectionInput, steps: StepBatch, node: str | None) -> bool:
    """Whether a node spends the time for which the others wait with computing."""
    own = [i for i, worker in enumerate(steps.workers) if inputs.node_of(worker) == node]
    if node is None or not own or not len(steps):
        return False
    newest = steps.last(ENOUGH_STEPS)
    compute_s = median(newest.phases["compute_s"].T)
    excess_s = float(np.nanmax(compute_s[own])) - float(lower_median(compute_s))
    return excess_s >= LEAST_RATIO * middle(work_s(newest))


def _of_steps(case: Case, measured: Symptoms) -> Symptoms:
    inputs, steps, problem = case.inputs, case.steps, case.problem
    has_good_links = all(measured.get(name) == 0 for name in EFA)
    at = int(np.searchsorted(steps.ended_at_s, problem.onset_s))
    before, since = steps[:at].last(BEFORE_STEPS), steps[at + 1 :].last(SINCE_STEPS)
    if len(before) < ENOUGH_STEPS or not len(since):
        return {}
    least_s = LEAST_RATIO * middle(work_s(before))
    # Checkpoints are seldom: their finder compares them, not the steps around the onset.
    found = {"checkpoint_s": int(problem.kind == "checkpoint")}
    is_timed = bool(np.isfinite(since.phases["wait_s"]).any())
    unknown = set() if is_timed else {"compute_s", "wait_s", "transfer_s"}
    longer = middle(work_s(since)) / middle(work_s(before)) - 1.0
    if is_timed and not times_transfer(since):
        unknown = {"compute_s", "transfer_s"}
        if problem.kind == "computing":
            found |= _of_executions(inputs, problem.onset_s, longer)
    elif problem.kind == "step" and problem.node is None:
        shown = _of_executions(inputs, problem.onset_s, longer, of_any=True)
        # A step that takes longer outside of executions is not known to transfer for longer.
        found |= {} if shown.get("transfer_s") else shown
    was, now = _phases(before), _phases(since)
    for name in [each for each in was if each not in unknown]:
        rise_s = now[name] - was[name]
        if np.isfinite(rise_s):
            found[name] = int(abs(rise_s) >= least_s) * int(np.sign(rise_s))
    # That one node is late says more than how much.
    if problem.node is None and min(len(since), len(before)) >= JITTER_STEPS:
        now_s = middle(work_s(since))
        excess_s, jitter_s = now_s - middle(work_s(before)), noise(work_s(since))
        usual_s = max(JITTER_TIMES * noise(work_s(before)), JITTER_RATIO * now_s)
        uneven_s = UNEVEN_JITTER / (len(steps.workers) + 1) * excess_s
        exchange_s = 0.0 if has_good_links else EXCHANGE_JITTER * excess_s
        # In between, uneven lengths and a slower exchange look the same: nothing is measured.
        if jitter_s < max(usual_s, uneven_s):
            found["step_jitter"] = 0
        elif jitter_s >= np.hypot(usual_s, max(uneven_s, exchange_s)):
            found["step_jitter"] = 1
    if inputs.n_stages == 1:
        found["stage_longer"] = 0
    return found


def _of_executions(
    inputs: DetectionInput, onset_s: float, longer: float, *, of_any: bool = False
) -> dict[str, int]:
    """Measure the transfer where it is part of the compute time: {} where nothing shows it.

    ``longer``: by which ratio steps take longer. ``of_any``: one node may be slow, else all are.
    The longest execution of a step exchanges the
    gradients, the median one computes. Where every execution waits for others, the two are alike
    and show nothing.
    """
    back_s = inputs.now_s - onset_s
    # Steps that are long now and then say nothing: executions are measured in all of them.
    is_longer = longer >= LEAST_RATIO
    if inputs.hardware_at is None or not is_longer or back_s + EXECUTIONS_S > OLDEST_S:
        return {}
    first_s, last_s = back_s + EXECUTIONS_S, back_s + 2.0 * inputs.report_every_s
    was, now = (
        inputs.hardware_at(
            EXECUTION_METRICS, np.linspace(*ages, EXECUTION_MOMENTS).astype(int).tolist()
        )
        for ages in ((first_s, last_s), (min(back_s, EXECUTIONS_S), 0.0))
    )
    usual, longest = (
        _known_middle(np.fmax.reduce(node_values(was, name), axis=0)) for name in EXECUTION_METRICS
    )
    is_told = longest > APART * usual
    rises = _executions_s(now) / _executions_s(was) - 1.0
    rise = float(np.fmax.reduce(rises)) if of_any else _known_middle(rises)
    # Where one node computes for longer and another does not, they do not wait for each other.
    is_told = is_told or (of_any and float(np.fmin.reduce(rises)) < HARDLY * longer)
    if is_told and rise < HARDLY * longer:
        return {"transfer_s": 1}
    return {"transfer_s": 0} if is_told and rise >= HALF * longer else {}


def _executions_s(span: Span) -> FloatArray:
    """Median execution of each node: (n_nodes,) seconds."""
    return median(node_values(span, EXECUTION_METRICS[0]).T)


def _phases(steps: StepBatch) -> dict[str, float]:
    """Seconds of phases that all workers have alike, and of input, which one may have."""
    input_s = steps.phases["input_s"]
    figures = {
        "compute_s": quickest_fifth(steps.phases["compute_s"]),
        "wait_s": mean(steps.phases["wait_s"], axis=1),
        "transfer_s": median(steps.phases["transfer_s"]),
        # One worker waits for a batch now and then.
        "input_s": np.where(np.isfinite(input_s), input_s, 0.0).max(axis=1)
        if len(steps) >= MOST_STALLED_STEPS
        else np.full(len(steps), np.nan),
    }
    return {name: _known_middle(values) for name, values in figures.items()}


def _known_middle(values: FloatArray) -> float:
    return middle(values[np.isfinite(values)])


def _of_metrics(case: Case, _: Symptoms) -> Symptoms:
    """Symptoms of metrics that reach us; one that no finder stands out in is unchanged."""
    stand_out = {each.score.metric for each in case.problems if each.score is not None}
    span = recent(case.inputs, [metric for metric, _ in METRIC_OF.values()], 1)
    found = {}
    for name, (metric, sign) in METRIC_OF.items():
        values = span.values.get(metric)
        if metric in stand_out or (values is not None and np.isfinite(values).any()):
            found[name] = sign * (metric in stand_out)
    if found.get("efa_latency") == 0 and not _is_probed(case.inputs, case.problem.onset_s):
        del found["efa_latency"]
    return found


def _is_probed(inputs: DetectionInput, onset_s: float) -> bool:
    """Whether enough probes were made since the onset to show a late device."""
    back_s = min(inputs.now_s - onset_s, PROBED_S)
    if inputs.hardware_at is None or back_s < PROBES:
        return True
    ages_s = np.unique(np.linspace(0, back_s, PROBE_MOMENTS).astype(int))[::-1]
    span = inputs.hardware_at([LATENCY], ages_s.tolist())
    n_new = new_measurements(part_values(span, LATENCY)).sum(axis=0)
    # The first one in view was made before the onset.
    return bool(np.median(n_new) > PROBES)


def _of_parts(case: Case, _: Symptoms) -> Symptoms:
    """Follow the finders: whether one core or a whole device differs is their conclusion.

    They draw it from utilization or power. Cores that count as busy while they wait do not differ:
    without a finding nothing is measured.
    """
    causes = {each.cause for each in case.problems}
    busier = {
        "core_busier": any_of(["slow_core"], causes),
        "device_busier": any_of(["throttle", "hbm_slow", "slow_compute"], causes),
    }
    return busier if any(busier.values()) else {}


def _of_hosts(case: Case, _: Symptoms) -> Symptoms:
    """Whether the host of the node, or most hosts, are busier than before the onset."""
    inputs, steps, node = case.inputs, case.steps, case.problem.node
    n_before = int(np.searchsorted(steps.ended_at_s, case.problem.onset_s))
    if len(steps) and n_before < ENOUGH_STEPS:
        # It began before the steps in view.
        return {}
    back_s = int(inputs.now_s - case.problem.onset_s)
    if inputs.hardware_at is None or not HOSTS_LEAST_S <= back_s <= OLDEST_S - HOSTS_S:
        return {}
    ages = (back_s + np.arange(HOSTS_S, 0, -1), np.arange(min(back_s, HOSTS_S), -1, -1))
    was, now = (inputs.hardware_at([HOST], each.tolist()) for each in ages)
    ratio = mean(node_values(now, HOST), 0) / mean(node_values(was, HOST), 0)
    own = ratio[[node in (None, name) for name in now.nodes]]
    busier = float(lower_median(own)) if own.size else np.nan
    if busier >= HOSTS_BUSIER:
        return {"host_busier": 1}
    return {"host_busier": 0} if busier <= HOSTS_AS_BEFORE else {}


def _of_run(case: Case, _: Symptoms) -> Symptoms:
    """Follow the finders: each problem is one of longer steps."""
    return {"step_s": 1}


# What measures each symptom. The text of a symptom is in templates/alerts/_symptoms.html.
MEASURES: Mapping[str, Measure] = {
    "step_s": _of_run,
    **dict.fromkeys(METRIC_OF, _of_metrics),
    "compute_s": _of_steps,
    "wait_s": _of_steps,
    "transfer_s": _of_steps,
    "input_s": _of_steps,
    "checkpoint_s": _of_steps,
    "step_jitter": _of_steps,
    "stage_longer": _of_steps,
    "core_busier": _of_parts,
    "device_busier": _of_parts,
    "host_busier": _of_hosts,
}
