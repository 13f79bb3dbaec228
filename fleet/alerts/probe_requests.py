"""Ask agents for one EFA probe on suspicion, and let the answers name a slow EFA device.

An alert that accuses a node asks that node and a peer, and shows their answers. One that accuses
none asks every node of its run: a slow EFA device that stands out, and does again when it is
asked again, is then named. Only the operator's setting ``TRNWATCH_REQUEST_PROBES`` allows it, and
an agent runs nothing but its own probe command.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Literal, Protocol

import numpy as np
from django.db import transaction
from django.db.models import QuerySet

from fleet.alerts.correlation import Group, findings_of
from fleet.alerts.events import Kind, change, note, summary
from fleet.alerts.relations import Subject, key_of_finding
from fleet.formatting import counted, listed, seconds
from fleet.models import Alert, Node, ProbeRequest
from fleet.runs.agent_requests import LiveAgents, is_allowed
from telemetry.blocks import FloatArray
from telemetry.detect import RULES, Finding, names_of
from telemetry.detect.causes import CLASSES, SIGNATURES, UNKNOWN, kind_of
from telemetry.detect.findings import CauseScore, Problem
from telemetry.evidence.noise import BoolArray
from telemetry.statistics.peers import lower_median
from telemetry.store.hot import HotStore

# The rules whose alerts say that steps are longer.
SLOW_RUN = names_of(lambda rule: rule.is_slow_run)
# Causes that telemetry cannot separate further.
WEAK = (*CLASSES, UNKNOWN)
MAX_SUSPECTS = 3
# At most this many requests in QUIET, in the whole fleet; one alert asks so many nodes of a run.
MAX_REQUESTS, QUIET, MAX_OF_RUN = 128, timedelta(minutes=10), 64
# Other alerts do not ask a node within this time.
NODE_QUIET = timedelta(minutes=3)
# Where steps lose time to what is no slow EFA device.
NOT_TRANSFERRING = ("waiting", "input", "checkpoint")
# Least number of devices, and share of the nodes asked, that must answer; at least two nodes.
ENOUGH_DEVICES, ENOUGH_RATIO = 4, 0.5
# Asked again by no less than an agent allows between two requests, with this many peers.
AGAIN_AFTER, N_PEERS = timedelta(seconds=16), 2
# Without earlier probes, a device is accused from this ratio to the run's usual latency on, and to
# that of its own node: a node of which all devices are late may just be far from the others, since
# nodes in other racks answer up to 1.5 times later.
BLATANT_RATIO, FAR_RATIO = RULES["efa_degraded"].limits["blatant_latency_ratio"], 2.0
LATENCY, MOST = "efa_latency_s", 0.5
# Evidence of an alert whose node was named by requested probes.
PROBED, PLACED = "probe", "efa_latency"
CHANGED_EVIDENCE = ("culprit", "symptoms", "causes")
# Causes that leave the latency of EFA unchanged.
LEAVE_LATENCY = frozenset(row.name for row in SIGNATURES if row.sign("latency") == 0)

# Seconds by EFA device: by its name as answered, or by its number.
Answer = Mapping[str, float]
Latencies = Mapping[int, float]


class Agents(Protocol):
    """What agents last sent along, and requests to them; see `LiveAgents`."""

    def read(self, kind: Literal["efa", "agent"], nodes: Collection[str]) -> Mapping[str, Any]: ...

    def hand_out(self, request: ProbeRequest) -> None: ...

    def take_back(self, request: ProbeRequest) -> None: ...


def update_probe_requests(hot: HotStore, *, now: datetime) -> None:
    """Advance the requested probes where the setting allows them."""
    if is_allowed("probe"):
        advance_probes(LiveAgents(hot, now), now=now)


def advance_probes(agents: Agents, *, now: datetime) -> list[Alert]:
    """Store answers that have arrived, judge those of whole runs, and ask for new alerts.

    Returns the alerts that name a node now.
    """
    _record_results(agents, now=now)
    named = _judge_runs(agents, now=now)
    _request(agents, now=now)
    return named


def _record_results(agents: Agents, *, now: datetime) -> None:
    requests = list(ProbeRequest.objects.waiting(now).select_related("alert"))
    answers = agents.read("agent", {request.node for request in requests})
    for request in requests:
        answer = answers.get(request.node, {}).get("probe") or {}
        if answer.get("id") != request.pk:
            continue
        latency_s = answer.get("latency_s") or {}
        reason = "" if latency_s else (answer.get("reason") or "no result")[:200]
        with transaction.atomic():
            is_ours = request.finish(now, reason=reason, latency_s=latency_s)
            # The answers of a whole run are one entry, when they are judged.
            if is_ours and request.purpose == ProbeRequest.Purpose.SUSPECT:
                text = f"{request.node}: {_result(request) or f'no result: {reason}'}"
                note(request.alert, Kind.PROBED, now=now, text=text)
        agents.take_back(request)


def _result(request: ProbeRequest) -> str:
    if request.median_s is None:
        return ""
    devices = counted(len(request.latency_s), "device")
    return f"EFA latency {seconds(request.median_s)}, median of {devices}"


def _request(agents: Agents, *, now: datetime) -> None:
    alerts = Alert.objects.open().filter(
        cause__in=WEAK, probe_requests=None, fired_at__gt=now - QUIET
    )
    alerts = alerts.exclude(events__kind=Kind.PROBED).select_related("node", "run")
    for alert in alerts.order_by("fired_at", "pk"):
        if alert.nodes:
            _ask_suspects(agents, alert, now=now)
        elif alert.run is not None and not alert.parts and alert.rule in SLOW_RUN:
            # A slow EFA device may be behind it, except where other time is known to be longer.
            kind = alert.evidence.get("kind")
            if kind in NOT_TRANSFERRING and alert.cause != "network":
                continue
            _ask_run(agents, alert, now=now)


def _recently_asked(*, now: datetime, within: timedelta) -> QuerySet[ProbeRequest]:
    return ProbeRequest.objects.filter(requested_at__gt=now - within)


def _is_over_limit(n_more: int, *, now: datetime) -> bool:
    return _recently_asked(now=now, within=QUIET).count() + n_more > MAX_REQUESTS


def _ask_suspects(agents: Agents, alert: Alert, *, now: datetime) -> None:
    recent = _recently_asked(now=now, within=NODE_QUIET).values_list("node", flat=True)
    suspects, peer = _suspects_and_peer(agents, alert, without=set(recent))
    wanted = [*suspects, *peer]
    if not suspects or _is_over_limit(len(wanted), now=now):
        return
    text = f"EFA latency of {listed(suspects)}"
    text += f", and of {peer[0]} to compare" if peer else ""
    _ask(agents, alert, wanted, ProbeRequest.Purpose.SUSPECT, text=text, peers=peer, now=now)


def _suspects_and_peer(
    agents: Agents, alert: Alert, *, without: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return the suspects to probe, and one other node of their run if there is any."""
    accused = alert.nodes
    nodes = Node.objects.unretired().exclude(name__in=without)
    runs = nodes.filter(name__in=accused).values_list("run", flat=True)
    others = nodes.filter(run__in=[run for run in runs if run is not None])
    others = others.exclude(name__in=accused).order_by("rank", "name")
    names = [*nodes.filter(name__in=accused).values_list("name", flat=True)[:MAX_SUSPECTS]]
    peers = [*others.values_list("name", flat=True)[:MAX_SUSPECTS]] if names else []
    known = agents.read("agent", [*names, *peers])
    return [name for name in names if name in known], [n for n in peers if n in known][:1]


