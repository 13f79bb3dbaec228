"""The rule input_stall: workers that wait for their data, in a step or between them."""

from dataclasses import replace

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.causes import CAUSE_OF_PHASE, phase_of
from telemetry.detect.findings import CauseScore, Problem, score_of_alert
from telemetry.detect.inputs import DetectionInput, OpenProblem, node_peak, node_values
from telemetry.detect.pace import (
    CLEARLY,
    HALF,
    find_rise,
    n_newest,
    quickest_fifth,
    work_s,
)
from telemetry.detect.rules import RULES
from telemetry.detect.slow import MOST_S
from telemetry.detect.standstill import (
    COMPILING,
    CORES,
    HOST,
    INPUT,
    LOADING,
    STANDSTILL_LOOK_S,
    STEP,
    WORKING,
    Activities,
    activities,
    training_nodes,
    usual_step_s,
)
from telemetry.statistics.peers import GAUSSIAN, lower_median, mean, median, middle
from telemetry.steps import StepBatch

# The table of causes may name another cause of the same phase later.
PHASE = "input_s"
CAUSE = CAUSE_OF_PHASE[PHASE]
# Minimum excess of input time that counts, as a share of the step.
STARVED_LEAST_RATIO = RULES["input_stall"].limits["least_ratio"]
# Where rests count for input: so many steps rest longer, and hosts are busier by this ratio, over
# so many seconds.
STALLED_STEPS, HOSTS_RATIO, HOSTS_S = 2, 1.05, 15
# Deviations between workers that one which waits alone exceeds.
STANDS_OUT = 4.0
# Of short steps one more must be stalled.
MOST_STALLED_STEPS, STALLED_S = 3, 10.0


def find_input_stall(inputs: DetectionInput, steps: StepBatch) -> list[Problem]:
    """Find workers that wait for their data, or a whole run that does.

    Notes
    -----
    Data stalls differ from slow machines in where a worker's time goes: J. Mohan et al.,
    "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021. What all wait for is
    compared with the run's own past, what one waits for with its peers. A runtime trace has no
    input time: there, hosts that load more explain longer rests between executions.
    """
    if len(steps) < 2:
        return []
    if not np.nan_to_num(steps.phases["input_s"]).any():
        rests = replace(steps, phases={**steps.phases, "input_s": steps.phases["other_s"]})
        found = _stalls(inputs, rests, n_now=n_newest(steps, least=STALLED_STEPS))
        return [each for each in found if _is_loading(inputs, each)]
    # One slow batch of one worker is no stall, however long its step.
    return _stalls(inputs, steps, n_now=n_newest(steps, least=STALLED_STEPS))


def _is_loading(inputs: DetectionInput, problem: Problem) -> bool:
    """Whether hosts load more than before: the accused one, or most. An open alert needs less."""
    if any(alert.node == problem.node for alert in _open_alerts(inputs)):
        return True
    if inputs.hardware_at is None:
        return False
    back_s = int(inputs.now_s - problem.onset_s)
    ages = (back_s + np.arange(HOSTS_S, 0, -1), np.arange(min(back_s, HOSTS_S), -1, -1))
    was, now = (inputs.hardware_at([HOST], each.tolist()) for each in ages)
    ratio = mean(node_values(now, HOST), 0) / mean(node_values(was, HOST), 0)
    own = [problem.node in (None, node) for node in now.nodes]
    return bool(float(lower_median(ratio[own])) >= HOSTS_RATIO)


def _open_alerts(inputs: DetectionInput) -> list[OpenProblem]:
    return [alert for alert in inputs.open_problems if phase_of(alert.cause) == PHASE]


def _stalls(inputs: DetectionInput, steps: StepBatch, *, n_now: int) -> list[Problem]:
    least_s = STARVED_LEAST_RATIO * middle(work_s(steps))
    held = [alert for alert in _open_alerts(inputs) if alert.node is None]
    usual = (held[0].evidence.get("culprit") or {}).get("peers_median") if held else None
    everywhere = find_rise(
        quickest_fifth(steps.phases["input_s"]), least=least_s, n_now=n_now, usual=usual
    )
    if everywhere is not None and len(steps.workers) > 1:
        score = CauseScore(
            CAUSE, everywhere.excess / least_s, "input_s", everywhere.now, everywhere.usual, 0, "s"
        )
        return [_problem(steps, score, everywhere.at, ())]
    return _stalled_nodes(inputs, steps, least_s, n_now)


