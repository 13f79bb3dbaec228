"""A run that ends no step: since when, and what its machines do meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, Span
from telemetry.detect.inputs import (
    DetectionInput,
    node_peak,
    node_values,
    part_values,
    reported_steps,
)
from telemetry.detect.rules import RULES
from telemetry.statistics.peers import mean, middle
from telemetry.steps import StepBatch

MEMORY, LINKS = "hbm_bandwidth_bytes_per_s", "efa_tx_bytes_per_s"
# Cores that are all this busy without a break, while memory and links move less than this part of
# what they do in a step, spin.
SPINNING, MOVING = 0.9, 0.03
# At how many moments of so many seconds before the last step's end one sees what is usual, and
# for how long one looks now.
USUAL_MOMENTS, USUAL_S, LOOK_S = 6, 60.0, 8


def spinning(
    inputs: DetectionInput,
    nodes: tuple[str, ...],
    cores: FloatArray,
    *,
    since_s: float,
    step_s: float,
) -> NDArray[np.bool_]:
    """Return whose cores are busy without a break and move nothing: (n_nodes,).

    Parameters
    ----------
    cores : (n_ticks, n_nodes, n_cores)
        How busy they were lately.
    since_s : Unix seconds
        When the last step ended.

    Notes
    -----
    NCCL waits in a kernel that polls: a GPU in a collective that somebody did not join reads
    100 % busy for as long as it hangs, and touches its memory hardly at all.
    """
    known = np.isfinite(cores)
    busy = known.any(axis=(0, 2)) & ((cores >= SPINNING) | ~known).all(axis=(0, 2))
    # One node alone that is as busy as can be is slow, and the others wait for it.
    if 2 * busy.sum() <= len(nodes) or inputs.hardware_at is None or not np.isfinite(step_s):
        return np.zeros(len(nodes), dtype=bool)
    back_s = min(max(2 * step_s, USUAL_MOMENTS), USUAL_S)
    ages = np.linspace(inputs.now_s - since_s + back_s, inputs.now_s - since_s, USUAL_MOMENTS)
    metrics = (MEMORY, LINKS)
    usual = inputs.hardware_at(metrics, tuple(dict.fromkeys(ages.astype(int).tolist()))).of(nodes)
    now = inputs.hardware(metrics, LOOK_S).of(nodes)
    is_known = np.isfinite(part_values(now, MEMORY)).any(axis=(0, 2))
    stall = [_moved(now, metric) < MOVING * _moved(usual, metric) for metric in metrics]
    # A node without links of its own says nothing by them.
    return np.asarray(busy & is_known & stall[0] & (stall[1] | ~(_moved(usual, LINKS) > 0)))


def _moved(span: Span, metric: str) -> FloatArray:
    """Return how much each node moved per second on the whole: (n_nodes,), NaN where unknown."""
    return mean(mean(part_values(span, metric).astype(float), axis=2), axis=0)


CORES, HOST = "core_utilization_ratio", "vcpu_usage_ratio"
TRAINING = "training"
# Rules whose alerts remember when a run's last step ended.
STANDSTILLS = ("hang", "recompile")
# A step is overdue after so many of the run's own step times, and so many seconds at the least.
_LIMITS = RULES["hang"].limits
LATE_STEPS, LATE_S = _LIMITS["late_steps"], _LIMITS["late_s"]
# Nobody knows how long a run's very first step may take; so long it does something, though.
FIRST_S = _LIMITS["first_s"]
USUAL_STEPS, RECENT_STEPS = 12, 24
# How long machines are looked at, and at how many moments since the last step ended.
STANDSTILL_LOOK_S, MUTE_S, MOMENTS, OLDEST_S = 8, 5, 12, 840
# What is younger may yet arrive; who was heard of in the newest of these seconds is there.
ARRIVED_S, THERE_S = 3, 2
# A core above this computes or moves bytes. Below it, a host above the first of these compiles,
# above the second it reads or writes; one that is less busy waits.
WORKING, COMPILING = _LIMITS["working_ratio"], _LIMITS["compiling_ratio"]
LOADING = _LIMITS["loading_ratio"]
# A worker whose cores and host do less than this part of what its peers' do is not with them.
WITH_THEM = 0.5
LEAST_HOST = 0.03

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Standstill:
    """A run that trains and ended no step since ``since_s``, as its machines showed lately.

    ``nodes`` are those that had a part in the newest step and are heard of. Of each there is, over
    the last seconds, the most that any core did and how busy cores and host were on the whole:
    (n_nodes,). ``mute`` had a part in the newest step and are not heard of now; ``gone`` are those
    that fell silent only after that step, ``back`` those of them that are heard of again.
    ``limit_s`` is how long a step may take. ``spins`` are those whose cores are busy with waiting.
    """

    since_s: float
    overdue_s: float
    step_s: float
    limit_s: float
    nodes: tuple[str, ...]
    peak: FloatArray
    cores: FloatArray
    hosts: FloatArray
    silent: tuple[str, ...]
    gone: tuple[str, ...]
    back: tuple[str, ...]
    spins: Flags

    @property
    def works(self) -> Flags:
        """Who computes, or moves bytes."""
        return np.asarray((self.peak >= WORKING) & ~self.spins)

    @property
    def compiles(self) -> Flags:
        """Whose host is busy as only compilers keep it, while its cores do nothing."""
        return ~self.works & (self.hosts >= COMPILING)

    @property
    def loads(self) -> Flags:
        """Whose host reads or writes, while its cores do nothing."""
        return ~self.works & (self.hosts >= LOADING) & ~self.compiles

    @property
    def waits(self) -> Flags:
        """Who does nothing but wait."""
        return ~(self.works | self.compiles | self.loads)

    @cached_property
    def absent(self) -> tuple[int, ...]:
        """Rows of the nodes that are not with the others, the most idle first.

        Notes
        -----
        Who waits in a collective polls for its completion: the host's threads spin, and the
        cores' engines look at their semaphores. Who never joined does neither, so its figures lie
        far below those of its peers. The usual figure is the upper median: of two nodes the one
        that does more is in the collective.
        """
        if len(self.nodes) + len(self.silent) == 1:
            return (0,)
        usual_host, usual_cores = upper_median(self.hosts), upper_median(self.cores)
        if self.spins.any():
            rests = ~self.spins & (self.cores < WITH_THEM * usual_cores)
            return tuple(int(row) for row in np.argsort(self.cores, kind="stable") if rests[row])
        if usual_host < LEAST_HOST:
            return ()
        # Cores that say nothing while they wait, as some do, leave it to the hosts.
        is_away = (self.hosts < WITH_THEM * usual_host) & (
            (self.cores < WITH_THEM * usual_cores) | (usual_cores == 0)
        )
        order = np.argsort(self.hosts, kind="stable")
        return tuple(int(row) for row in order if is_away[row])


def lost(stall: Standstill) -> set[str]:
    """Return the nodes that fell silent as the run stopped, or without which it never began."""
    return set(stall.silent) & set(stall.gone if np.isfinite(stall.step_s) else stall.silent)


def upper_median(x: FloatArray) -> float:
    """Return the upper of the two middle values; NaN of none."""
    known = np.sort(x[np.isfinite(x)])
    return float(known[known.size // 2]) if known.size else float("nan")


def usual_step_s(steps: StepBatch) -> float:
    """Return how long the run's own steps took lately; NaN where there was none."""
    return middle(steps.last(USUAL_STEPS).step_s) if len(steps) else float("nan")