def _ask_run(agents: Agents, alert: Alert, *, now: datetime) -> None:
    """Ask every node of the alert's run, or note on the alert why not."""
    nodes = Node.objects.unretired().filter(run=alert.run).order_by("rank", "name")
    names = [*nodes.values_list("name", flat=True)]
    if len(names) < 2:
        return
    known = agents.read("agent", names)
    asked = [name for name in names if name in known]
    recent = _recently_asked(now=now, within=NODE_QUIET).filter(node__in=asked)
    why_not = ""
    if len(names) > MAX_OF_RUN:
        why_not = f"the run has {counted(len(names), 'node')}, at most {MAX_OF_RUN} are asked"
    elif len(asked) < max(2, ENOUGH_RATIO * len(names)):
        why_not = f"{len(asked)} of {counted(len(names), 'node')} have an agent"
    elif recent.exists():
        why_not = "its nodes were probed for another alert in the last 3 minutes"
    elif _is_over_limit(len(asked), now=now):
        why_not = f"at most {MAX_REQUESTS} probes are requested in ten minutes"
    if why_not:
        note(alert, Kind.PROBED, now=now, text=f"no probe requested: {why_not}")
        return
    text = f"EFA latency of all {counted(len(asked), 'node')} of the run"
    _ask(agents, alert, asked, ProbeRequest.Purpose.RUN, text=text, now=now)


