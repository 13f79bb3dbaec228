"""The rules node_silent and monitoring_blind: nodes that stopped reporting."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from telemetry.detect.findings import Finding
from telemetry.detect.rules import RULES

SILENT = "node_silent"
CRASHED = "node_crash"
BLIND = "monitoring_blind"
# Without any reporting node, a run has stopped if its next step is this overdue.
STEPS_OVERDUE, OVERDUE_S = 3.0, 40.0
# Within these seconds, nodes fell silent together.
TOGETHER_S = 5.0
# A node misses this many reports; until it is known how often nodes report, rarely.
MISSED_REPORTS, SLOWEST_S = 3, 15


@dataclass(frozen=True, slots=True)
class StepHeartbeat:
    """The newest step of a run, its usual step time, and whether it should make steps."""

    last_step_at_s: float
    step_s: float
    trains: bool = True


def find_silent(
    last_seen: Mapping[str, int],
    *,
    now_s: float,
    after_s: float = RULES[SILENT].limits["quiet_s"],
    run_of: Mapping[str, str] | None = None,
    pulses: Mapping[str, StepHeartbeat] | None = None,
    crashed: Collection[str] = (),
    report_every_s: Mapping[str, int] | None = None,
    may_be_quiet_s: Mapping[str, int] | None = None,
) -> list[Finding]:
    """Find nodes that reported before and have not for ``after_s`` seconds.

    Parameters
    ----------
    last_seen : mapping of node to Unix second
        Newest tick in which each node that is meant to report did. Nodes that have left, and
        those of finished runs, do not belong here.
    now_s, after_s : seconds
        The time now, and how long a silence is too long. An agent that crashed is back sooner.
    run_of : mapping of node to run, optional
        What each node trains.
    pulses : mapping of run to StepHeartbeat, optional
        Whether training goes on tells a mute node (`node_silent`) from a dead one (`node_crash`).
    crashed : nodes
        Those with which their run stopped, as its other nodes show: they are dead, not mute, and
        need not be waited for.
    report_every_s : mapping of run to seconds, optional
        How often the nodes of a run report, 0 where not known yet; a run that is not listed:
        every second.
    may_be_quiet_s : mapping of node to seconds, optional
        Longer limits of nodes that are scraped less often, or whose agent was asked to end.

    Returns
    -------
    One finding per silent node; or, where every one of several nodes is silent, the single finding
    `monitoring_blind`: a whole fleet does not die in the same minute, but its monitoring may.
    """
    known, now = set(crashed), float(now_s)
    run_of, every_s = run_of or {}, report_every_s or {}
    # Other nodes of a run show whether it waits for a silent one: then that is known.
    n_nodes = Counter(run_of.get(node) for node in last_seen)
    quiet = {}
    for node, seen in last_seen.items():
        if now - seen < after_s and node not in known:
            continue
        own_run = run_of.get(node, "")
        each_s = every_s.get(own_run, 1) or SLOWEST_S
        # The report that an agent was making when it crashed does not come; one more may be lost,
        # and a scrape arrives some seconds late.
        limit_s = max(
            after_s + each_s - 1, MISSED_REPORTS * each_s, (may_be_quiet_s or {}).get(node, 0)
        )
        if now - seen >= limit_s or (node in known and now - seen > TOGETHER_S + each_s - 1):
            quiet[node] = seen
    if not quiet:
        return []
    if len(quiet) == len(last_seen) > 1:
        newest = max(last_seen.values())
        arrive = any(each.last_step_at_s > newest + TOGETHER_S for each in (pulses or {}).values())
        # Monitoring did not fail if nodes fell silent one by one while steps still arrive.
        if not arrive or newest - min(quiet.values()) <= TOGETHER_S:
            finding = Finding(
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
            return [finding]
    mates: dict[str | None, list[str]] = {}
    for node in sorted(quiet):
        mates.setdefault(run_of.get(node), []).append(node)
    found = []
    for run, nodes in mates.items():
        sees_nobody = len(nodes) == n_nodes[run]
        company = _RunState(run, tuple(nodes), (pulses or {}).get(run or ""), sees_nobody, known)
        found += [
            _silent(node, quiet[node], company, now_s=now_s, after_s=after_s) for node in nodes
        ]
    return found


@dataclass(frozen=True, slots=True)
class _RunState:
    """The run of a silent node.

    ``sees_nobody``: no node of the run reports. ``crashed``: nodes known to have crashed.
    """

    run: str | None
    silent: tuple[str, ...]
    pulse: StepHeartbeat | None
    sees_nobody: bool
    crashed: Collection[str]

    def is_dead(self, node: str, *, now_s: float) -> bool:
        """Whether a silent node has crashed: its run stopped with it.

        Its peers are the best evidence. Without any, a long overdue step decides.
        """
        if node in self.crashed:
            return True
        pulse = self.pulse
        if not self.sees_nobody or pulse is None or not pulse.trains:
            return False
        return now_s - pulse.last_step_at_s > max(OVERDUE_S, STEPS_OVERDUE * pulse.step_s)


def _silent(
    node: str, seen_s: float, company: _RunState, *, now_s: float, after_s: float
) -> Finding:
    pulse = company.pulse
    is_dead = company.is_dead(node, now_s=now_s)
    return Finding(
        rule=SILENT,
        cause=CRASHED if is_dead else SILENT,
        # A node without a run does not justify a page.
        severity="warn" if company.run is None else RULES[SILENT].severity,
        run=company.run,
        node=node,
        device=None,
        onset_s=float(seen_s),
        score=(now_s - seen_s) / after_s,
        evidence={
            "last_seen_s": float(seen_s),
            "quiet_s": now_s - seen_s,
            "limit_s": after_s,
            "steps_go_on": None if pulse is None else not is_dead,
            "since_last_step_s": now_s - pulse.last_step_at_s if pulse else None,
            "step_s": pulse.step_s if pulse else None,
            "also_silent": [other for other in company.silent if other != node],
        },
    )
