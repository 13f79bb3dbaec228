"""When and how a drill's agents and workers report: whole runs, report by report.

`telemetry.simulate.observation` has what the live fleet needs of it as well.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from telemetry.agent.sources import N_ROUNDS, ROUNDS_APART_S
from telemetry.blocks import FloatArray, IntArray, Span
from telemetry.simulate.background import Reports, held_up, missed_scrapes, reports_of
from telemetry.simulate.hardware import rows_at
from telemetry.simulate.inputs import Inputs
from telemetry.simulate.noise import mixed, stream
from telemetry.simulate.observation import (
    POWER,
    POWER_EVERY_S,
    PROBED,
    by_phase,
    clock_offsets,
    hold_reports,
    is_observed,
    last_of,
    lost_reports,
    summary_of,
    uniform_of_run,
)
from telemetry.simulate.plan import Plan
from telemetry.simulate.script import script_of
from telemetry.simulate.shard import played_steps
from telemetry.simulate.timeline import RUN_PHASES, TRAINING, RunClock, TimelineRows, advance
from telemetry.steps import StepBatch

# A Prometheus collects samples for this long before it sends them on (its batch_send_deadline).
SCRAPE_DELAY_S = 5
# A step report is on its way for so long, and its step waits so long for other workers.
SENDING_S, ASSEMBLY_WAIT_S = 0.1, 10.0
# A worker that has no steps to report sends a heartbeat this often, with what it does.
HEARTBEAT_EVERY_S = 10
# A worker reads a request in the response to its next report, a heartbeat at the latest, and the
# trace starts with its next report.
TRACE_STARTS_S = HEARTBEAT_EVERY_S + 2
ACTIVITIES = ("", "compile", "input", "step", "checkpoint", "other")
# How often neuron-monitor reports by default.
MONITOR_EVERY_S = 5
# In the other phases the job has not begun, or is over.
WITH_PROCESSES = ("compiling", "warming_up", "training")


def report_phases(seed: int, nodes: tuple[str, ...]) -> IntArray:
    """Second from which each node's periods are counted: (n_nodes,); agents start when they do."""
    keys = np.array([stream(seed, name, "report") for name in nodes], np.uint64)
    return (mixed(np.uint64(1), keys) % np.uint64(3600)).astype(int)


def arrived_until(
    inputs: Inputs, phases: IntArray, now: int, *, background: Reports | None = None
) -> IntArray:
    """Newest second of each node that has arrived by now: (n_nodes,).

    Some reports are late with ``background``, of ``reports_of``.
    """
    now -= SCRAPE_DELAY_S if inputs.is_scraped else 0
    every_s = inputs.agent_every_s
    newest = now - (now - phases) % every_s
    if background is None or inputs.is_scraped:
        return newest
    return held_up(background, newest, now, every_s)


def observed(
    inputs: Inputs, span: Span, phases: IntArray, *, background: Reports | None = None
) -> Span:
    """Return the hardware as it is stored once all of it has arrived.

    Parameters
    ----------
    span : every second of the truth, over some periods more than is asked for
    phases : (n_nodes,) as ``report_phases`` returned them
    background : of ``reports_of``; some scrapes fail

    Returns
    -------
    The same seconds. A report that the span does not hold whole is a gap.
    """
    if not inputs.agent:
        return Span(span.shard, span.ticks, span.nodes, {}, span.every_s)
    values: dict[str, FloatArray] = {}
    for name, truth in span.values.items():
        if not is_observed(inputs, name):
            continue
        values[name] = truth
        if name == PROBED and inputs.probe_every_s > 1:
            values[name] = _probed(truth, span.ticks, phases, int(inputs.probe_every_s))
        if name == POWER and not inputs.is_full:
            minutes = hold_reports(
                truth, span.ticks, phases, POWER_EVERY_S, np.mean, last_s=POWER_EVERY_S
            )
            # A mean is known only when its minute is over.
            values[name] = np.full_like(minutes, np.nan)
            values[name][POWER_EVERY_S:] = minutes[:-POWER_EVERY_S]
            # A node that does not report holds no power.
            values[name][np.isnan(truth).all(axis=2)] = np.nan
        if inputs.agent_every_s > 1:
            # An exporter shows the value of a gauge in neuron-monitor's last period.
            is_gauge = inputs.is_scraped and not name.endswith("_per_s")
            values[name] = hold_reports(
                values[name],
                span.ticks,
                phases,
                inputs.agent_every_s,
                summary_of(name),
                last_s=MONITOR_EVERY_S if is_gauge else inputs.agent_every_s,
            )
    if inputs.agent_every_s > 1:
        _drop_unsent(inputs, span, phases, values)
    if inputs.is_scraped and background is not None:
        missed = missed_scrapes(background, span.ticks, phases, inputs.agent_every_s)
        for held in values.values():
            held[missed] = np.nan
    return Span(span.shard, span.ticks, span.nodes, values, span.every_s)


