"""Why a worker is late: its cores, its memory, its input, or simply more work than others."""

from telemetry.detect.case import Case
from telemetry.detect.look import Look
from telemetry.detect.parts import part_looks
from telemetry.detect.peers import median
from telemetry.detect.stragglers import Lateness

# Phases of a worker's own time that name their cause by themselves.
CAUSE_OF_PHASE = {"input_s": "input_stall", "checkpoint_s": "checkpoint_slow"}
# Last arrivals this much later than the typical worker are uneven work, whoever comes last.
UNEVEN_RATIO = 0.05


def worker_looks(case: Case, late: Lateness) -> list[Look]:
    """Look for whatever makes workers wait for others."""
    node = case.vitals.node_of(case.after.workers[late.worst])
    looks = [_phase_look(case, late, phase, node) for phase in CAUSE_OF_PHASE]
    if late.pattern in {"one", "several"} and late.phase == "compute_s" and node is not None:
        looks += part_looks(case, node)
    return [*looks, _stage(late), _sequences(late)]


def _phase_look(case: Case, late: Lateness, phase: str, node: str | None) -> Look:
    """Look whether the late worker spends its excess in a phase that names the cause."""
    typical = median(case.after.phases[phase].T)
    peers = float(median(typical))
    is_it = late.pattern in {"one", "several"} and late.phase == phase
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


def _stage(late: Lateness) -> Look:
    """Look whether some workers, always the same, have more to compute and sound machines."""
    is_it = late.pattern == "several" and late.phase == "compute_s"
    return Look(
        cause="stage_imbalance",
        # Machines come first: a pair of slow ones looks like a long stage until they are seen.
        strength=min(1.0, late.strength) if is_it else 0.0,
        metric="own_s",
        value=float(late.own_s[late.worst]),
        peers_median=float(median(late.own_s)),
        n_peers=_n_peers(late),
        unit="s",
    )


def _sequences(late: Lateness) -> Look:
    """Look whether another worker is last in every step."""
    is_it = late.pattern == "rotating"
    return Look(
        cause="seq_imbalance",
        strength=late.spread_ratio / UNEVEN_RATIO if is_it else 0.0,
        metric="last_ratio",
        value=late.last_ratio,
        peers_median=1.0,
        n_peers=_n_peers(late),
        unit="ratio",
    )


def _n_peers(late: Lateness) -> int:
    return max(0, len(late.own_s) - 1)
