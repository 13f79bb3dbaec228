"""Who has stopped reporting, and whether the silence is the node's or our own."""

from collections.abc import Mapping
from dataclasses import dataclass

from telemetry.detect.finding import Finding
from telemetry.detect.rules import RULES

SILENT = "node_silent"
CRASHED = "node_crash"
BLIND = "monitoring_blind"
# A run has stopped when its next step is this many step times overdue.
STEPS_OVERDUE = 3.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """A run's heartbeat: when its newest step ended, and how long its steps take."""

    last_step_at_s: float
    step_s: float


def silent(
    last_seen: Mapping[str, int],
    *,
    now_s: float,
    after_s: float = 15,
    run_of: Mapping[str, str] | None = None,
    pulses: Mapping[str, Pulse] | None = None,
) -> list[Finding]:
    """Find the nodes that reported before and have not for more than ``after_s`` seconds.

    Parameters
    ----------
    last_seen : mapping of node to Unix second
        Newest tick in which each node that is meant to report did. Nodes that have left, and
        those of finished runs, do not belong here.
    now_s, after_s : seconds
        The time now, and the silence that is too long.
    run_of : mapping of node to run, optional
        What each node trains.
    pulses : mapping of run to Pulse, optional
        Whether training goes on tells a mute node (`node_silent`) from a dead one (`node_crash`).

    Returns
    -------
    One finding per silent node; or, where every one of several nodes is silent, the single finding
    `monitoring_blind`: a whole fleet does not die in the same minute, but its monitoring may.
    """
    quiet = [node for node, seen in last_seen.items() if now_s - seen > after_s]
    if len(quiet) > 1 and len(quiet) == len(last_seen):
        return [_blind(last_seen, now_s=now_s, after_s=after_s)]
    mates: dict[str | None, list[str]] = {}
    for node in sorted(quiet):
        mates.setdefault((run_of or {}).get(node), []).append(node)
    return [
        _silent(
            node,
            last_seen[node],
            _Company(run, tuple(nodes), (pulses or {}).get(run or "")),
            now_s=now_s,
            after_s=after_s,
        )
        for run, nodes in mates.items()
        for node in nodes
    ]


@dataclass(frozen=True, slots=True)
class _Company:
    """The run of a silent node, which of its nodes are silent, and whether it has a pulse."""

    run: str | None
    silent: tuple[str, ...]
    pulse: Pulse | None


def _silent(
    node: str, seen_s: float, company: _Company, *, now_s: float, after_s: float
) -> Finding:
    """Describe one silent node, and whether its run trains on."""
    pulse = company.pulse
    trains_on = None if pulse is None else _trains_on(pulse, seen_s, now_s)
    return Finding(
        rule=SILENT,
        cause=CRASHED if trains_on is False else SILENT,
        severity=RULES[SILENT].severity,
        run=company.run,
        node=node,
        device=None,
        onset_s=float(seen_s),
        score=(now_s - seen_s) / after_s,
        evidence={
            "last_seen_s": float(seen_s),
            "quiet_s": now_s - seen_s,
            "limit_s": after_s,
            "steps_go_on": trains_on,
            "since_last_step_s": now_s - pulse.last_step_at_s if pulse else None,
            "step_s": pulse.step_s if pulse else None,
            "also_silent": [other for other in company.silent if other != node],
        },
    )


def _trains_on(pulse: Pulse, last_seen_s: float, now_s: float) -> bool:
    """Tell whether steps were finished since the node fell silent, or may yet be."""
    patience_s = STEPS_OVERDUE * pulse.step_s
    return pulse.last_step_at_s > last_seen_s + pulse.step_s or (
        now_s - pulse.last_step_at_s <= patience_s
    )


def _blind(last_seen: Mapping[str, int], *, now_s: float, after_s: float) -> Finding:
    """Describe that nobody at all is heard of."""
    newest = max(last_seen.values())
    return Finding(
        rule=BLIND,
        cause="unknown",
        severity=RULES[BLIND].severity,
        run=None,
        node=None,
        device=None,
        onset_s=float(newest),
        score=(now_s - newest) / after_s,
        evidence={
            "n_nodes": len(last_seen),
            "last_seen_s": newest,
            "quiet_s": now_s - newest,
            "limit_s": after_s,
        },
    )