def _stalled_nodes(
    inputs: DetectionInput, steps: StepBatch, least_s: float, n_now: int
) -> list[Problem]:
    """Nodes whose workers wait for data while others do not; the worst is accused."""
    alerts = _open_alerts(inputs)
    input_s = steps.phases["input_s"]
    # Usual is that of the peers; without peers, that of the open alert; else the worker's past.
    if np.isfinite(input_s[-1]).sum() > 1:
        usual_s: FloatArray | float = lower_median(input_s)[:, None]
    else:
        figures = [(alert.evidence.get("culprit") or {}).get("peers_median") for alert in alerts]
        known = [float(figure) for figure in figures if figure is not None]
        usual_s = known[0] if known else quickest_fifth(input_s.T)
    excess = np.asarray(input_s - usual_s)
    nodes = {alert.node for alert in alerts} - {None}
    is_held = np.array([bool(nodes) and inputs.node_of(each) in nodes for each in steps.workers])
    least = np.where(is_held, HALF * least_s, least_s)
    # The first step that ends while an alert is open confirms it; a lost report ends none, nor
    # does a step in which another worker is delayed.
    now_s, typical = (
        np.where(is_held, np.fmax(_newest_known(values), over), over)
        for values, over in (
            (input_s, median(input_s[-n_now:].T)),
            (excess, median(excess[-n_now:].T)),
        )
    )
    each_s = np.where(is_held, typical, excess[-_n_stalled(steps) :].min(axis=0))
    both = each_s >= HALF * least
    # Where all wait as long as chance lets them, the one that waits longest is no culprit.
    apart_s = GAUSSIAN * lower_median(np.abs(excess[-n_now:]).ravel())
    is_alone = np.isfinite(input_s[-1]).sum() < 2
    both &= is_held | is_alone | (typical >= STANDS_OUT * apart_s)
    # One long step is enough if the excess is clear.
    unhealthy = (typical >= least) & (both | ((n_now == 1) & (excess[-1] >= CLEARLY * least)))
    if not unhealthy.any():
        return []
    worst = int(np.nanargmax(np.where(unhealthy, typical, -np.inf)))
    own_s, strength = float(now_s[worst]), float(typical[worst] / least_s)
    n_peers = int(np.isfinite(now_s).sum()) - 1
    usual, node = own_s - float(typical[worst]), inputs.node_of(steps.workers[worst])
    score = CauseScore(CAUSE, strength, "input_s", own_s, usual, n_peers, "s", node)
    low = excess[:, worst] < HALF * least[worst]
    if is_held[worst]:
        low[1:] &= low[:-1]
    at = min(int(np.flatnonzero(low)[-1]) + 1 if low.any() else 0, len(low) - 1)
    n_stalled = int((excess[at:, worst] >= HALF * least[worst]).sum())
    late = tuple(steps.workers[i] for i in np.flatnonzero(unhealthy))
    found = _problem(steps, score, at, late)
    return [replace(found, extra={"stalled_steps": n_stalled})]


def _newest_known(values: FloatArray) -> FloatArray:
    """Return the last row, of columns without a value there the row before: (n_workers,)."""
    return np.asarray(np.where(np.isfinite(values[-1]), values[-1], values[-2]))


def _n_stalled(steps: StepBatch) -> int:
    """Count the steps in a row that must be stalled: more of short ones, of which there are more.

    Now and then a loader waits twice in a row by chance.
    """
    return min(MOST_STALLED_STEPS, n_newest(steps, seconds=STALLED_S, least=STALLED_STEPS))


def _problem(steps: StepBatch, score: CauseScore, at: int, late: tuple[str, ...]) -> Problem:
    onset_s = float(steps.ended_at_s[at] - steps.step_s[at])
    return Problem(CAUSE, score, "input", onset_s, score.strength, late)


# Shorter steps end soon enough. Input that always takes long is not a problem.
LONG_STEP_S, USUALLY_S = 7.0, 2.0
# Maximum share of loading nodes, and minimum share of computing ones.
FEW, MOST, NEARLY_ALL = 0.25, 0.5, 0.75
# A loader waits for some seconds now and then (up to 6 s are assumed): that is no stall yet.
CHANCE_S = 7.0
# Seconds in which nodes must rest beyond a report.
SETTLED_S = 3


def find_loading_nodes(inputs: DetectionInput, steps: StepBatch) -> list[Problem]:
    """Find nodes that delay a long step in progress by waiting for their data.

    Notes
    -----
    J. Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021: cores that
    starve rest while the host reads and decodes. One look covers all of LOOK_S seconds. Heartbeats
    say the same without an agent.
    """
    since_s = float(steps.ended_at_s[-1])
    # Open alerts about the step in progress.
    kept = [
        alert
        for alert in _open_alerts(inputs)
        if alert.evidence.get("phase_s", 0) is None
        and float(alert.evidence.get("onset_s") or 0) >= since_s - 1.0
    ]
    if kept:
        return [
            _loading_problem(score_of_alert(each), float(each.evidence["onset_s"]))
            for each in kept
        ]
    if usual_step_s(steps) < LONG_STEP_S or inputs.now_s - since_s < STANDSTILL_LOOK_S:
        return []
    said = activities(inputs, since_s)
    found = _said_to_load(inputs, steps, said) if said else None
    if found is None and inputs.reads_hardware:
        found = _seen_to_load(inputs, steps)
    return [] if found is None else [found]


