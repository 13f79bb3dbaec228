"""The rules hang, node_silent and monitoring_blind: runs and nodes that stopped."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from telemetry.detect.causes import CLASS_OF, UNKNOWN, phase_of
from telemetry.detect.findings import LEAD_S, Finding, json_number
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.recompile import CERTAIN_S, compiled_lately
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import (
    CHECKPOINT,
    COMPILE,
    CORES,
    DEAD_S,
    HEARTBEAT_S,
    HOST,
    LATE_STEPS,
    LONG_S,
    SPINNING,
    STEP,
    TOGETHER_S,
    Activities,
    Standstill,
    activities,
    lost,
    recent_steps,
    standstill,
    upper_median,
)
from telemetry.statistics.peers import mean

SILENT = "node_silent"
CRASHED = "node_crash"
ENDED = "workers_ended"
BLIND = "monitoring_blind"
MISSING = "workers_missing"
# Without any reporting node, a run has stopped if its next step is this overdue.
STEPS_OVERDUE, OVERDUE_S = 3.0, 40.0
# A node misses three reports, and the next one may be late: a restart costs two scrapes, and one
# may fail. Until it is known how often nodes report, they do so rarely.
MISSED_REPORTS, SLOWEST_S = 3.5, 15
# An agent that crashed is back this long before its silence is too long; the reports in which it
# ended and began again do not come.
BACK_BEFORE_S = 4.0


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
        need not be waited for, unless there are several: the agent of one may restart.
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
    n_crashed = Counter(run_of.get(node) for node in known)
    quiet = {}
    for node, seen in last_seen.items():
        if now - seen < after_s and node not in known:
            continue
        own_run = run_of.get(node, "")
        each_s = every_s.get(own_run, 1) or SLOWEST_S
        back_s = after_s - BACK_BEFORE_S + 2 * (each_s - 1)
        allowed_s = (may_be_quiet_s or {}).get(node, 0)
        missed_s = MISSED_REPORTS * each_s if each_s >= SLOWEST_S else 0.0
        limit_s = max(after_s, back_s, missed_s, allowed_s)
        is_sure = node in known and n_crashed[run_of.get(node)] == 1
        if now - seen >= limit_s or (is_sure and now - seen > TOGETHER_S + each_s - 1):
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


HANG = "hang"
# Without an outlier, or while a host reads or writes, wait for this many steps and seconds.
PATIENCE_STEPS = RULES[HANG].limits["patience_steps"]
PATIENCE_S = RULES[HANG].limits["patience_s"]
LONG_STEPS = 20.0
# Where only workers say what they do, a step of a batch three times as large looks the same.
LARGER_BATCH_STEPS = PATIENCE_STEPS + 1.0
NETWORK = CLASS_OF["efa_loss"]
# A single worker that ends is no coincidence to be explained.
SEVERAL = 2
# The phase of a run from its first report to its first step.
COMPILING_PHASE = "compiling"
# Of the most idle nodes, or of missing ranks, so many are listed.
SHOWN = 64
# Without an agent, wait for this many checkpoints besides, at most so long.
CHECKPOINTS, CHECKPOINTS_S = 4.0, 90.0


def hang(inputs: DetectionInput) -> list[Finding]:
    """Find a run whose workers wait for one that does not arrive.

    A run whose cores compute, whose hosts compile, read or write, or which is not training, is
    late but not hanging. Nodes that crashed and report again explain the others.

    References
    ----------
    J. Dong et al., "Boosting Large-scale Parallel Training Efficiency with C4: A Communication-
    Driven Approach", HPCA 2025, arXiv:2406.04594: of workers in one collective, the one that did
    not start it is the cause. Here that shows in hosts and cores instead of the library's logs.
    """
    stall = standstill(inputs)
    if stall is None:
        return []
    said = activities(inputs, stall.since_s)
    dead = _rows(stall, _crashed(inputs) - set(said.doing if said else ()))
    if dead and np.isnan(stall.hosts).all():
        # Workers without an agent are forgotten in time; who died before that did not recover.
        return [_finding(inputs, stall, dead, cause=CRASHED)]
    if not lost(stall) and _all_ended(inputs):
        return [replace(_finding(inputs, stall, (), cause=ENDED), severity="warn")]
    found = None if said is None else _by_activity(inputs, stall, said)
    return _by_hardware(inputs, stall) if found is None else found


def _all_ended(inputs: DetectionInput) -> bool:
    """Whether all workers stopped at once: none of them sends heartbeats any more.

    Workers that hang go on sending them. The last of each came within one interval of the others.
    """
    states = list(inputs.workers().values()) if inputs.workers is not None else []
    heard_s = [state.heard_s for state in states if state.since_s]
    if len(heard_s) < len(states) or len(heard_s) < SEVERAL:
        return False
    is_together = max(heard_s) - min(heard_s) <= HEARTBEAT_S
    return is_together and inputs.now_s - max(heard_s) > DEAD_S


def missing_workers(inputs: DetectionInput) -> list[Finding]:
    """Find workers of a run without steps that have not arrived, long after the first one.

    Another one was heard so long after: while no worker is heard, nothing is known.
    """
    if inputs.workers is None or inputs.phase != COMPILING_PHASE:
        return []
    states = list(inputs.workers().values())
    n_workers = max((state.n_workers for state in states), default=0)
    n_missing = n_workers - len(states)
    if n_missing <= 0:
        return []
    since_s = states[0].began_s
    waited_s = max(state.heard_s for state in states) - since_s
    limit_s = RULES[MISSING].limits["arrive_s"]
    if not waited_s > limit_s:
        return []
    ranks = sorted(set(range(n_workers)) - {state.rank for state in states})
    return [
        Finding(
            rule=MISSING,
            cause=MISSING,
            severity=RULES[MISSING].severity,
            run=inputs.run,
            onset_s=since_s,
            score=waited_s / limit_s,
            evidence={
                "n_missing": n_missing,
                "n_workers": n_workers,
                # Where not every worker reports its rank, the missing ones are unknown.
                "missing_ranks": ranks[:SHOWN] if len(ranks) == n_missing else [],
                "since_s": since_s,
                "window": [since_s - LEAD_S, inputs.now_s],
                "charts": [],
            },
        )
    ]


def _by_hardware(inputs: DetectionInput, stall: Standstill) -> list[Finding]:
    """Judge a standstill by what hosts and cores do."""
    # Cores fully busy for this long cannot be one long step. Without HBM bandwidth, waiting
    # cores can look the same.
    is_full = bool(stall.peak.max() >= SPINNING)
    if stall.works.any() and not (is_full and _is_endless(inputs, stall)):
        return []
    # The time limit for a step counts from the end of a compilation.
    patience_s = max(PATIENCE_S, PATIENCE_STEPS * float(np.nan_to_num(stall.step_s)))
    is_long = stall.overdue_s > CERTAIN_S and not stall.spins.any()
    if is_long and compiled_lately(inputs, stall.nodes, within_s=patience_s):
        return []
    # What a node that reports again measured arrives one report later.
    if crashed := _crashed(inputs) & {*stall.silent, *stall.back}:
        return [_crash(inputs, stall, node) for node in sorted(crashed)]
    busy = np.flatnonzero(stall.compiles | stall.loads)
    # No step ended since the alert fired: that a few hosts have other work to do ends no hang.
    is_known = _is_known(inputs, stall) and 2 * busy.size < len(stall.nodes)
    if busy.size and not stall.works.any() and not is_known:
        # A host prepares the step, or writes the last one. That ends, or it is a hang.
        is_endless = _is_endless(inputs, stall) and 2 * busy.size < len(stall.nodes)
        return [_finding(inputs, stall, tuple(busy.tolist()))] if is_endless else []
    if stall.back and not lost(stall):
        # Else one of those that are still silent stopped it, or may have.
        return [] if _misses_one(inputs, stall) else [_crash(inputs, stall, n) for n in stall.back]
    is_unobserved = bool(np.isnan(stall.hosts).all())
    seconds = PATIENCE_S
    if is_unobserved:
        # Without an agent a checkpoint that is slow to write looks the same.
        seconds += min(CHECKPOINTS * (inputs.checkpoint_s or 0.0), CHECKPOINTS_S)
    is_late = _lasts(stall, PATIENCE_STEPS, max(seconds, _slow_step_s(inputs)))
    # A node that fell silent with the run has its own finding, which explains this one.
    is_hang = not lost(stall) and (is_known or is_late)
    is_named = bool(stall.absent) and not is_unobserved
    return [_finding(inputs, stall, stall.absent)] if is_named or is_hang else []


def _misses_one(inputs: DetectionInput, stall: Standstill) -> bool:
    """Whether the two newest reports of a node have not come: it is not yet called silent."""
    nodes = (*stall.nodes, *stall.silent)
    newest = inputs.hardware((HOST,), 2 * inputs.report_every_s + 1).of(nodes)
    return bool((~newest.reported.any(axis=0)).any())


def _by_activity(
    inputs: DetectionInput, stall: Standstill, said: Activities
) -> list[Finding] | None:
    """Judge a standstill by what the workers say; None where hardware knows more.

    Who died sends no heartbeat. All others wait within their step, for a worker that does
    something else, or for one that says the same. A compile, a checkpoint or an evaluation ends.
    """
    # An endless checkpoint is a slow one.
    is_endless = said.common not in {COMPILE, CHECKPOINT} and _is_endless(inputs, stall)
    is_unobserved = bool(np.isnan(stall.hosts).all())
    dead = _rows(stall, said.dead)
    if dead and is_unobserved:
        return [_finding(inputs, stall, dead, cause=CRASHED)]
    if said.common != STEP and not dead:
        return None if is_endless else []
    if not is_unobserved:
        return None
    patience_s = max(PATIENCE_S, LARGER_BATCH_STEPS * float(np.nan_to_num(stall.step_s)))
    if said.lasts_s(inputs.now_s) <= patience_s:
        return []
    away = _rows(stall, [node for node in said.doing if said.is_away(node)])
    if not away and not stall.absent and not _lasts(stall, 0.0, _slow_step_s(inputs)):
        return []
    return [_finding(inputs, stall, away or stall.absent, cause=HANG)]


def _is_endless(inputs: DetectionInput, stall: Standstill) -> bool:
    """Whether what ends in time did not. An alert about a slow checkpoint covers that."""
    is_known = any(phase_of(alert.cause) == "checkpoint_s" for alert in inputs.open_problems)
    # The alert about a slow checkpoint comes first.
    slow_ratio = inputs.limit("checkpoint_slow", "slower_by_ratio")
    long_s = max(LONG_S, (slow_ratio + 1.0) * (inputs.checkpoint_s or 0.0))
    return not is_known and _lasts(stall, LONG_STEPS, long_s)


def _is_known(inputs: DetectionInput, stall: Standstill) -> bool:
    """Whether an alert about this standstill is open."""
    since_s = [each.evidence.get("since_s") for each in inputs.open_problems if each.rule == HANG]
    return any(each is not None and abs(each - stall.since_s) < 1.0 for each in since_s)


def _rows(stall: Standstill, nodes: Collection[str]) -> tuple[int, ...]:
    return tuple(row for row, node in enumerate(stall.nodes) if node in nodes)


def crashed_nodes(inputs: DetectionInput) -> set[str]:
    """Nodes that fell silent when the run stopped while their peers wait.

    An open alert preserves this: a restarting run no longer shows it.
    """
    dead = _crashed(inputs)
    stall = standstill(inputs)
    if stall is None or not stall.waits.all() or stall.absent:
        return dead
    return dead | lost(stall)


def _crashed(inputs: DetectionInput) -> set[str]:
    """Nodes with an open alert about their crash."""
    return {alert.node for alert in inputs.open_problems if alert.cause == CRASHED and alert.node}


def _slow_step_s(inputs: DetectionInput) -> float:
    """How long a step may take whose workers are all in the collective: seconds.

    It may be as slow as the last one. While an alert names slow links it may take very long, and
    that alert covers it. A worker that is not in the collective needs no such patience.
    """
    if any(CLASS_OF.get(each.cause, each.cause) == NETWORK for each in inputs.open_problems):
        return LONG_S
    newest = recent_steps(inputs).last(1)
    if not len(newest):
        return 0.0
    # A checkpoint, an evaluation or a pause belongs to no pace.
    other_s = np.nan_to_num(newest.sum_phases(("checkpoint_s", "other_s")))
    return min(LATE_STEPS * float(mean(newest.worker_step_s - other_s, 1)[0]), LONG_S)


def _lasts(stall: Standstill, steps: float, seconds: float) -> bool:
    return bool(stall.overdue_s > max(seconds, steps * np.nan_to_num(stall.step_s)))


def _finding(
    inputs: DetectionInput,
    stall: Standstill,
    absent: tuple[int, ...],
    *,
    cause: str | None = None,
) -> Finding:
    away = [stall.nodes[row] for row in absent]
    node = away[0] if away else None
    return Finding(
        rule=HANG,
        cause=cause or (HANG if node else UNKNOWN),
        severity=RULES[HANG].severity,
        run=inputs.run,
        node=node,
        onset_s=stall.since_s,
        score=stall.overdue_s / stall.limit_s,
        victims=tuple(name for name in stall.nodes if name not in away),
        evidence=_evidence(inputs, stall, absent),
    )


def _evidence(
    inputs: DetectionInput, stall: Standstill, absent: tuple[int, ...]
) -> dict[str, Any]:
    worst, peers = stall.nodes[absent[0]] if absent else None, np.delete(stall.hosts, absent)
    culprit = None
    if absent and np.isfinite(stall.hosts).all():
        # The most idle absent node, compared with the waiting ones.
        culprit = {
            "metric": HOST,
            "value": float(stall.hosts[absent[0]]),
            "peers_median": upper_median(peers) if peers.size else None,
            "n_peers": int(peers.size),
            "unit": "ratio",
        }
    shown = sorted(np.argsort(stall.hosts, kind="stable")[:SHOWN].tolist())
    return {
        "since_s": stall.since_s,
        "overdue_s": stall.overdue_s,
        "limit_s": stall.limit_s,
        "usual_step_s": json_number(stall.step_s),
        "culprit": culprit,
        "not_joined": [stall.nodes[row] for row in absent],
        "not_heard_of": list(stall.silent),
        "host_by_node": {
            stall.nodes[i]: float(stall.hosts[i]) for i in shown if np.isfinite(stall.hosts[i])
        },
        "window": [stall.since_s - LEAD_S, inputs.now_s],
        "charts": [{"metric": m, "node": worst, "device": None} for m in (CORES, HOST) if worst],
    }


def _crash(inputs: DetectionInput, stall: Standstill, node: str) -> Finding:
    """Return a node that was silent for a while and reports again: its worker is lost."""
    return Finding(
        rule=SILENT,
        cause=CRASHED,
        severity=RULES[SILENT].severity,
        run=inputs.run,
        node=node,
        onset_s=stall.since_s,
        score=stall.overdue_s / stall.limit_s,
        victims=tuple(name for name in stall.nodes if name != node),
        evidence={
            "last_seen_s": stall.since_s,
            "quiet_s": stall.overdue_s,
            "limit_s": stall.limit_s,
            "steps_go_on": False,
            "since_last_step_s": stall.overdue_s,
            "step_s": json_number(stall.step_s),
            "also_silent": [name for name in stall.silent if name != node],
        },
    )
