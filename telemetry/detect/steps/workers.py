"""Why a worker is late: its cores, its memory, its input, or simply more work than others."""

from dataclasses import replace

import numpy as np

from telemetry.detect.finding import UNKNOWN
from telemetry.detect.look import Look
from telemetry.detect.peers import lower_median, median
from telemetry.detect.steps.case import Case
from telemetry.detect.steps.late_parts import part_looks
from telemetry.detect.steps.stragglers import (
    DEVIATIONS,
    UNEVEN_RATIO,
    Lateness,
    lateness,
    unevenness,
)

# Phases of a worker's own time that name their cause by themselves.
CAUSE_OF_PHASE = {"input_s": "input_stall", "checkpoint_s": "checkpoint_slow"}
MACHINE_PHASES = ("compute_s", "other_s")


def worker_looks(case: Case, late: Lateness) -> list[Look]:
    """Look for whatever makes workers wait for others."""
    node = case.vitals.node_of(case.after.workers[late.worst])
    looks = [_phase_look(case, late, phase, node) for phase in CAUSE_OF_PHASE]
    if late.pattern == "steady" and late.phase == "compute_s" and node is not None:
        is_even = _unrest(case, late) < UNEVEN_RATIO and case.vitals.n_stages == 1
        looks += part_looks(case, node, blame_only_device=is_even)
    return [*looks, _stage(case, late), _sequences(case, late), _machine(case, late, node)]


def _phase_look(case: Case, late: Lateness, phase: str, node: str | None) -> Look:
    """Look whether the late worker spends its excess in a phase that names the cause."""
    typical = median(case.after.phases[phase].T)
    peers = float(median(typical))
    is_it = late.pattern == "steady" and late.phase == phase
    return Look(
        cause=CAUSE_OF_PHASE[phase],
        strength=late.strength if is_it else 0.0,
        metric=phase,
        value=float(typical[late.worst]),
        peers_median=peers,
        n_peers=_n_peers(late),
        unit="s",
        node=node,
    )


def _stage(case: Case, late: Lateness) -> Look:
    """Look whether one pipeline stage takes longer than the others, its workers all alike."""
    stage, own = case.vitals.stage, late.own_s
    stages = [own[stage == i] for i in range(case.vitals.n_stages)]
    typical = np.array([float(median(each)) for each in stages])
    usual = float(lower_median(typical))
    unlike = [float(median(np.abs(each - median(each)))) for each in stages]
    look = Look("stage_imbalance", 0.0, "own_s", np.nan, usual, len(stages) - 1, "s")
    if len(stages) < 2 or not np.isfinite(typical).any() or late.phase != "compute_s":
        return look
    longest = int(np.nanargmax(typical))
    if late.pattern != "steady" or stage[late.worst] != longest:
        return look
    noise_s = max(float(np.nanmax(unlike)), late.restless_ratio * usual)
    least = max(UNEVEN_RATIO * usual, DEVIATIONS * noise_s)
    strength = (typical[longest] - usual) / least
    return replace(look, strength=_last_resort(strength), value=float(typical[longest]))


def _sequences(case: Case, late: Lateness) -> Look:
    """Look whether the work is uneven.

    Then all are unlike at once, another one is last in every step, or the last is late by
    another amount each time; a machine that is slow is so by the same factor in every step.
    """
    before = unevenness(case.before) if case.before else 0.0
    strength = max(unevenness(case.after) - before, _unrest(case, late)) / UNEVEN_RATIO
    if late.pattern == "rotating" and lateness(case.newest).pattern == "rotating":
        strength = max(strength, late.spread_ratio / UNEVEN_RATIO)
    return Look(
        cause="seq_imbalance",
        strength=_last_resort(strength if late.phase == "compute_s" else 0.0),
        metric="spread_ratio",
        value=late.spread_ratio,
        peers_median=before,
        n_peers=_n_peers(late),
        unit="ratio",
    )


def _unrest(case: Case, late: Lateness) -> float:
    """Return by how much the lateness differs from step to step, more than it used to.

    A late machine's own noise is no unrest: it is late by about as much in every step.
    """
    if late.is_steady:
        return 0.0
    usual = lateness(case.before).restless_ratio if case.before else 0.0
    return late.restless_ratio - usual


def _machine(case: Case, late: Lateness, node: str | None) -> Look:
    """Look whether one machine is late in every step, whatever makes it so.

    Steps alone convict it: a job may run no agent, or what slows it no counter shows.
    """
    late = late if late.n_steps >= len(case.after) else lateness(case.after)
    typical = late.own_s
    look = Look(
        cause=UNKNOWN,
        strength=0.0,
        metric="own_s",
        value=float(typical[late.worst]),
        peers_median=float(lower_median(typical)),
        n_peers=_n_peers(late),
        unit="s",
        node=node,
    )
    nodes = {case.vitals.node_of(case.after.workers[i]) for i in late.late}
    is_alone = node is not None and nodes == {node}
    is_certain = late.is_steady and late.is_no_luck and late.phase in MACHINE_PHASES
    return replace(look, strength=_last_resort(late.strength if is_alone and is_certain else 0.0))


def _last_resort(strength: float) -> float:
    """Return a strength that machines come before: one slow machine may be all of a stage."""
    return float(np.clip(strength, 0.0, 1.0)) if np.isfinite(strength) else 0.0


def _n_peers(late: Lateness) -> int:
    return max(0, len(late.own_s) - 1)
