"""The rules hang, node_silent, monitoring_blind and workers_missing: runs and nodes that stopped.

1. A node is silent once it has missed its reports; if its run stopped with it, it has crashed.
2. A run in a standstill hangs once what its nodes do, or say, has lasted too long.
3. Who crashed, has ended, or does not wait with the others is named.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from telemetry.detect.causes import CLASS_OF, UNKNOWN, phase_of
from telemetry.detect.findings import LEAD_S, Finding, json_number
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.recompile import compiled_lately
from telemetry.detect.rules import RULES
from telemetry.detect.standstill import (
    CHECKPOINT,
    CLOCKS_S,
    COMPILE,
    CORES,
    DEAD_S,
    ENDLESS,
    HEARTBEAT_S,
    HOST,
    LATE,
    LONG_S,
    OTHER,
    STALLED,
    STEP,
    TOGETHER_S,
    WAITING,
    Activities,
    Limit,
    Standstill,
    activities,
    in_contact_since_s,
    lost,
    recent_steps,
    standstill,
    upper_median,
)
from telemetry.statistics.peers import mean
from telemetry.steps import RETURN_S

SILENT, CRASHED, BLIND = "node_silent", "node_crash", "monitoring_blind"
HANG, ENDED, MISSING = "hang", "workers_ended", "workers_missing"
# Without any reporting node, a run has stopped if its next step is this overdue.
OVERDUE = Limit(3.0, 40.0)
# A node misses three reports, and the next one may be late: a restart costs two scrapes, and one
# may fail. Until it is known how often nodes report, they do so as rarely as scrapes.
MISSED_REPORTS, SCRAPED_S = 3.5, 15
# An agent that crashed is back this long before its silence is too long; the reports in which it
# ended and began again do not come.
BACK_BEFORE_S = 4
# Of the most idle nodes, or of missing ranks, so many are listed; of the others that are silent,
# which have findings of their own, fewer.
SHOWN, SHOWN_ALSO = 64, 8


@dataclass(frozen=True, slots=True)
class StepHeartbeat:
    """The newest step of a run, its usual step time, and whether it should make steps.

    Without steps, when its nodes last executed; then ``step_s`` is 0.
    """

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
    known: Collection[str] = (),
    report_every_s: Mapping[str, int] | None = None,
    may_be_quiet_s: Mapping[str, int] | None = None,
    heard_s: Mapping[str, float] | None = None,
    returning_from_s: float | None = None,
) -> list[Finding]:
    """Find nodes that reported before and have not for ``after_s`` seconds.

    ``last_seen`` is the newest tick of each node that is meant to report, ``run_of`` what it
    trains, ``report_every_s`` how often the nodes of a run do (0: not known yet; by default each
    second). ``pulses`` tell a mute node (`node_silent`) from a dead one (`node_crash`) by whether
    its run goes on, and ``heard_s`` by whether workers of the node were heard after it. While a
    silent node works, only its reports are missing, which may last longer (not if it is ``known``,
    by an open alert) and is no page. With ``crashed`` nodes their run stopped, as its other nodes
    show: they need not be waited for, unless there are several: the agent of one may restart.
    ``may_be_quiet_s`` are longer limits of nodes that are scraped, or whose agent was asked to
    end. ``returning_from_s``: a silence of all that began then has just ended; who was heard until
    then may not have had time to be back.

    There is one finding per silent node; or, where every one of several nodes is silent, the
    single finding `monitoring_blind`: a whole fleet does not die in the same minute, but its
    monitoring may.
    """
    run_of, pulses, every_s = run_of or {}, pulses or {}, report_every_s or {}
    # A worker that reported after its node should have outlived the agent. One that is heard of
    # again after a crash is back.
    crashed = {
        node
        for node in crashed
        if node in known
        or not _is_heard(node, last_seen.get(node), every_s.get(run_of.get(node, ""), 1), heard_s)
    }
    n_crashed = Counter(run_of.get(node) for node in crashed)
    quiet, works, returning = {}, set[str](), set[str]()
    for node, seen_s in last_seen.items():
        if now_s - seen_s < after_s and node not in crashed:
            # Nearly always all of thousands of nodes.
            continue
        run = run_of.get(node, "")
        each_s = every_s.get(run, 1) or SCRAPED_S
        around_s, allowed_s = 2 * (each_s - 1), (may_be_quiet_s or {}).get(node, 0)
        limit_s = max(
            after_s, after_s - BACK_BEFORE_S + around_s, MISSED_REPORTS * each_s, allowed_s
        )
        # Other nodes of a run show whether it waits for a silent one: then that is known.
        pulse = pulses.get(run)
        # A step that has begun since its report was due needed the node.
        is_needed = pulse is not None and pulse.last_step_at_s - pulse.step_s > seen_s + each_s
        if node not in crashed and (is_needed or _is_heard(node, seen_s, each_s, heard_s)):
            works.add(node)
        if node in works and node not in known:
            limit_s = max(limit_s, RULES[SILENT].limits["works_s"])
        if node in crashed and n_crashed[run_of.get(node)] == 1:
            limit_s = min(limit_s, TOGETHER_S + each_s)
        if now_s - seen_s >= limit_s:
            quiet[node] = seen_s
        if returning_from_s is not None and seen_s + each_s + TOGETHER_S >= returning_from_s:
            returning.add(node)
    if not quiet:
        return []
    newest_s = max(last_seen.values())
    if len(quiet) < len(last_seen):
        # Where no other node reported much longer, all may be silent: that is known soon.
        quiet = {
            node: at_s
            for node, at_s in quiet.items()
            if newest_s - at_s > TOGETHER_S and node not in returning
        }
        if not quiet:
            return []
    # Monitoring did not fail if nodes fell silent one by one while steps still arrive.
    arrive = any(each.last_step_at_s > newest_s + TOGETHER_S for each in pulses.values())
    is_one = not arrive or newest_s - min(quiet.values()) <= TOGETHER_S
    if len(quiet) == len(last_seen) > 1 and is_one:
        return [_blind(len(quiet), newest_s, now_s=now_s, after_s=after_s)]
    n_nodes = Counter(run_of.get(node) for node in last_seen)
    mates: dict[str | None, list[str]] = {}
    for node in sorted(quiet):
        mates.setdefault(run_of.get(node), []).append(node)
    return [
        _silent(
            node,
            run,
            now_s - quiet[node],
            pulses.get(run or ""),
            now_s=now_s,
            after_s=after_s,
            is_dead=node in crashed,
            works=node in works,
            sees_nobody=len(nodes) == n_nodes[run],
            also=nodes,
        )
        for run, nodes in mates.items()
        for node in nodes
    ]


def are_all_overdue(
    last_seen: Mapping[str, int],
    *,
    now_s: float,
    run_of: Mapping[str, str],
    report_every_s: Mapping[str, int],
) -> bool:
    """Whether no node sends its reports: each is later than chance makes it."""
    return bool(last_seen) and all(
        now_s - seen_s > (report_every_s.get(run_of.get(node, ""), 1) or SCRAPED_S) + TOGETHER_S
        for node, seen_s in last_seen.items()
    )


def _is_heard(
    node: str, seen_s: float | None, each_s: float, heard_s: Mapping[str, float] | None
) -> bool:
    """Whether a worker of the node was heard after the report that the node did not send."""
    heard = (heard_s or {}).get(node)
    return heard is not None and heard > (seen_s or 0) + each_s + CLOCKS_S


def _blind(n_nodes: int, newest_s: int, *, now_s: float, after_s: float) -> Finding:
    quiet_s = now_s - newest_s
    evidence = {"n_nodes": n_nodes, "last_seen_s": newest_s, "quiet_s": quiet_s}
    return Finding(
        rule=BLIND,
        cause=UNKNOWN,
        severity=RULES[BLIND].severity,
        run=None,
        onset_s=float(newest_s),
        score=quiet_s / after_s,
        evidence={**evidence, "limit_s": after_s},
    )


def _silent(
    node: str,
    run: str | None,
    quiet_s: float,
    pulse: StepHeartbeat | None,
    *,
    now_s: float,
    after_s: float,
    is_dead: bool,
    works: bool,
    sees_nobody: bool,
    also: Sequence[str],
) -> Finding:
    """Find one of ``also``, all silent nodes of its run.

    ``sees_nobody``: no node of the run reports, so that only an overdue step shows a death.
    ``works``: only its reports are missing.
    """
    late_s = now_s - pulse.last_step_at_s if pulse is not None and pulse.step_s else None
    if pulse is not None and late_s is not None and sees_nobody and pulse.trains and not works:
        is_dead = is_dead or late_s > OVERDUE.of(pulse.step_s)
    return Finding(
        rule=SILENT,
        cause=CRASHED if is_dead else SILENT,
        # Training goes on without the reports of a node.
        severity="warn" if run is None or works else RULES[SILENT].severity,
        run=run,
        node=node,
        onset_s=now_s - quiet_s,
        score=quiet_s / after_s,
        evidence={
            "last_seen_s": now_s - quiet_s,
            "quiet_s": quiet_s,
            "limit_s": after_s,
            "steps_go_on": None if pulse is None else not is_dead,
            "since_last_step_s": late_s,
            "step_s": pulse.step_s or None if pulse else None,
            "also_silent": [each for each in also[: SHOWN_ALSO + 1] if each != node][:SHOWN_ALSO],
            "n_silent": len(also),
        },
    )


def hang(inputs: DetectionInput) -> list[Finding]:
    """Find a run whose workers wait for one that does not arrive.

    A run whose cores compute, whose hosts compile, read or write, or which is not training, is
    late but not hanging. Nodes that crashed and report again explain the others. Where workers say
    what they do, a compile, a checkpoint or an evaluation ends, whether of all or of one for all.

    References
    ----------
    J. Dong et al., "Boosting Large-scale Parallel Training Efficiency with C4: A Communication-
    Driven Approach", HPCA 2025, arXiv:2406.04594: of workers in one collective, the one that did
    not start it is the cause. Here that shows in hosts and cores instead of the library's logs.
    """
    stall = standstill(inputs)
    if stall is None or (_is_returning(inputs) and not _is_known(inputs, stall)):
        return []
    said = activities(inputs, stall.since_s)
    # Workers without an agent are forgotten in time; who died before that did not recover.
    unheard = _crashed(inputs) - set(said.doing if said else ())
    dead = _rows(stall, unheard | set(said.dead if said else ()))
    if dead and stall.is_unobserved:
        return [_finding(inputs, stall, dead, cause=CRASHED)]
    if not lost(stall) and _all_ended(inputs, stall):
        return [replace(_finding(inputs, stall, (), cause=ENDED), severity="warn")]
    if said is not None and not said.dead and _ends(inputs, stall, said):
        return []
    if said is not None and (said.common == STEP or said.dead) and stall.is_unobserved:
        return _of_workers(inputs, stall, said)
    return _of_hardware(inputs, stall)


def _ends(inputs: DetectionInput, stall: Standstill, said: Activities) -> bool:
    """Whether what workers say that they do ends, or is the matter of another rule."""
    # All may wait for one. An endless checkpoint is a slow one, a compile is a recompile.
    if not {COMPILE, CHECKPOINT}.isdisjoint(said.doing.values()):
        return True
    may_end = said.common != STEP or OTHER in said.doing.values()
    return may_end and not _is_endless(inputs, stall)


def _is_returning(inputs: DetectionInput) -> bool:
    """Whether some workers may not have had time to be heard again after a silence of all."""
    if inputs.workers is None:
        return False
    return inputs.now_s <= in_contact_since_s(inputs.workers().values()) + RETURN_S


def _all_ended(inputs: DetectionInput, stall: Standstill) -> bool:
    """Whether all of several workers stopped at once: none of them sends heartbeats any more.

    Workers that hang go on sending them. The last of each came within one interval of the others.
    Where most nodes have busy cores, it is only the reports that do not arrive.
    """
    if 2 * np.count_nonzero(stall.works | stall.spins) > len(stall.nodes):
        return False
    states = list(inputs.workers().values()) if inputs.workers is not None else []
    heard_s = [state.heard_s for state in states if state.since_s]
    if len(heard_s) < max(2, len(states)):
        return False
    is_together = max(heard_s) - min(heard_s) <= HEARTBEAT_S
    return is_together and inputs.now_s - max(heard_s) > DEAD_S


def _of_workers(inputs: DetectionInput, stall: Standstill, said: Activities) -> list[Finding]:
    """Judge workers that say that they wait within their step: for one that does not, if any."""
    if said.lasts_s(said.common, inputs.now_s) <= WAITING.of(stall.step_s):
        return []
    away = _rows(stall, [node for node in said.doing if said.is_away(node)]) or stall.absent
    is_late = bool(away) or stall.overdue_s > _slow_step_s(inputs)
    return [_finding(inputs, stall, away, cause=HANG)] if is_late else []


def _of_hardware(inputs: DetectionInput, stall: Standstill) -> list[Finding]:
    """Judge a standstill by what hosts and cores do."""
    is_endless = _is_endless(inputs, stall)
    # Cores fully busy for this long cannot be one long step. Without HBM bandwidth, waiting
    # cores can look the same.
    if stall.works.any() and not (stall.is_full and is_endless):
        return []
    # The time limit for a step counts from the end of a compilation.
    within_s = WAITING.of(stall.step_s)
    if not stall.spins.any() and compiled_lately(inputs, stall.nodes, within_s=within_s):
        return []
    # What a node that reports again measured arrives one report later.
    if crashed := _crashed(inputs) & {*stall.silent, *stall.back}:
        return [_crash(inputs, stall, node) for node in sorted(crashed)]
    busy = np.flatnonzero(stall.compiles | stall.loads)
    are_few = 2 * busy.size < len(stall.nodes)
    # No step ended since the alert fired: that a few hosts have other work to do ends no hang.
    is_known = are_few and _is_known(inputs, stall)
    if busy.size and not stall.works.any() and not is_known:
        # A host prepares the step, or writes the last one. That ends, or it is a hang.
        is_hang = is_endless and are_few
        return [_finding(inputs, stall, tuple(busy.tolist()))] if is_hang else []
    if stall.back and not lost(stall):
        # Else one of those that are still silent stopped it, or may have.
        return [] if _misses_one(inputs, stall) else [_crash(inputs, stall, n) for n in stall.back]
    # A node that fell silent with the run has its own finding, which explains this one.
    is_hang = not lost(stall) and (is_known or _waits_long(inputs, stall))
    is_late = is_known or stall.exceeds(STALLED)
    is_named = bool(stall.absent) and is_late and not stall.is_unobserved
    return [_finding(inputs, stall, stall.absent)] if is_named or is_hang else []


def _waits_long(inputs: DetectionInput, stall: Standstill) -> bool:
    seconds = WAITING.seconds
    if stall.is_unobserved:
        # Without an agent a checkpoint that is slow to write looks the same: the limit of one
        # and once more, within the patience of the rule three times over.
        slow_s = (inputs.limit("checkpoint_slow", "slower_by_ratio") + 1) * (
            inputs.checkpoint_s or 0.0
        )
        seconds += min(slow_s, 3 * seconds)
    return stall.exceeds(WAITING, least_s=max(seconds, _slow_step_s(inputs)))


def _misses_one(inputs: DetectionInput, stall: Standstill) -> bool:
    """Whether the two newest reports of a node have not come: it is not yet called silent."""
    nodes = (*stall.nodes, *stall.silent)
    newest = inputs.hardware((HOST,), 2 * inputs.report_every_s + 1).of(nodes)
    return bool((~newest.reported.any(axis=0)).any())


def _is_endless(inputs: DetectionInput, stall: Standstill) -> bool:
    """Whether what ends in time did not. An alert about a slow checkpoint covers that."""
    is_known = any(phase_of(alert.cause) == "checkpoint_s" for alert in inputs.open_problems)
    # The alert about a slow checkpoint comes first.
    slow_ratio = inputs.limit("checkpoint_slow", "slower_by_ratio")
    return not is_known and stall.exceeds(
        ENDLESS, least_s=(slow_ratio + 1.0) * (inputs.checkpoint_s or 0.0)
    )


def _is_known(inputs: DetectionInput, stall: Standstill) -> bool:
    """Whether an alert about this standstill is open, and not that all workers ended."""
    since_s = [
        each.evidence.get("since_s")
        for each in inputs.open_problems
        if each.rule == HANG and each.cause != ENDED
    ]
    return any(each is not None and abs(each - stall.since_s) < 1.0 for each in since_s)


def _rows(stall: Standstill, nodes: Collection[str]) -> tuple[int, ...]:
    return tuple(row for row, node in enumerate(stall.nodes) if node in nodes)


def crashed_nodes(inputs: DetectionInput) -> set[str]:
    """Nodes that fell silent when the run stopped while their peers wait.

    An open alert preserves this: a restarting run no longer shows it.
    """
    stall = standstill(inputs)
    if stall is None or not stall.waits.all() or stall.absent:
        return _crashed(inputs)
    return _crashed(inputs) | lost(stall)


def _crashed(inputs: DetectionInput) -> set[str]:
    """Nodes with an open alert about their crash."""
    return {alert.node for alert in inputs.open_problems if alert.cause == CRASHED and alert.node}


def _slow_step_s(inputs: DetectionInput) -> float:
    """How long a step may take whose workers are all in the collective: seconds.

    It may be as slow as the last one. While an alert names slow links it may take very long, and
    that alert covers it. A worker that is not in the collective needs no such patience.
    """
    network = CLASS_OF["efa_loss"]
    if any(CLASS_OF.get(each.cause, each.cause) == network for each in inputs.open_problems):
        return LONG_S
    newest = recent_steps(inputs).last(1)
    if not len(newest):
        return 0.0
    # A checkpoint, an evaluation or a pause belongs to no pace.
    other_s = np.nan_to_num(newest.sum_phases(("checkpoint_s", "other_s")))
    return min(LATE.steps * float(mean(newest.worker_step_s - other_s, 1)[0]), LONG_S)


def _finding(
    inputs: DetectionInput,
    stall: Standstill,
    absent: tuple[int, ...],
    *,
    cause: str | None = None,
) -> Finding:
    away = [stall.nodes[row] for row in absent]
    node, hosts = (away[0] if away else None), stall.hosts
    culprit = None
    if node and np.isfinite(hosts).all():
        # The most idle absent node, compared with the waiting ones.
        peers = np.delete(hosts, absent)
        culprit = {
            "metric": HOST,
            "value": float(hosts[absent[0]]),
            "peers_median": upper_median(peers) if peers.size else None,
            "n_peers": int(peers.size),
            "unit": "ratio",
        }
    shown = sorted(np.argsort(hosts, kind="stable")[:SHOWN].tolist())
    evidence: dict[str, Any] = {
        "since_s": stall.since_s,
        "overdue_s": stall.overdue_s,
        "limit_s": stall.limit_s,
        "usual_step_s": json_number(stall.step_s),
        "culprit": culprit,
        "not_joined": away,
        "not_heard_of": list(stall.silent),
        "host_by_node": {stall.nodes[i]: float(hosts[i]) for i in shown if np.isfinite(hosts[i])},
        "window": [stall.since_s - LEAD_S, inputs.now_s],
        "charts": [{"metric": m, "node": node, "device": None} for m in (CORES, HOST) if node],
    }
    return Finding(
        rule=HANG,
        cause=cause or (HANG if node else UNKNOWN),
        severity=RULES[HANG].severity,
        run=inputs.run,
        node=node,
        onset_s=stall.since_s,
        score=stall.overdue_s / stall.limit_s,
        victims=tuple(name for name in stall.nodes if name not in away),
        evidence=evidence,
    )


def _crash(inputs: DetectionInput, stall: Standstill, node: str) -> Finding:
    """Return a node that was silent for a while and reports again: its worker is lost."""
    pulse = StepHeartbeat(stall.since_s, stall.step_s)
    found = _silent(
        node,
        inputs.run,
        stall.overdue_s,
        pulse,
        now_s=stall.since_s + stall.overdue_s,
        after_s=stall.limit_s,
        is_dead=True,
        works=False,
        sees_nobody=False,
        also=sorted({node, *stall.silent}),
    )
    victims = tuple(name for name in stall.nodes if name != node)
    step_s = json_number(stall.step_s)
    return replace(found, victims=victims, evidence={**found.evidence, "step_s": step_s})


def missing_workers(inputs: DetectionInput) -> list[Finding]:
    """Find workers of a run without steps that have not arrived, long after the first one.

    Another one was heard so long after: while no worker is heard, nothing is known.
    """
    # From its first report to its first step a run compiles.
    if inputs.workers is None or inputs.phase != "compiling":
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
    evidence = {
        "n_missing": n_missing,
        "n_workers": n_workers,
        # Where not every worker reports its rank, the missing ones are unknown.
        "missing_ranks": ranks[:SHOWN] if len(ranks) == n_missing else [],
        "since_s": since_s,
        "window": [since_s - LEAD_S, inputs.now_s],
        "charts": [],
    }
    return [
        Finding(
            rule=MISSING,
            cause=MISSING,
            severity=RULES[MISSING].severity,
            run=inputs.run,
            onset_s=since_s,
            score=waited_s / limit_s,
            evidence=evidence,
        )
    ]