def _ask(
    agents: Agents,
    alert: Alert,
    names: Sequence[str],
    purpose: ProbeRequest.Purpose,
    *,
    text: str,
    peers: Collection[str] = (),
    answers: Mapping[str, Answer] | None = None,
    now: datetime,
) -> None:
    """Ask nodes that were not asked for the alert, and note it; ``answers`` are earlier ones."""
    with transaction.atomic():
        rows = [
            ProbeRequest.objects.get_or_create(
                alert=alert,
                node=name,
                defaults={
                    "requested_at": now,
                    "is_peer": name in peers,
                    "purpose": purpose,
                    "first_latency_s": (answers or {}).get(name),
                },
            )
            for name in names
        ]
        if any(is_new for _, is_new in rows):
            note(alert, Kind.PROBE_REQUESTED, now=now, text=text)
    for row, is_new in rows:
        if is_new:
            agents.hand_out(row)


def _judge_runs(agents: Agents, *, now: datetime) -> list[Alert]:
    """Judge the answers of whole runs that are complete; return the alerts that name a node."""
    purposes = (ProbeRequest.Purpose.RUN, ProbeRequest.Purpose.AGAIN)
    requests = ProbeRequest.objects.filter(
        purpose__in=purposes,
        judged_at=None,
        requested_at__gt=now - 4 * ProbeRequest.WAIT,
        alert__resolved_at=None,
    ).select_related("alert__node", "alert__run")
    ordered = requests.order_by("alert", "node")
    by_alert = [[*rows] for _, rows in groupby(ordered, key=lambda row: row.alert_id)]
    return [rows[0].alert for rows in by_alert if _judge(agents, rows, now=now)]


def _judge(agents: Agents, requests: Sequence[ProbeRequest], *, now: datetime) -> bool:
    """Judge the answers of one run, or ask the late nodes again; return whether one is named."""
    if any(row.answered_at is None and now - row.requested_at < row.WAIT for row in requests):
        return False
    again = [row for row in requests if row.is_again]
    latencies = [_latencies(agents, {row.node: row.first_answer for row in requests})]
    if again:
        latencies.append(_latencies(agents, {row.node: row.latency_s for row in again}))
    n_answers, late = len(latencies[0]), late_devices(latencies)
    n_devices = sum(map(len, latencies[0].values()))
    text = ""
    if n_answers < max(2, ENOUGH_RATIO * len(requests)) or n_devices < ENOUGH_DEVICES:
        text = f"{n_answers} of {counted(len(requests), 'node')} answered, too few to compare"
        reasons = Counter(row.reason for row in requests if row.reason)
        text += "".join(f": {reason}" for reason, _ in reasons.most_common(1))
    elif again and len(late) == 1:
        return _name(requests, late[0], latencies, now=now)
    elif again and not late:
        suspects = listed([row.node for row in again if not row.is_peer])
        text = f"{suspects} had a high latency once, not in a second probe: no node stands out"
    elif not late:
        usual_s = sorted(float(np.median([*each.values()])) for each in latencies[0].values())
        text = (
            f"all {len(usual_s)} probed nodes have similar latencies: {seconds(usual_s[0])} to "
            f"{seconds(usual_s[-1])}; look at the switch or the collective itself"
        )
    elif again or len(late) > MAX_SUSPECTS:
        names = listed([each.node for each in late if each.node is not None])
        text = (
            f"{len(late)} of {counted(len(requests), 'node')} have a high latency: {names}. None "
            "is implicated: nodes that probe each other measure the same slow link"
        )
    if text:
        _conclude(requests, text, now=now)
    else:
        _ask_again(agents, requests, late, now=now)
    return False


def _ask_again(
    agents: Agents, first: Sequence[ProbeRequest], late: Sequence[Problem], *, now: datetime
) -> None:
    """Ask late nodes and peers again, once agents allow it: a probe may be late by chance."""
    answered_at = [row.answered_at for row in first if row.answered_at is not None]
    if now - max(answered_at) < AGAIN_AFTER:
        return
    names = [each.node for each in late if each.node is not None]
    peers = [row.node for row in first if row.latency_s and row.node not in names][:N_PEERS]
    text = f"EFA latency of {listed(names)} again, and of {listed(peers)} to compare"
    asked = {row.node: row for row in first if row.node in {*names, *peers}}
    with transaction.atomic():
        # An agent answers each number once.
        ProbeRequest.objects.filter(pk__in=[row.pk for row in asked.values()]).delete()
        purpose = ProbeRequest.Purpose.AGAIN
        answers = {node: row.latency_s for node, row in asked.items()}
        alert, wanted = first[0].alert, [*names, *peers]
        _ask(agents, alert, wanted, purpose, text=text, peers=peers, answers=answers, now=now)