def recent_steps(inputs: DetectionInput) -> StepBatch:
    """Return the newest steps that somebody reported: enough of them to know the run's pace."""
    return reported_steps(inputs.steps.last(RECENT_STEPS))


def is_training(inputs: DetectionInput, steps: StepBatch) -> bool:
    """Tell whether the run says that it trains, or has ended steps since it said anything else."""
    if inputs.phase == TRAINING or inputs.phase_since_s is None:
        return inputs.phase == TRAINING
    return bool(len(steps)) and float(steps.ended_at_s[-1]) > inputs.phase_since_s + 1.0


def no_step_since(inputs: DetectionInput, steps: StepBatch) -> float | None:
    """Return since when the run should have ended a step: its last one, or when it set out.

    Steps are kept for some minutes only; beyond them an open alert remembers.
    """
    known = [inputs.phase_since_s] if inputs.phase_since_s is not None else []
    known += [float(steps.ended_at_s[-1])] if len(steps) else []
    stood = [alert.evidence for alert in inputs.open_problems if alert.rule in STANDSTILLS]
    known += [float(evidence["since_s"]) for evidence in stood if "since_s" in evidence]
    return max(known, default=None)


def training_nodes(inputs: DetectionInput, steps: StepBatch) -> tuple[str, ...]:
    """Return the nodes that had a part in the newest step; all where there was none."""
    if not len(steps):
        return inputs.nodes
    reported = np.isfinite(steps.phases["compute_s"][-1])
    training = {inputs.node_of(steps.workers[i]) for i in np.flatnonzero(reported)}
    return tuple(node for node in inputs.nodes if node in training)