def _drop_unsent(
    inputs: Inputs, span: Span, phases: IntArray, values: Mapping[str, FloatArray]
) -> None:
    """Clear the periods at whose end a node is silent, in place: it does not report them."""
    there = np.where(span.reported, 1.0, np.nan)[..., None]
    sent = hold_reports(there, span.ticks, phases, inputs.agent_every_s, last_of, last_s=1)
    for held in values.values():
        held[np.isnan(sent[..., 0])] = np.nan


def least_of_rounds(latency_s: FloatArray, *, apart_s: float = ROUNDS_APART_S) -> FloatArray:
    """Return what a probe measures at each second, the least of its rounds: same shape."""
    least, apart = latency_s.copy(), int(apart_s)
    for earlier_s in range(apart, N_ROUNDS * apart, apart):
        np.fmin(least[earlier_s:], latency_s[:-earlier_s], out=least[earlier_s:])
    # A device that does not answer now has no latency.
    least[np.isnan(latency_s)] = np.nan
    return least


def _probed(truth: FloatArray, ticks: IntArray, phases: IntArray, every_s: int) -> FloatArray:
    """Hold what each probe measured until the next one: same shape."""
    held, truth = np.full_like(truth, np.nan), least_of_rounds(truth)
    for phase, nodes in by_phase(phases % every_s).items():
        age = (ticks - phase) % every_s
        at = np.arange(len(ticks)) - age
        known = np.flatnonzero(at >= 0)
        held[np.ix_(known, nodes)] = truth[np.ix_(at[known], nodes)]
    # A node that does not report holds no probe.
    held[np.isnan(truth).all(axis=2)] = np.nan
    return held


def traced_phases(rows: TimelineRows) -> tuple[FloatArray, ...]:
    """Phases of steps that hooks time and a runtime's trace covers, as in ``observed_phases``.

    Hooks know the time for data and checkpoints, the trace the rest that no core executes.
    """
    alike = np.zeros(rows.compute_s.shape)
    idle_s = rows.late_s + (rows.pause_s + rows.after_s)[:, None]
    return (
        rows.compute_s + rows.transfer_s[:, None],
        rows.wait_s,
        alike,
        rows.input_s,
        alike + rows.checkpoint_s[:, None],
        idle_s,
    )


def traced_steps(plan: Plan, clock: RunClock, until: int) -> StepBatch:
    """Return the steps of ``play`` as they are reported while the runtime's trace is read."""
    return played_steps(plan, clock, until, inputs=plan.inputs, phases=traced_phases)