def _seen_to_load(inputs: DetectionInput, steps: StepBatch) -> Problem | None:
    """Return the node whose host reads and decodes while other nodes compute."""
    since_s = float(steps.ended_at_s[-1])
    nodes = training_nodes(inputs, steps)
    # Of reports that come every few seconds, compare the same seconds of all nodes.
    look_s = max(STANDSTILL_LOOK_S, inputs.report_every_s + SETTLED_S)
    if inputs.now_s - since_s < inputs.lagging(look_s):
        return None
    span = inputs.hardware((CORES, HOST), inputs.lagging(look_s)).of(nodes)
    span = span.between(int(span.ticks[0]), int(span.ticks[0]) + look_s - 1)
    # If most nodes loaded in this step, the last one that still does is not the reason.
    of_step = inputs.hardware((CORES, HOST), int(min(inputs.now_s - since_s, MOST_S))).of(nodes)
    loaded = (node_values(of_step, HOST) >= LOADING) & (node_peak(of_step, CORES) < WORKING)
    if loaded.any(axis=0).mean() > MOST:
        return None
    most, hosts = node_peak(span, CORES), mean(node_values(span, HOST), axis=0)
    rests = np.asarray((most < WORKING).all(axis=0))
    loads = rests & (hosts >= LOADING) & (hosts < COMPILING)
    # A report can hold the end of the computing of a node that rests by now.
    computes = most[-1] >= WORKING
    # The others compute at first. If many rest, they have left, or the run is starting.
    others = len(nodes) - loads.sum()
    if not 0 < loads.sum() <= max(1, FEW * len(nodes)) or computes.sum() < NEARLY_ALL * others:
        return None
    worst = int(np.argmax(np.where(loads, hosts, 0)))
    # One whose host was idle for most of its rest has left, and does something else by now.
    own = node_peak(of_step, CORES)[:, worst]
    has_left = loaded[:, worst].sum() < MOST * (own < WORKING).sum()
    # Of two nodes, one that has computed for half a usual step may wait for the other.
    computed_s = np.nansum(own) / max(float(np.fmax.reduce(own)), WORKING)
    may_wait = computes.sum() == 1 and computed_s >= HALF * min(usual_step_s(steps), MOST_S)
    if has_left or may_wait:
        return None
    if _usual_input_s(inputs, steps, nodes[worst]) > USUALLY_S:
        return None
    peers = float(lower_median(hosts))
    score = CauseScore(
        CAUSE, 1.0, HOST, float(hosts[worst]), peers, len(nodes) - 1, "ratio", nodes[worst]
    )
    return _loading_problem(score, float(span.ticks[0]) - 1.0)


def _said_to_load(inputs: DetectionInput, steps: StepBatch, said: Activities) -> Problem | None:
    """Return the node that says that it loads for much longer than usual while others compute."""
    n_nodes = len(said.doing)
    loads = [node for node, activity in said.doing.items() if activity == INPUT]
    n_computing = sum(activity == STEP for activity in said.doing.values())
    if not 0 < len(loads) <= max(1, FEW * n_nodes) or n_computing < MOST * n_nodes:
        return None
    node = min(loads, key=lambda name: said.since_s[name])
    # Up to its heartbeat: it may compute by now.
    loaded_s = said.heard_s[node] - said.since_s[node]
    usual_s = _usual_input_s(inputs, steps, node)
    # Others that began to compute as late waited as long.
    began_s = (said.since_s[name] for name, each in said.doing.items() if each == STEP)
    others_s = middle(np.array([max(0.0, at - float(steps.ended_at_s[-1])) for at in began_s]))
    least_s = max(CLEARLY * STARVED_LEAST_RATIO * usual_step_s(steps), CHANCE_S)
    # Where most loaded for long, the run waits, and the last one is no culprit.
    if usual_s > USUALLY_S or others_s >= usual_s + least_s:
        return None
    if loaded_s < max(usual_s, others_s) + least_s:
        return None
    peers_s = float(lower_median(mean(steps.phases["input_s"], 0)))
    score = CauseScore(CAUSE, 1.0, "input_s", loaded_s, peers_s, n_nodes - 1, "s", node)
    return _loading_problem(score, said.since_s[node])


def _usual_input_s(inputs: DetectionInput, steps: StepBatch, node: str) -> float:
    """Mean input time of the slowest worker of a node; infinity where the node has none."""
    own = [inputs.node_of(worker) == node for worker in steps.workers]
    return float(mean(steps.phases["input_s"][:, own], 0).max()) if any(own) else np.inf


def _loading_problem(score: CauseScore, onset_s: float) -> Problem:
    return Problem(CAUSE, score, "input", onset_s, score.strength, extra={"phase_s": None})
