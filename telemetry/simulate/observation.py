"""What of the simulated truth is observed: the layer between a run and detection.

The hardware of a run is played second by second. A real agent reports every few seconds: each
report holds means and rates over its period, is stored in every second that it covers, and
arrives when the period ends. Until then those seconds are gaps.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import METRICS, FloatArray, IntArray, Span
from telemetry.simulate.background import Reports, lost_steps
from telemetry.simulate.inputs import SPARSE_STEPS, Inputs
from telemetry.simulate.noise import mixed, stream, windows
from telemetry.simulate.timeline import TimelineRows
from telemetry.steps import StepBatch

Summary = Callable[..., FloatArray]
PROBED, POWER = HELD = ("efa_latency_s", "device_power_ratio")
# How often the driver measures power.
POWER_EVERY_S = 60
# What neuron-monitor's exporter and node_exporter do not have.
NOT_SCRAPED = frozenset({"hbm_bandwidth_bytes_per_s", PROBED, POWER, "core_flops_per_s"})


def visible(inputs: Inputs, span: Span) -> Span:
    """Keep the metrics that the inputs observe, second by second: for a thinned past."""
    names = [name for name in span.values if inputs.agent and is_observed(inputs, name)]
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
        if not is_observed(inputs, name):
            continue
        values[name] = truth
        if inputs.agent_every_s > 1:
            values[name] = hold_reports(
                truth,
                span.ticks,
                phases,
                inputs.agent_every_s,
                np.mean if name == POWER else summary_of(name),
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


def is_observed(inputs: Inputs, name: str) -> bool:
    if name == "hbm_bandwidth_bytes_per_s":
        return inputs.hbm_bandwidth
    if name == PROBED and not inputs.probe_every_s:
        return False
    if name == POWER and not inputs.power:
        return False
    return not (inputs.is_scraped and name in NOT_SCRAPED)


def by_phase(phases: IntArray) -> Mapping[int, IntArray]:
    return {int(phase): np.flatnonzero(phases == phase) for phase in np.unique(phases)}


def summary_of(name: str) -> Summary:
    if name == "execution_latency_p50_s":
        return _mean_of_known
    if name == "execution_latency_p100_s":
        return _max_of_known
    # A count, and a value that is held anyway, is what it was when the report was made.
    is_last = name in {PROBED, POWER} or METRICS[name].packing == "exact"
    return last_of if is_last else np.mean


def last_of(seconds: FloatArray, axis: int) -> FloatArray:
    return np.asarray(np.take(seconds, -1, axis=axis))


def _mean_of_known(seconds: FloatArray, axis: int) -> FloatArray:
    known = np.isfinite(seconds)
    total = np.where(known, seconds, 0).sum(axis=axis)
    n_known = known.sum(axis=axis)
    return np.asarray(np.where(n_known > 0, total, np.nan) / np.maximum(1, n_known))


def _max_of_known(seconds: FloatArray, axis: int) -> FloatArray:
    most = np.where(np.isfinite(seconds), seconds, -np.inf).max(axis=axis)
    return np.asarray(np.where(np.isfinite(most), most, np.nan))


def hold_reports(
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
    for phase, nodes in by_phase(phases % every_s).items():
        first = int((phase + 1 - ticks[0]) % every_s)
        n_periods = (len(ticks) - first) // every_s
        if n_periods > 0:
            rows = slice(first, first + n_periods * every_s)
            theirs = np.take(truth[rows], nodes, axis=1)
            cut = theirs.reshape(n_periods, every_s, *theirs.shape[1:])
            held[rows, nodes] = np.repeat(summary(cut[:, -last_s:], axis=1), every_s, axis=0)
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
        is_lost = lost_reports(inputs, key, steps.step, len(steps.workers), background)
        phases = {name: np.where(is_lost, np.nan, value) for name, value in phases.items()}
        exchange_s = phases["wait_s"] + phases["transfer_s"]
        known = np.isfinite(exchange_s)
        least_s = np.where(known, exchange_s, np.inf).min(axis=1, keepdims=True)
        phases["transfer_s"] = np.where(known, least_s, np.nan)
        phases["wait_s"] = np.where(known, exchange_s - least_s, np.nan)
    off_s = float(np.median(clock_offsets(inputs, key, len(steps.workers))))
    return replace(steps, phases=phases, ended_at_s=steps.ended_at_s + off_s)


def lost_reports(
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


def clock_offsets(inputs: Inputs, key: np.uint64, n_workers: int) -> FloatArray:
    """How far each worker's clock is ahead: (n_workers,) seconds."""
    return np.asarray(inputs.clock_skew_s * (2 * uniform_of_run(key, "clock", n_workers) - 1))


def uniform_of_run(key: np.uint64, name: str, n: int) -> FloatArray:
    return np.asarray(windows("uniform", mixed(key ^ stream(0, name), np.arange(1)), n)[0], float)
