"""Ground truth of a scenario: its faults, their effect, and how long it lasts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.simulate.faults import FAULTS, SLOW_COMPUTE, slowdown
from telemetry.simulate.hardware import PACKET_BYTES
from telemetry.simulate.inputs import Inputs
from telemetry.simulate.plan import Fault, Plan
from telemetry.simulate.script import script_of, strengths
from telemetry.simulate.shard import RunClock, clock_at, played_steps, start_clock
from telemetry.simulate.step_model import step_plan

# A fault counts that makes steps longer by this, or that the hardware of its tier shows.
COUNTS_FROM_RATIO = 1.05
# A silence is shown from this on: nodes may be late. A fault that comes and goes is shown by what
# is reported at least twice while it is on.
SILENT_S, SILENT_REPORTS, ON_S, ON_REPORTS = 30.0, 4, 10.0, 2
# Probes that must fall into a fault where they are not made each second.
N_PROBES = 3
# With fewer retransmitted packets, loss cannot be distinguished from noise.
LEAST_AGAIN = 6
ONE_CORE = ("slow_core", "throttle")
PIECE_S = 3600
# How long to wait for the step to end that was under way when the fault was over.
PATIENCE_S = (60, 600, 3600, 4 * 3600)


@dataclass(frozen=True, slots=True)
class FaultTruth:
    """One fault of a scenario, in seconds from its start.

    ``runs`` are those it hits, ``nodes`` the nodes; a fault of a whole run hits none by name.
    ``step_slowdown_ratio`` is the mean step during the fault over the same without it; None
    where no step got on, or none would have. ``felt_until_s`` is when the last step ended that
    the fault was part of; ``step_s`` the mean step during it. ``causes`` are the names that count
    as right: its kind, and kinds that the inputs cannot distinguish from it. ``is_shown``:
    hardware reports enough of it to find it, whatever it costs.
    """

    fault: Fault
    runs: tuple[str, ...]
    start_s: float
    end_s: float
    step_slowdown_ratio: float | None
    step_s: float | None
    felt_until_s: float
    nodes: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    is_shown: bool = False

    @property
    def run(self) -> str | None:
        """The run that it hits; None where there are several."""
        return self.runs[0] if len(self.runs) == 1 else None

    @property
    def counts(self) -> bool:
        """Whether it must be found: it costs enough, or shows enough in hardware metrics."""
        ratio = self.step_slowdown_ratio
        return self.is_shown or ratio is None or ratio >= COUNTS_FROM_RATIO


def is_shown_by_hardware(fault: Fault, inputs: Inputs) -> bool:
    """Whether hardware metrics show enough of a fault to find it, whatever it costs."""
    shown_from = FAULTS[fault.kind].shown_from
    if shown_from is None or not inputs.agent:
        return False
    every_s = float(inputs.agent_every_s)
    lasts_s, least_s = fault.duration_s, 0.0
    if fault.kind == "efa_latency":
        if inputs.is_scraped or not inputs.probe_every_s:
            return False
        every_s = max(every_s, inputs.probe_every_s)
        least_s = N_PROBES * every_s if every_s > 1 else 0.0
    if fault.kind == "hbm_slow" and not inputs.hbm_bandwidth:
        return False
    if fault.kind == "node_silent":
        least_s = max(SILENT_S, SILENT_REPORTS * every_s)
    if fault.on_s is not None:
        lasts_s, least_s = fault.on_s, max(ON_S, ON_REPORTS * every_s, least_s)
    parts = list(strengths(fault))
    total_s = sum(end - start for start, end, _ in parts)
    mean = sum((end - start) * magnitude for start, end, magnitude in parts) / total_s
    size = slowdown(mean) if fault.kind == "hbm_slow" else mean
    return lasts_s >= least_s and size >= shown_from


def right_causes(fault: Fault, inputs: Inputs, *, is_one_core: bool) -> tuple[str, ...]:
    """Return the causes that count as right: the kind, or a class where inputs cannot separate.

    Slow compute is distinguished by the utilization of cores that are idle while they wait, or by
    HBM bandwidth and power; the network by EFA's counters and by probes. Of an accelerator with
    one core, a slow core is a throttled accelerator.
    """
    causes = {fault.kind}
    if is_one_core and fault.kind in ONE_CORE:
        causes |= {*ONE_CORE}
    sees_cores = inputs.agent and not inputs.busy_while_waiting
    sees_probes = inputs.agent and inputs.probe_every_s > 0 and not inputs.is_scraped
    if fault.kind in SLOW_COMPUTE:
        # A slow accelerator and one with slow memory keep the same cores busy.
        sees_memory = inputs.agent and inputs.hbm_bandwidth
        # Without power, a core that waits for another of its accelerator looks throttled.
        is_enough = fault.kind == "hbm_slow" or inputs.power
        is_core = fault.kind == "slow_core" and not is_one_core
        is_distinct = (sees_memory and is_enough) or (sees_cores and is_core)
        causes |= set() if is_distinct else {"slow_compute"}
    if fault.kind == "efa_latency" and not sees_probes:
        causes.add("network")
    if fault.kind in {"efa_loss", "efa_down"} and not inputs.agent:
        causes.add("network")
    if fault.kind == "node_crash" and not inputs.agent:
        causes.add("hang")
    return tuple(sorted(causes))


def truth_of(plan: Plan) -> FaultTruth:
    """Return the truth of a plan's only fault, played to its end."""
    return next(truth for _, truth in all_truths(plan, np.inf))


