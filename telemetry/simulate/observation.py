"""What of the simulated truth is observed: the layer between a run and detection.

The hardware of a run is played second by second. A real agent reports every few seconds: each
report holds means and rates over its period, is stored in every second that it covers, and
arrives when the period ends. Until then those seconds are gaps.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from telemetry.agent.sources import N_ROUNDS, ROUNDS_APART_S
from telemetry.blocks import METRICS, FloatArray, IntArray, Span
from telemetry.simulate.background import Reports, held_up, lost_steps, missed_scrapes
from telemetry.simulate.inputs import SPARSE_STEPS, Inputs
from telemetry.simulate.noise import mixed, stream, windows
from telemetry.simulate.timeline import TRAINING, TimelineRows
from telemetry.steps import StepBatch

Summary = Callable[..., FloatArray]
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
PROBED, POWER = HELD = ("efa_latency_s", "device_power_ratio")
# How often the driver measures power, and neuron-monitor reports by default.
POWER_EVERY_S, MONITOR_EVERY_S = 60, 5
# What neuron-monitor's exporter and node_exporter do not have.
NOT_SCRAPED = frozenset({"hbm_bandwidth_bytes_per_s", PROBED, POWER, "core_flops_per_s"})


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
        if not _is_observed(inputs, name):
            continue
        values[name] = truth
        if name == PROBED and inputs.probe_every_s > 1:
            values[name] = _probed(truth, span.ticks, phases, int(inputs.probe_every_s))
        if name == POWER and not inputs.is_full:
            minutes = _reported(
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
            values[name] = _reported(
                values[name],
                span.ticks,
                phases,
                inputs.agent_every_s,
                _summary_of(name),
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
    sent = _reported(there, span.ticks, phases, inputs.agent_every_s, _last, last_s=1)
    for held in values.values():
        held[np.isnan(sent[..., 0])] = np.nan


def visible(inputs: Inputs, span: Span) -> Span:
    """Keep the metrics that the inputs observe, second by second: for a thinned past."""
    names = [name for name in span.values if inputs.agent and _is_observed(inputs, name)]
    values = {name: span.values[name] for name in names}
    return Span(span.shard, span.ticks, span.nodes, values, span.every_s)


def next_report(inputs: Inputs, phase: int, after: int) -> int:
    """Return the first second after another at which a live shard's report ends.

    The nodes of a live shard report together.
    """
    return after + 1 + (phase - after - 1) % inputs.agent_every_s


def reported_live(inputs: Inputs, span: Span, phase: int, held: Mapping[str, FloatArray]) -> Span:
    """Return the hardware of a live shard as its reports hold it.

    Parameters
    ----------
    span : the truth from after the last report to the end of the newest one
    phase : of the shard's reports
    held : (n_nodes, n_parts) of the last report: an agent repeats what is measured seldom

    Notes
    -----
    Power is the mean over the report that is made at the minute, not over the minute.
    """
    phases = np.full(len(span.nodes), phase)
    seldom_s = {PROBED: int(inputs.probe_every_s), POWER: POWER_EVERY_S}
    values = {}
    for name, truth in span.values.items():
        if not _is_observed(inputs, name):
            continue
        values[name] = truth
        if inputs.agent_every_s > 1:
            values[name] = _reported(
                truth,
                span.ticks,
                phases,
                inputs.agent_every_s,
                np.mean if name == POWER else _summary_of(name),
                last_s=inputs.agent_every_s,
            )
        if (every_s := seldom_s.get(name, 1)) > 1:
            values[name] = _repeated(values[name], span.ticks, phase, every_s, held.get(name))
    return Span(span.shard, span.ticks, span.nodes, values, span.every_s)


def _repeated(
    values: FloatArray, ticks: IntArray, phase: int, every_s: int, held: FloatArray | None
) -> FloatArray:
    """Repeat the last measured value, at first the one in ``held``: same shape."""
    repeated = np.full_like(values, np.nan)
    now = np.full(values.shape[1:], np.nan) if held is None else held
    for i, tick in enumerate(ticks):
        if (tick - phase) % every_s == 0:
            now = values[i]
        repeated[i] = np.where(np.isnan(values[i]).all(axis=1, keepdims=True), np.nan, now)
    return repeated


def _is_observed(inputs: Inputs, name: str) -> bool:
    if name == "hbm_bandwidth_bytes_per_s":
        return inputs.hbm_bandwidth
    if name == PROBED and not inputs.probe_every_s:
        return False
    if name == POWER and not inputs.power:
        return False
    return not (inputs.is_scraped and name in NOT_SCRAPED)


def _by_phase(phases: IntArray) -> Mapping[int, IntArray]:
    return {int(phase): np.flatnonzero(phases == phase) for phase in np.unique(phases)}


def _summary_of(name: str) -> Summary:
    if name == "execution_latency_p50_s":
        return _mean_of_known
    if name == "execution_latency_p100_s":
        return _max_of_known
    # A count, and a value that is held anyway, is what it was when the report was made.
    is_last = name in {PROBED, POWER} or METRICS[name].packing == "exact"
    return _last if is_last else np.mean


def _last(seconds: FloatArray, axis: int) -> FloatArray:
    return np.asarray(np.take(seconds, -1, axis=axis))


def _mean_of_known(seconds: FloatArray, axis: int) -> FloatArray:
    known = np.isfinite(seconds)
    total = np.where(known, seconds, 0).sum(axis=axis)
    n_known = known.sum(axis=axis)
    return np.asarray(np.where(n_known > 0, total, np.nan) / np.maximum(1, n_known))


def _max_of_known(seconds: FloatArray, axis: int) -> FloatArray:
    most = np.where(np.isfinite(seconds), seconds, -np.inf).max(axis=axis)
    return np.asarray(np.where(np.isfinite(most), most, np.nan))


def _reported(
    truth: FloatArray,
    ticks: IntArray,
    phases: IntArray,
    every_s: int,
    summary: Summary,
    *,
    last_s: int,
) -> FloatArray:
    """Hold one value of each period over the period: same shape.

    The value is a summary of the period's last seconds. A report that lacks a second has no
    mean: the agent was not there all the time.
    """
    held = np.full(truth.shape, np.nan, truth.dtype)
    for phase, nodes in _by_phase(phases % every_s).items():
        first = int((phase + 1 - ticks[0]) % every_s)
        n_periods = (len(ticks) - first) // every_s
        if n_periods > 0:
            rows = slice(first, first + n_periods * every_s)
            theirs = np.take(truth[rows], nodes, axis=1)
            cut = theirs.reshape(n_periods, every_s, *theirs.shape[1:])
            held[rows, nodes] = np.repeat(summary(cut[:, -last_s:], axis=1), every_s, axis=0)
    return held


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
    for phase, nodes in _by_phase(phases % every_s).items():
        age = (ticks - phase) % every_s
        at = np.arange(len(ticks)) - age
        known = np.flatnonzero(at >= 0)
        held[np.ix_(known, nodes)] = truth[np.ix_(at[known], nodes)]
    # A node that does not report holds no probe.
    held[np.isnan(truth).all(axis=2)] = np.nan
    return held


def observed_phases(inputs: Inputs, rows: TimelineRows) -> tuple[FloatArray, ...]:
    """Phases of steps as workers report them, in the order of PHASES: (n_steps, n_workers).

    Where the exchange is not timed, waiting and transferring are unknown, and their time is
    part of ``compute_s``, as is the time that a worker was late: a hook sees the whole step, and
    what it times itself. A runtime trace shows executions, waits, and collectives that may overlap
    with compute: it knows waiting, and not what of ``compute_s`` is exposed transfer, nor why no
    graph is executed in between.
    """
    alike = np.zeros(rows.compute_s.shape)
    transfer_s, checkpoint_s = alike + rows.transfer_s[:, None], alike + rows.checkpoint_s[:, None]
    pause_s, after_s = alike + rows.pause_s[:, None], alike + rows.after_s[:, None]
    unknown = np.full(alike.shape, np.nan)
    wait_s, input_s, compute_s = rows.wait_s, rows.input_s, rows.compute_s
    if inputs.is_full:
        other_s = rows.late_s + (pause_s + after_s)
        return compute_s, wait_s, transfer_s, input_s, checkpoint_s, other_s
    if inputs.runtime_trace:
        idle_s = pause_s + input_s + rows.late_s + checkpoint_s + after_s
        return compute_s + transfer_s, wait_s, alike, unknown, unknown, idle_s
    own_s = pause_s + compute_s + rows.late_s
    every = {"every_step": 1, "every_20": SPARSE_STEPS, "none": 0}[inputs.collective]
    is_timed = rows.step % every == 0 if every else np.zeros(len(rows), bool)
    compute_s = np.where(is_timed[:, None], own_s, own_s + wait_s + transfer_s)
    wait_s, transfer_s = (np.where(is_timed[:, None], s, np.nan) for s in (wait_s, transfer_s))
    return compute_s, wait_s, transfer_s, input_s, checkpoint_s, after_s


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


def reported_steps(
    inputs: Inputs, key: np.uint64, steps: StepBatch, *, background: Reports | None = None
) -> StepBatch:
    """Return steps as they are assembled from workers' reports.

    Parameters
    ----------
    key : of the run's noise
    steps : as workers time them, by the true clock
    background : of ``reports_of``; more reports are lost

    Notes
    -----
    A lost report leaves its worker unknown. Clocks that are this little off are not corrected: a
    step ended when the median of its workers says so, and a worker transfers for as long as the
    one that waited least. Where that one's report is lost, some waiting counts as transferring.
    """
    if inputs.is_full or not len(steps):
        return steps
    phases = dict(steps.phases)
    if inputs.lost_ratio or background is not None:
        is_lost = _is_lost(inputs, key, steps.step, len(steps.workers), background)
        phases = {name: np.where(is_lost, np.nan, value) for name, value in phases.items()}
        exchange_s = phases["wait_s"] + phases["transfer_s"]
        known = np.isfinite(exchange_s)
        least_s = np.where(known, exchange_s, np.inf).min(axis=1, keepdims=True)
        phases["transfer_s"] = np.where(known, least_s, np.nan)
        phases["wait_s"] = np.where(known, exchange_s - least_s, np.nan)
    off_s = float(np.median(_clock_offsets(inputs, key, len(steps.workers))))
    return replace(steps, phases=phases, ended_at_s=steps.ended_at_s + off_s)


def arrivals_s(
    inputs: Inputs, key: np.uint64, steps: StepBatch, *, background: Reports | None = None
) -> FloatArray:
    """Second at which each of the assembled steps is known: (n_steps,), inf for never.

    A worker sends what it has every ``report_every_s``. A step is assembled when all workers
    have reported it, or so long after its first report.
    """
    n_workers = len(steps.workers)
    ended_s = steps.ended_at_s - np.median(_clock_offsets(inputs, key, n_workers))
    sent_s = np.broadcast_to(ended_s[:, None], (len(steps), n_workers))
    if inputs.report_every_s:
        phase_s = _uniform(key, "sending", n_workers) * inputs.report_every_s
        periods = np.ceil((ended_s[:, None] - phase_s) / inputs.report_every_s)
        sent_s = periods * inputs.report_every_s + phase_s + SENDING_S
    known = np.isfinite(steps.phases["compute_s"])
    first_s = np.where(known, sent_s, np.inf).min(axis=1)
    last_s = np.where(known, sent_s, -np.inf).max(axis=1)
    is_whole = ~_is_lost(inputs, key, steps.step, n_workers, background).any(axis=1)
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


def reports_in(
    inputs: Inputs, key: np.uint64, ticks: IntArray, alive: NDArray[np.bool_]
) -> IntArray:
    """Return the row of each worker's newest heartbeat at each tick, -1 before the first.

    Parameters
    ----------
    alive : (n_ticks, n_workers) whether its process is there; the result has the same shape
    """
    n_workers = alive.shape[1]
    phase = (_uniform(key, "beats", n_workers) * HEARTBEAT_EVERY_S).astype(int)
    beats = alive & ((ticks[:, None] - phase) % HEARTBEAT_EVERY_S == 0)
    if not inputs.step_reports:
        beats[:] = False
    rows = np.arange(len(ticks))[:, None]
    return np.asarray(np.maximum.accumulate(np.where(beats, rows, -1), axis=0))


def _is_lost(
    inputs: Inputs, key: np.uint64, step: IntArray, n_workers: int, background: Reports | None
) -> NDArray[np.bool_]:
    """Whether a worker's report of a step never comes: (n_steps, n_workers)."""
    is_lost = np.zeros((len(step), n_workers), bool)
    if inputs.lost_ratio:
        noise_value = windows("uniform", mixed(key ^ stream(0, "lost"), step), n_workers)
        is_lost |= noise_value < inputs.lost_ratio
    if background is not None:
        is_lost |= lost_steps(background, step, n_workers)
    return is_lost


def _clock_offsets(inputs: Inputs, key: np.uint64, n_workers: int) -> FloatArray:
    """How far each worker's clock is ahead: (n_workers,) seconds."""
    return np.asarray(inputs.clock_skew_s * (2 * _uniform(key, "clock", n_workers) - 1))


def _uniform(key: np.uint64, name: str, n: int) -> FloatArray:
    return np.asarray(windows("uniform", mixed(key ^ stream(0, name), np.arange(1)), n)[0], float)