def late_devices(rounds: Sequence[Mapping[str, Latencies]]) -> list[Problem]:
    """Return the worst device of each node that answers late in every round.

    Parameters
    ----------
    rounds : of probes, each with seconds by node and EFA device; later ones may ask fewer nodes

    Notes
    -----
    Each round compares a device with the usual one of that round. Without earlier probes a device
    may always have been a little slower than its peers, so a blatant ratio is required. Of two
    rounds the lower ratio counts.
    """
    nodes = sorted(rounds[0])
    n_devices = 1 + max((device for each in rounds[0].values() for device in each), default=0)
    latency_s = np.full((len(rounds), len(nodes), n_devices), np.nan)
    for i, answers in enumerate(rounds):
        for node, by_device in answers.items():
            if node in rounds[0]:
                for device, value_s in by_device.items():
                    if device < n_devices:
                        latency_s[i, nodes.index(node), device] = value_s
    if not np.isfinite(latency_s).any():
        return []
    usual_s = lower_median(latency_s.reshape(len(rounds), -1))[:, None, None]
    # A device that is late in one round only is not known to be late.
    ratio = np.where(np.isfinite(latency_s).all(axis=0), (latency_s / usual_s).min(axis=0), 0.0)
    known = np.where(ratio > 0.0, ratio, np.nan)
    # Beyond the farthest distance it is late even if all devices of its node are.
    is_apart = (ratio >= BLATANT_RATIO * lower_median(known)[:, None]) | (ratio >= FAR_RATIO)
    is_late = (ratio >= BLATANT_RATIO) & is_apart
    return [
        _late(nodes[row], ratio[row], is_late[row], latency_s)
        for row in np.flatnonzero(is_late.any(axis=1))
    ]


def _late(node: str, ratio: FloatArray, is_late: BoolArray, latency_s: FloatArray) -> Problem:
    """Accuse the latest device of a node, or the node where most of its devices are late."""
    device = int(np.argmax(np.where(is_late, ratio, 0.0)))
    usual_s = float(np.nanmedian(latency_s))
    score = CauseScore(
        PLACED,
        float(ratio[device]) / BLATANT_RATIO,
        LATENCY,
        float(ratio[device]) * usual_s,
        usual_s,
        int(np.isfinite(latency_s[0]).sum()) - 1,
        "s",
        node,
        None if is_late.size > 2 and is_late.mean() > MOST else device,
    )
    return Problem(score.cause, score, kind_of(score.cause), 0.0, score.strength)


def _latencies(agents: Agents, answers: Mapping[str, Answer]) -> dict[str, Latencies]:
    """Read the answers by node and number of the device; nodes without a result are left out."""
    known = {node: answer for node, answer in answers.items() if answer}
    ports = agents.read("efa", [*known])
    return {node: _by_number(each, ports.get(node) or ()) for node, each in known.items()}


def _by_number(answer: Answer, ports: Iterable[Mapping[str, Any]]) -> Latencies:
    """Return the answer by number of the device, as the node's agent counts them."""

    def order(name: str) -> list[tuple[str, int]]:
        return [(word, int(digits or 0)) for word, digits in re.findall(r"(\D*)(\d*)", name)]

    number = {port["device"]: port["index"] for port in ports if "index" in port}
    if not answer.keys() <= number.keys():
        number = {name: i for i, name in enumerate(sorted(answer, key=order))}
    return {number[name]: value_s for name, value_s in answer.items()}


def _conclude(requests: Sequence[ProbeRequest], text: str, *, now: datetime) -> None:
    """Note the result of probes that name no node."""
    with transaction.atomic():
        if _is_first(requests, now=now):
            note(requests[0].alert, Kind.PROBED, now=now, text=text)


def _is_first(requests: Sequence[ProbeRequest], *, now: datetime) -> bool:
    """Mark the requests as judged; False where another process did."""
    ours = ProbeRequest.objects.filter(pk__in=[row.pk for row in requests], judged_at=None)
    return bool(ours.update(judged_at=now))