def arrival_s(plan: Plan, steps: StepBatch) -> FloatArray:
    """Second at which each step of a run, as ``play`` returned it, is known: (n_steps,).

    A worker sends what it has every ``report_every_s``. A step is assembled when all workers
    have reported it, or so long after its first report.
    """
    inputs, n_workers = plan.inputs, len(steps.workers)
    key, background = script_of(plan).key("reports"), reports_of(plan)
    ended_s = steps.ended_at_s - np.median(clock_offsets(inputs, key, n_workers))
    sent_s = np.broadcast_to(ended_s[:, None], (len(steps), n_workers))
    if inputs.report_every_s:
        phase_s = uniform_of_run(key, "sending", n_workers) * inputs.report_every_s
        periods = np.ceil((ended_s[:, None] - phase_s) / inputs.report_every_s)
        sent_s = periods * inputs.report_every_s + phase_s + SENDING_S
    known = np.isfinite(steps.phases["compute_s"])
    first_s = np.where(known, sent_s, np.inf).min(axis=1)
    last_s = np.where(known, sent_s, -np.inf).max(axis=1)
    is_whole = ~lost_reports(inputs, key, steps.step, n_workers, background).any(axis=1)
    is_whole &= known.any(axis=1)
    return np.asarray(np.where(is_whole, last_s, first_s + ASSEMBLY_WAIT_S))


def activities(rows: TimelineRows, at: IntArray, ticks: IntArray) -> IntArray:
    """Return what each worker does at some seconds: (n_ticks, n_workers), indices of ACTIVITIES.

    0 also where there is no process. A hook cannot separate waiting from computing: all the step
    between its data and its end is the same to it.

    Parameters
    ----------
    at : (n_ticks,) the row in progress
    """
    since_s = (ticks - rows.start_s[at])[:, None]
    loaded_s = rows.pause_s[at, None] + rows.input_s[at]
    exchanged_s = (rows.ready_s + rows.transfer_s)[at, None]
    ends = (
        np.broadcast_to(rows.pause_s[at, None], loaded_s.shape),
        loaded_s,
        np.broadcast_to(exchanged_s, loaded_s.shape),
        np.broadcast_to(exchanged_s + rows.checkpoint_s[at, None], loaded_s.shape),
    )
    doing = 1 + sum((since_s >= end).astype(int) for end in ends)
    return np.where(rows.active[at] & (rows.phase[at, None] == TRAINING), doing, 0)


def played_activities(plan: Plan, clock: RunClock, until: int) -> IntArray:
    """Return what each worker does in the seconds after the clock's: (n_ticks, n_nodes).

    They are indices of ACTIVITIES; -1 where there is no process.
    """
    script, ticks = script_of(plan), np.arange(clock.tick + 1, until + 1)
    rows, _ = advance(script, clock, until)
    at = rows_at(rows, ticks)
    doing = activities(rows, at, ticks)
    doing[rows.phase[at] == RUN_PHASES.index("compiling")] = ACTIVITIES.index("compile")
    has_process = np.isin(rows.phase[at], [RUN_PHASES.index(phase) for phase in WITH_PROCESSES])
    doing[~has_process] = -1
    for act in script.stops:
        if act.kind == "node_crash":
            gone = (ticks >= act.start_s) & (ticks < act.end_s)
            doing[np.ix_(gone, act.rows)] = -1
    return doing


def newest_heartbeats(plan: Plan, ticks: IntArray, alive: NDArray[np.bool_]) -> IntArray:
    """Return the row of each worker's newest heartbeat at each tick, -1 before the first.

    Parameters
    ----------
    alive : (n_ticks, n_workers) whether its process is there; the result has the same shape
    """
    key = script_of(plan).key("reports")
    phase = (uniform_of_run(key, "beats", alive.shape[1]) * HEARTBEAT_EVERY_S).astype(int)
    beats = alive & ((ticks[:, None] - phase) % HEARTBEAT_EVERY_S == 0)
    if not plan.inputs.step_reports:
        beats[:] = False
    rows = np.arange(len(ticks))[:, None]
    return np.asarray(np.maximum.accumulate(np.where(beats, rows, -1), axis=0))