def all_truths(plan: Plan, duration_s: float) -> Iterator[tuple[Fault, FaultTruth]]:
    """Measure what faults cost without background events and noise, which hit steps by chance.

    When the last step ends that a fault is part of depends on them. Nodes keep their pace.
    """
    if plan.noise.is_steady:
        yield from _truths(plan, duration_s)
        return
    script = script_of(plan)
    noise = msgspec.structs.replace(
        plan.noise,
        background=False,
        environment=0.0,
        measured=False,
        recorded="",
        node_cv=script.node_cv,
        run_to_run_cv=script.run_to_run_cv,
    )
    quiet = _truths(msgspec.structs.replace(plan, noise=noise), duration_s)
    for (fault, truth), (_, played) in zip(quiet, _truths(plan, duration_s), strict=True):
        yield fault, replace(truth, felt_until_s=played.felt_until_s)


def _truths(plan: Plan, duration_s: float) -> Iterator[tuple[Fault, FaultTruth]]:
    """Play a run with each of its faults alone, and compare it with a healthy run."""
    healthy_plan = msgspec.structs.replace(plan, faults=())
    healthy, last_s = _Paces(), max((_end_s(f, duration_s) for f in plan.faults), default=0.0)
    clock = _played(healthy_plan, start_clock(plan), plan.epoch_s + int(last_s), healthy)
    _finish(healthy_plan, clock, healthy, plan.epoch_s + last_s)
    before = start_clock(plan)
    for fault in sorted(plan.faults, key=lambda fault: fault.start_s):
        # Until the fault begins, its run equals the run without a fault: do not play it again.
        first = max(before.tick, plan.epoch_s + int(fault.start_s) - 1)
        before = before if first == before.tick else clock_at(healthy_plan, before, first)
        alone, paces = msgspec.structs.replace(plan, faults=(fault,)), _Paces()
        start_s, end_s = plan.epoch_s + fault.start_s, plan.epoch_s + _end_s(fault, duration_s)
        clock = _played(alone, before, int(end_s), paces)
        felt_until_s = _finish(alone, clock, paces, end_s)
        step_s, usual_s = paces.mean_s(start_s, end_s), healthy.mean_s(start_s, end_s)
        is_one_core = catalog.instance(plan.run.instance).chip.cores_logical == 1
        is_unmeasurable = _is_unmeasurable(plan, fault, end_s - start_s)
        is_whole = fault.run is not None and fault.rack is None
        hit = () if is_whole else fault.ranks_in(plan.run)
        yield (
            fault,
            FaultTruth(
                fault=fault,
                runs=(plan.run.name,),
                nodes=tuple(plan.run.node_names[i] for i in hit),
                start_s=fault.start_s,
                end_s=end_s - plan.epoch_s,
                step_slowdown_ratio=None
                if step_s is None or usual_s is None
                else step_s / usual_s,
                step_s=step_s,
                felt_until_s=felt_until_s - plan.epoch_s,
                causes=right_causes(fault, plan.inputs, is_one_core=is_one_core),
                is_shown=not is_unmeasurable and is_shown_by_hardware(fault, plan.inputs),
            ),
        )


def _is_unmeasurable(plan: Plan, fault: Fault, lasts_s: float) -> bool:
    """Whether a link carries too little traffic for its loss to be measured."""
    if fault.kind != "efa_loss":
        return False
    healthy = step_plan(plan.run)
    per_s = healthy.efa_device_bytes / PACKET_BYTES / healthy.step_s
    return fault.magnitude * per_s * lasts_s < LEAST_AGAIN


def _end_s(fault: Fault, duration_s: float) -> float:
    return min(fault.start_s + fault.duration_s, duration_s)


class _Paces:
    def __init__(self) -> None:
        self._ends: list[FloatArray] = []
        self._took: list[FloatArray] = []

    def add(self, ended_at_s: FloatArray, step_s: FloatArray) -> None:
        self._ends.append(ended_at_s)
        self._took.append(step_s)

    @property
    def newest_s(self) -> float:
        return max((float(ends[-1]) for ends in self._ends if len(ends)), default=-np.inf)

    def mean_s(self, start_s: float, end_s: float) -> float | None:
        """Return seconds per step between two moments, parts of steps counted as parts.

        None where no step got on at all.
        """
        ends, took = np.concatenate(self._ends), np.concatenate(self._took)
        within_s = np.minimum(ends, end_s) - np.maximum(ends - took, start_s)
        n_steps = float((np.maximum(within_s, 0) / took).sum())
        return (end_s - start_s) / n_steps if n_steps > 0 else None

    def end_of_step_at(self, at_s: float) -> float:
        """Return the end of the step under way at a moment; the moment itself if none was."""
        ends, took = np.concatenate(self._ends), np.concatenate(self._took)
        under_way = ends[(ends >= at_s) & (ends - took < at_s)]
        return float(under_way[0]) if len(under_way) else at_s


def _played(plan: Plan, clock: RunClock, until: int, paces: _Paces) -> RunClock:
    """Play steps up to a second, in pieces, so that memory does not grow with the time."""
    while clock.tick < until:
        piece = min(until, clock.tick + PIECE_S)
        steps = played_steps(plan, clock, piece)
        paces.add(steps.ended_at_s, steps.step_s)
        clock = clock_at(plan, clock, piece)
    return clock


def _finish(plan: Plan, clock: RunClock, paces: _Paces, at_s: float) -> float:
    """Play until the step under way is over; return when it ended."""
    for patience_s in PATIENCE_S:
        if paces.newest_s >= at_s or clock.phase in {"finished", "failed"}:
            break
        clock = _played(plan, clock, int(at_s) + patience_s, paces)
    return paces.end_of_step_at(at_s)
