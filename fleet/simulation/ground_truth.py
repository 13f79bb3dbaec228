"""Ground truth of a scenario: its faults, their effect, and how long it lasts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.simulate.faults import slowdown
from telemetry.simulate.hardware import PACKET_BYTES
from telemetry.simulate.plan import Fault, Plan
from telemetry.simulate.scenario import Scenario, run_of
from telemetry.simulate.shard import RunClock, clock_at, played_steps, start_clock
from telemetry.simulate.step_model import step_plan

# A fault counts that makes steps longer by this, or that hardware shows.
COUNTS_FROM_RATIO = 1.05
# Hardware shows a kind of fault from this on; docs/drills.md says why.
SHOWN_BY_HARDWARE: Mapping[str, Callable[[Fault], bool]] = {
    "efa_latency": lambda fault: fault.magnitude >= 1.5,
    "efa_loss": lambda fault: fault.magnitude >= 0.002,
    "efa_down": lambda fault: True,
    "hbm_slow": lambda fault: slowdown(fault.magnitude) >= 1.25,
    "ecc_uncorrected": lambda fault: True,
    "node_silent": lambda fault: fault.duration_s >= 30,
    "node_crash": lambda fault: True,
}
# With fewer retransmitted packets, loss cannot be told from chance.
LEAST_AGAIN = 6
ONE_CORE = ("slow_core", "throttle")
PIECE_S = 3600
# How long to wait for the step to end that was under way when the fault was over.
PATIENCE_S = (60, 600, 3600, 4 * 3600)


@dataclass(frozen=True, slots=True)
class FaultTruth:
    """One fault of a scenario, in seconds from its start.

    ``step_slowdown_ratio`` is the mean step during the fault over the same without it; None
    where no step got on, or none would have. ``felt_until_s`` is when the last step ended that
    the fault was part of; ``step_s`` the mean step during it. ``looks_like`` names the kinds
    that leave exactly the same marks on this hardware; ``is_faint``: hardware has next to nothing
    to show.
    """

    fault: Fault
    run: str
    start_s: float
    end_s: float
    step_slowdown_ratio: float | None
    step_s: float | None
    felt_until_s: float
    looks_like: tuple[str, ...] = ()
    is_faint: bool = False

    @property
    def counts(self) -> bool:
        """Whether it costs enough, or leaves enough on hardware, that it must be found."""
        if not self.is_faint and is_shown_by_hardware(self.fault):
            return True
        ratio = self.step_slowdown_ratio
        return ratio is None or ratio >= COUNTS_FROM_RATIO


def is_shown_by_hardware(fault: Fault) -> bool:
    """Whether nodes report enough of a fault to find it, whatever it costs."""
    is_shown = SHOWN_BY_HARDWARE.get(fault.kind)
    return is_shown is not None and is_shown(fault)


def truths_of(scenario: Scenario, plans: tuple[Plan, ...]) -> list[FaultTruth]:
    """Return every fault of a scenario, in the order of the file."""
    by_run = {plan.run.name: dict(_truths(plan, scenario.duration_s)) for plan in plans}
    found = []
    for fault in scenario.faults:
        run = run_of(fault, scenario.runs)
        if run is not None:
            found.append(by_run[run.name][fault])
    return found


def truth_of(plan: Plan) -> FaultTruth:
    """Return the only fault of a plan, played to its end."""
    return next(truth for _, truth in _truths(plan, np.inf))


def _truths(plan: Plan, duration_s: float) -> Iterator[tuple[Fault, FaultTruth]]:
    """Play a run with each of its faults alone, and compare it with a healthy run."""
    twin = msgspec.structs.replace(plan, faults=())
    healthy, last_s = _Paces(), max((_end_s(f, duration_s) for f in plan.faults), default=0.0)
    clock = _played(twin, start_clock(plan), plan.epoch_s + int(last_s), healthy)
    _finish(twin, clock, healthy, plan.epoch_s + last_s)
    before = start_clock(plan)
    for fault in sorted(plan.faults, key=lambda fault: fault.start_s):
        # Until the fault begins its run is the twin: no need to play that again.
        first = max(before.tick, plan.epoch_s + int(fault.start_s) - 1)
        before = before if first == before.tick else clock_at(twin, before, first)
        yield fault, _truth(plan, fault, before, healthy, duration_s)


def _truth(
    plan: Plan, fault: Fault, before: RunClock, healthy: "_Paces", duration_s: float
) -> FaultTruth:
    """Play one fault alone, from just before it begins."""
    alone, paces = msgspec.structs.replace(plan, faults=(fault,)), _Paces()
    start_s, end_s = plan.epoch_s + fault.start_s, plan.epoch_s + _end_s(fault, duration_s)
    clock = _played(alone, before, int(end_s), paces)
    felt_until_s = _finish(alone, clock, paces, end_s)
    step_s, usual_s = paces.mean_s(start_s, end_s), healthy.mean_s(start_s, end_s)
    return FaultTruth(
        fault=fault,
        run=plan.run.name,
        start_s=fault.start_s,
        end_s=end_s - plan.epoch_s,
        step_slowdown_ratio=None if step_s is None or usual_s is None else step_s / usual_s,
        step_s=step_s,
        felt_until_s=felt_until_s - plan.epoch_s,
        looks_like=_looks_like(plan, fault),
        is_faint=_is_faint(plan, fault, end_s - start_s),
    )


def _is_faint(plan: Plan, fault: Fault, lasts_s: float) -> bool:
    """Whether a link carries too little traffic for its loss to be measured."""
    if fault.kind != "efa_loss":
        return False
    healthy = step_plan(plan.run)
    per_s = healthy.efa_device_bytes / PACKET_BYTES / healthy.step_s
    return fault.magnitude * per_s * lasts_s < LEAST_AGAIN


def _looks_like(plan: Plan, fault: Fault) -> tuple[str, ...]:
    """Name the kinds that cannot be distinguished, as on accelerators with one core."""
    is_one_core = catalog.instance(plan.run.instance).chip.cores_logical == 1
    return ONE_CORE if is_one_core and fault.kind in ONE_CORE else ()


def _end_s(fault: Fault, duration_s: float) -> float:
    return min(fault.start_s + fault.duration_s, duration_s)


class _Paces:
    """When steps ended and how long they took, gathered piece by piece."""

    def __init__(self) -> None:
        self._ends: list[FloatArray] = []
        self._took: list[FloatArray] = []

    def add(self, ended_at_s: FloatArray, step_s: FloatArray) -> None:
        """Add some later steps."""
        self._ends.append(ended_at_s)
        self._took.append(step_s)

    @property
    def newest_s(self) -> float:
        """When the last one ended."""
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
        """Return when the step ended that was under way at a moment; the moment if none was."""
        ends, took = np.concatenate(self._ends), np.concatenate(self._took)
        under_way = ends[(ends >= at_s) & (ends - took < at_s)]
        return float(under_way[0]) if len(under_way) else at_s


def _played(plan: Plan, clock: RunClock, until: int, paces: _Paces) -> RunClock:
    """Play steps up to a second, in pieces, so that days need no more memory than hours."""
    while clock.tick < until:
        piece = min(until, clock.tick + PIECE_S)
        steps = played_steps(plan, clock, piece)
        paces.add(steps.ended_at_s, steps.step_s)
        clock = clock_at(plan, clock, piece)
    return clock


def _finish(plan: Plan, clock: RunClock, paces: _Paces, at_s: float) -> float:
    """Play on until the step is over that was under way; return when it ended."""
    for patience_s in PATIENCE_S:
        if paces.newest_s >= at_s or clock.phase in {"finished", "failed"}:
            break
        clock = _played(plan, clock, int(at_s) + patience_s, paces)
    return paces.end_of_step_at(at_s)
