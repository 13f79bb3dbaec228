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
    last_seen : node -> Unix second
        Newest tick in which each node that is meant to report did. Nodes that have left, and
        those of finished runs, do not belong here.
    run_of : node -> run, optional
        What each node trains.
    pulses : run -> Pulse, optional
        Whether training goes on tells a mute node (`node_silent`) from a dead one (`node_crash`).

    Returns
    -------
    One finding per silent node; or, where every one of several nodes is silent, the single finding
    `monitoring_blind`: a whole fleet does not die in the same minute, but its monitoring may.
    """
    quiet = {node: now_s - seen for node, seen in last_seen.items() if now_s - seen > after_s}
    if len(quiet) > 1 and len(quiet) == len(last_seen):
        return [_blind(last_seen, now_s=now_s, after_s=after_s)]
    runs = run_of or {}
    beats = pulses or {}
    mates: dict[str | None, list[str]] = {}
    for node in quiet:
        mates.setdefault(runs.get(node), []).append(node)
    return [
        _silent(node, last_seen, mates[runs.get(node)], runs.get(node), beats, now_s, after_s)
        for node in sorted(quiet)
    ]


def _silent(
    node: str,
    last_seen: Mapping[str, int],
    mates: list[str],
    run: str | None,
    pulses: Mapping[str, Pulse],
    now_s: float,
    after_s: float,
) -> Finding:
    """Describe one silent node, and whether its run trains on."""
    pulse = pulses.get(run) if run else None
    overdue_s = now_s - pulse.last_step_at_s if pulse else None
    trains_on = None if pulse is None else _trains_on(pulse, last_seen[node], now_s)
    together = [other for other in mates if other != node] if run else []
    return Finding(
        rule=SILENT,
        cause=CRASHED if trains_on is False else SILENT,
        severity=RULES[SILENT].severity,
        run=run,
        node=node,
        device=None,
        onset_s=float(last_seen[node]),
        score=(now_s - last_seen[node]) / after_s,
        evidence={
            "last_seen_s": last_seen[node],
            "quiet_s": now_s - last_seen[node],
            "limit_s": after_s,
            "run_trains_on": trains_on,
            "since_last_step_s": overdue_s,
            "step_s": pulse.step_s if pulse else None,
            "also_silent": sorted(together),
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