def _name(
    requests: Sequence[ProbeRequest],
    late: Problem,
    rounds: Sequence[Mapping[str, Latencies]],
    *,
    now: datetime,
) -> bool:
    """Name the node that stood out twice, unless detection has named one in the meantime."""
    alert, score, node = requests[0].alert, late.score, late.node
    if score is None or node is None:
        return False
    part = "" if score.device is None else f", EFA device {score.device},"
    worst_s = [
        answers[node].get(-1 if score.device is None else score.device)
        or max(answers[node].values())
        for answers in rounds
    ]
    text = (
        f"{node}{part} has a high latency: {seconds(worst_s[0])}, and {seconds(worst_s[-1])} in a "
        f"second probe; {counted(score.n_peers, 'other device')}: {seconds(score.peers_median)}"
    )
    place = {"cause": late.cause, "node": node, "device": late.device}
    evidence = _placed_evidence(alert.cause, alert.evidence, score.figure())
    amended = place | {"node": Node.objects.filter(name=node).first(), "evidence": evidence}
    as_read = {"resolved_at": None, "node": None, "cause": alert.cause}
    with transaction.atomic():
        if not _is_first(requests, now=now):
            return False
        note(alert, Kind.PROBED, now=now, text=text)
        if alert.nodes or alert.parts or not change(alert, if_still=as_read, to=amended):
            return False
        note(alert, Kind.CAUSE_CHANGED, now=now, text=summary(findings_of(alert)[0]))
    return True


def _placed_evidence(
    cause: str, evidence: Mapping[str, Any], figure: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a finding's evidence with the figure of the probes, and what it was without them."""
    found = {name: evidence[name] for name in CHANGED_EVIDENCE if name in evidence}
    changed: dict[str, Any] = {PROBED: {"cause": cause} | found, "culprit": dict(figure)}
    if rows := evidence.get("causes"):
        # What was not measured is now: it is the symptom that tells the cause from its class.
        changed["symptoms"] = (evidence.get("symptoms") or {}) | {PLACED: "raised"}
        rows = [row | _with_symptom(row) for row in rows]
        changed["causes"] = sorted(rows, key=lambda row: row["cause"] != PLACED)
    return {**evidence, **changed}


def _with_symptom(row: Mapping[str, Any]) -> dict[str, Any]:
    """Update a row of the table of causes: probes show that a device answers late."""
    others = [name for name in row["unmeasured"] if name != PLACED]
    if PLACED in row["unmeasured"]:
        verdict = {"verdict": "named"} if row["cause"] == PLACED else {}
        return verdict | {"seen": [*row["seen"], PLACED], "unmeasured": others}
    if row["cause"] in LEAVE_LATENCY:
        return {"verdict": "contradicted", "contradicting": [*row["contradicting"], PLACED]}
    return {}


def locate_probed(
    found: Mapping[Subject, Finding], open_: Iterable[Alert]
) -> dict[Subject, Finding]:
    """Give findings without a node the place that requested probes named for their open alert."""
    located = dict(found)
    for alert in open_:
        for part in findings_of(alert):
            if PROBED not in part.evidence:
                continue
            own = key_of_finding(part)
            keys = [own] if own in found else [key for key in found if key[0] in SLOW_RUN]
            for key in keys:
                located[key] = with_probed_place(located[key], part)
    return located


def with_probed_place(finding: Finding, held: Finding) -> Finding:
    """Return a weaker finding of the same run with the place that probes named in ``held``."""
    is_named = PROBED in held.evidence and held.node is not None
    is_weaker = not (isinstance(finding, Group) or finding.accused) and finding.cause in WEAK
    if not (is_named and is_weaker and finding.run == held.run and finding.rule in SLOW_RUN):
        return finding
    figure = held.evidence.get("culprit") or {}
    evidence = _placed_evidence(finding.cause, finding.evidence, figure)
    return replace(
        finding, cause=held.cause, node=held.node, device=held.device, evidence=evidence
    )


def as_detected(held: Finding) -> Finding:
    """Return an open finding without the place that probes named, as detection knows it.

    Detection follows what it sees itself: steps that take longer. It sees no probe by which to
    judge whether the named device is still slow.
    """
    probed = held.evidence.get(PROBED)
    if not probed:
        return held
    changed = (PROBED, *CHANGED_EVIDENCE)
    evidence = {
        name: held.evidence[name] for name in held.evidence if name not in changed
    } | probed
    return replace(held, cause=evidence.pop("cause"), node=None, device=None, evidence=evidence)