def standstill(inputs: DetectionInput, *, late_steps: float = LATE_STEPS) -> Standstill | None:
    """Look at a run whose next step is overdue; None where it is not, or where it need not train.

    Notes
    -----
    What is late is judged by the newest second that anybody reported, not by the clock: a
    monitoring that lags sees neither hardware nor steps, and knows nothing.
    """
    newest = inputs.steps.ended_at_s[-1:]
    if newest.size and inputs.now_s - newest[-1] <= LATE_S:
        return None
    steps = recent_steps(inputs)
    since_s = no_step_since(inputs, steps)
    if since_s is None or not is_training(inputs, steps):
        return None
    step_s = usual_step_s(steps)
    limit_s = max(LATE_S, late_steps * step_s) if np.isfinite(step_s) else FIRST_S
    if inputs.now_s - since_s <= limit_s:
        return None
    return _observe(inputs, training_nodes(inputs, steps), since_s, step_s, limit_s)


def _observe(
    inputs: DetectionInput, nodes: tuple[str, ...], since_s: float, step_s: float, limit_s: float
) -> Standstill | None:
    """See what the machines have been doing for some seconds."""
    span = inputs.hardware((CORES, HOST), STANDSTILL_LOOK_S).of(nodes)
    reporting = is_reporting(span)
    newest = np.flatnonzero(reporting.any(axis=1))
    if not newest.size or span.ticks[newest[-1]] - since_s <= limit_s:
        return None
    upto = reporting[: newest[-1] + 1]
    lately = np.asarray(upto[-MUTE_S:].any(axis=0))
    spins = spinning(inputs, nodes, part_values(span, CORES), since_s=since_s, step_s=step_s)[
        lately
    ]
    is_there = np.asarray(upto[-THERE_S:].any(axis=0))
    cores, most = part_values(span, CORES)[:, lately], node_peak(span, CORES)[:, lately]
    missed = _missing_since(inputs, nodes, since_s)
    return Standstill(
        since_s=since_s,
        overdue_s=float(span.ticks[newest[-1]] - since_s),
        step_s=step_s,
        limit_s=limit_s,
        nodes=_those(nodes, lately),
        peak=np.where(np.isfinite(most), most, -1.0).max(axis=0),
        cores=mean(mean(cores, axis=2), axis=0),
        hosts=mean(node_values(span, HOST)[:, lately], axis=0),
        silent=_those(nodes, ~lately),
        gone=_those(nodes, missed),
        back=_those(nodes, missed & is_there),
        spins=spins,
    )


def _those(nodes: tuple[str, ...], flags: Flags) -> tuple[str, ...]:
    return tuple(nodes[row] for row in np.flatnonzero(flags))


def is_reporting(span: Span) -> Flags:
    """Return who reported anything in which tick: (n_ticks, n_nodes)."""
    reporting = np.zeros((len(span.ticks), len(span.nodes)), dtype=bool)
    for values in span.values.values():
        reporting |= np.isfinite(values).any(axis=2)
    return reporting


def since_ages(inputs: DetectionInput, since_s: float, *, newest: int = 0) -> Sequence[int]:
    """Return the ages of a few seconds, from the one in which a step ended until now."""
    oldest = min(int(inputs.now_s) - int(since_s), OLDEST_S)
    return tuple(dict.fromkeys(np.linspace(oldest, newest, MOMENTS).astype(int).tolist()))


def _missing_since(inputs: DetectionInput, nodes: tuple[str, ...], since_s: float) -> Flags:
    """Return who reported when the last step ended, and at some moment since did not."""
    ages = since_ages(inputs, since_s, newest=ARRIVED_S if len(nodes) > 1 else 0)
    if inputs.hardware_at is None or inputs.now_s - since_s > OLDEST_S:
        return np.zeros(len(nodes), dtype=bool)
    reporting = is_reporting(inputs.hardware_at((HOST,), ages).of(nodes))
    # A moment in which nobody was heard of tells nothing about anybody; of a node that is alone
    # it does, once it is heard of again.
    reported = np.asarray(reporting.any(axis=1))
    if len(nodes) == 1:
        reported = np.logical_or.accumulate(reported[::-1])[::-1]
    missed: Flags = reporting[0] & (~reporting[reported]).any(axis=0)
    return missed
