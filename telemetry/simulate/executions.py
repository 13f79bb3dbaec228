"""Power, FLOPs and execution latencies: what shows who computes while all cores are busy."""

import numpy as np

from telemetry.blocks import IntArray
from telemetry.simulate.hardware import Occupancy, nature
from telemetry.simulate.noise import Floats, TickNoise
from telemetry.simulate.script import SLOW_COMPUTE, Act, Script, core_factor, window_of
from telemetry.simulate.timeline import TimelineRows

# Share of its maximum power that a device draws in each phase. No figure is published: all of
# these are assumed. An engine that computes draws for its clock and for its work; one that waits
# in a collective polls a semaphore.
IDLE_POWER, WAITING_POWER, TRANSFERRING_POWER = 0.10, 0.30, 0.40
CLOCKED_POWER, COMPUTING_POWER = 0.45, 0.80
POWER_NOISE, FLOPS_NOISE, LATENCY_NOISE = 0.01, 0.002, 0.004


def device_power(
    script: Script, spent: Occupancy, ticks: IntArray, noise: TickNoise, nodes: slice
) -> Floats:
    """Power of each device over its maximum: (n_ticks, n_nodes, n_devices).

    Notes
    -----
    A slow part does the same work in more time, so its work draws less. But it is clocked all
    the time, while the other devices of its node wait for it after each layer. What it draws
    more than they do is ``(CLOCKED_POWER - WAITING_POWER) * (1 - 1 / slowdown)`` while its node
    computes.
    """
    plan = script.step_plan
    work_s = plan.work_s
    engines = (plan.compute_s + plan.optimizer_s) / work_s * spent.compute
    level = (
        IDLE_POWER
        + (COMPUTING_POWER - IDLE_POWER) * (engines + 0.6 * spent.evaluation)
        + (WAITING_POWER - IDLE_POWER) * (plan.bubble_s / work_s * spent.compute + spent.wait)
        + (TRANSFERRING_POWER - IDLE_POWER)
        * (plan.tp_collective_s / work_s * spent.compute + spent.transfer)
    )
    power = np.repeat(level.astype(np.float32)[..., None], script.instance.n_devices, axis=2)
    for act in script.acts:
        rows = act.rows[(act.rows >= nodes.start) & (act.rows < nodes.stop)] - nodes.start
        when = window_of(act, ticks)
        if act.kind in SLOW_COMPUTE and len(rows) and when.start < when.stop:
            saved = engines[when][:, rows] * (1 - 1 / core_factor(script, act))
            power[when, rows] -= saved.astype(np.float32)[..., None] * _saving(script, act)
    power *= nature(script).power[nodes] + POWER_NOISE * noise.normal(script.instance.n_devices)
    return np.clip(power, 0, 1, out=power)


def _saving(script: Script, act: Act) -> Floats:
    """Highest power that each device of a slow node saves: (n_devices,)."""
    waiting, slow = COMPUTING_POWER - WAITING_POWER, COMPUTING_POWER - CLOCKED_POWER
    saving = np.full(script.instance.n_devices, waiting, np.float32)
    if act.kind == "slow_core" and isinstance(act.parts, int):
        per_device = script.instance.chip.cores_logical
        saving[act.parts // per_device] += (slow - waiting) / per_device
    else:
        saving[act.parts] = slow
    return saving


def core_flops(
    script: Script, spent: Occupancy, rows: TimelineRows, at: IntArray, noise: TickNoise
) -> Floats:
    """FLOPs that each core executes per second: (n_ticks, n_nodes, n_cores).

    In a synchronous step all cores do the same work in the same time, so it falls for all alike.
    """
    plan, n_cores = script.step_plan, script.instance.n_cores
    again = 1 + plan.layout.recompute_ratio / 3
    n_active = np.maximum(1, rows.active.sum(axis=1))
    per_core = again * plan.flops / plan.tokens * rows.tokens / n_active / n_cores
    flops = (per_core[at][:, None] * spent.computed).astype(np.float32)[..., None]
    return np.asarray(flops * (1 + FLOPS_NOISE * noise.normal(n_cores)))


def execution_latencies(
    script: Script, rows: TimelineRows, at: IntArray, ticks: IntArray, noise: TickNoise
) -> dict[str, Floats]:
    """Median and longest latency of the executions of each node: (n_ticks, n_nodes, 1).

    Parameters
    ----------
    rows : of these nodes
    at : (n_ticks,) row in progress at the end of each tick
    ticks : (n_ticks,) Unix seconds

    Notes
    -----
    Each micro-batch is an execution; the last one of a step exchanges the gradients and updates
    the weights. Where the exchange is inside every execution (one micro-batch, sharded weights,
    pipeline stages) a node's latency holds its waiting for others, and is alike for all. NaN
    where nothing was executed.
    """
    plan = script.step_plan
    n = max(1, plan.layout.micro_batches)
    whole_s = rows.ready_s[:, None] - rows.pause_s[:, None] - rows.input_s
    exchange_s = rows.wait_s + rows.transfer_s[:, None] + plan.optimizer_s
    is_masked = n == 1 or plan.layout.is_fully_sharded or script.run.pp > 1
    each_s = (whole_s + rows.transfer_s[:, None]) / n if is_masked else rows.compute_s / n
    longest_s = each_s if is_masked else np.maximum(each_s, exchange_s)
    exchanged_s = rows.start_s + rows.ready_s + rows.transfer_s
    # The newest exchange that was over at the end of the tick, and whether that was in this tick.
    last = np.searchsorted(np.where(rows.is_step, exchanged_s, np.inf), ticks, side="right") - 1
    is_over = (last >= 0) & (exchanged_s[np.maximum(last, 0)] > ticks - 1)
    computes = rows.is_step[at] & (ticks > (rows.start_s + rows.pause_s)[at])
    nothing = np.full(each_s[at].shape, np.nan)
    median_s = np.where((is_over if n == 1 else computes | is_over)[:, None], each_s[at], nothing)
    slowest_s = np.where(is_over[:, None], longest_s[np.maximum(last, 0)], median_s)
    scatter = (1 + LATENCY_NOISE * noise.normal(2)).astype(np.float32)
    is_active = rows.active[at]
    return {
        name: (np.where(is_active, value, np.nan).astype(np.float32) * scatter[..., i])[..., None]
        for i, (name, value) in enumerate(
            (("execution_latency_p50_s", median_s), ("execution_latency_p100_s", slowest_s))
        )
    }
