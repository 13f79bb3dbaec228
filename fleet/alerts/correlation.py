"""One physical fault, one alert: findings of several nodes or runs that share place and time."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, NamedTuple

from fleet.formatting import counted, listed
from fleet.models import Alert, Node, Run
from telemetry.detect import RULES, Finding
from telemetry.detect.causes import CLASS_OF as CLASS_OF_CAUSE
from telemetry.detect.causes import CLASSES, UNKNOWN

Subject = tuple[str, str]  # a rule, and what it evaluates: run:<name>, node:<name>, fleet, …

# Causes that one fault of a rack, a switch or a zone may show as.
CLASS_OF: Mapping[str, str] = {
    **CLASS_OF_CAUSE,
    **{name: name for name in CLASSES},
    **dict.fromkeys(("node_silent", "node_crash"), "node_silent"),
}
# A fault of a whole zone shows in these. Cores do not become slow together.
NETWORK = CLASS_OF_CAUSE["efa_latency"]
OF_ZONES = frozenset({NETWORK, "node_silent"})
ONSET_WITHIN_S = 60.0
# Nodes that only share a run, and runs that only share racks, become slow together within this
# time. Two reports of hardware may lie between them.
TOGETHER_WITHIN_S = 20.0
# A part that is over stays in its group for this long: parts of one fault rarely end together.
LEAVES_AFTER_S = 60.0
NAMES = tuple(each.name for each in fields(Finding))


@dataclass(frozen=True, slots=True)
class Group(Finding):
    """One finding for several: ``parts`` are those of each node or run.

    ``alerts`` are the keys of the open alerts that cover them, the oldest first; ``ended`` says
    when parts ended. A group of one part is what remains of a larger one.
    """

    parts: tuple[Finding, ...] = ()
    alerts: tuple[int, ...] = ()
    ended: Mapping[Subject, float] = field(default_factory=dict)


@dataclass(slots=True)
class Cluster:
    """Findings of one fault, and the open alerts that cover them, the oldest first.

    ``carried`` are the keys of findings that could not be evaluated now, ``ended`` when others
    were last found.
    """

    cause_class: str
    onset_s: float
    parts: dict[Subject, Finding]
    alerts: list[Alert] = field(default_factory=list)
    carried: set[Subject] = field(default_factory=set)
    ended: dict[Subject, float] = field(default_factory=dict)

    @property
    def onsets_s(self) -> set[float]:
        """When it began, and each of its parts did: rare probes show them one after the other."""
        return {self.onset_s} | {part.onset_s for part in self.parts.values()}

    @property
    def is_group(self) -> bool:
        nodes = {name for part in self.parts.values() for name in part.accused}
        runs = {part.run for part in self.parts.values()}
        has_several = len(self.parts) > 1 and (len(nodes) > 1 or len(runs) > 1)
        return has_several or any(alert.parts for alert in self.alerts)

    @property
    def is_over(self) -> bool:
        return self.parts.keys() <= self.ended.keys()

    @property
    def is_new(self) -> bool:
        """Whether a part was found now, or has ended."""
        is_found = bool(self.parts.keys() - self.carried - self.ended.keys())
        return is_found or any(self.ended.keys() != ended_of(each).keys() for each in self.alerts)


class Place(NamedTuple):
    """Where a node is; empty where unknown. A node without a rack is in its UltraServer."""

    zone: str
    rack: str
    run: str | None


def subject_of(finding: Finding) -> str:
    """Name what an alert is about: a run, a node, a budget or the whole fleet, by its rule.

    A fault that all nodes of a run have is about the run.
    """
    names = {"run": f"run:{finding.run}", "node": f"node:{finding.node}", "fleet": "fleet"}
    names["budget"] = f"budget:{finding.evidence.get('budget')}"
    subject = RULES[finding.rule].subject
    return names["run" if subject == "node" and finding.node is None else subject]


def class_of(finding: Finding) -> str | None:
    """Return the class of faults that may be one with others; None for a fault of its own.

    Steps of a whole run that take longer for an unknown reason may be slowed by what it shares.
    """
    is_slow_run = finding.rule == "step_slow" and finding.run is not None and not finding.accused
    return UNKNOWN if finding.cause == UNKNOWN and is_slow_run else CLASS_OF.get(finding.cause)


def keys_of(rule: str, subject: str, parts: Iterable[Mapping[str, Any]]) -> set[Subject]:
    found = {key_of_finding(part) for part in map(finding_of_part, parts)}
    return found | {(rule, subject)}


def finding_of_part(part: Mapping[str, Any]) -> Finding:
    """Read a part of an alert, as ``parts_json`` wrote it."""
    values = {name: part[name] for name in NAMES}
    return Finding(**values | {name: tuple(part[name]) for name in ("victims", "nodes")})


def ended_of(alert: Alert) -> dict[Subject, float]:
    """Read when parts of an alert ended, by their key."""
    return {
        key_of_finding(finding_of_part(part)): part["ended_s"]
        for part in alert.parts
        if part["ended_s"] is not None
    }


def key_of_finding(finding: Finding) -> Subject:
    return (finding.rule, subject_of(finding))


def findings_of(alert: Alert) -> list[Finding]:
    """List the findings that an open alert was made from, one for each part."""
    if alert.parts:
        return [finding_of_part(part) for part in alert.parts]
    return [
        Finding(
            rule=alert.rule,
            cause=alert.cause,
            severity="page" if alert.severity == Alert.Severity.PAGE else "warn",
            run=alert.run.name if alert.run else None,
            node=alert.node.name if alert.node else None,
            device=alert.device,
            onset_s=alert.onset_at.timestamp(),
            score=alert.score,
            victims=tuple(alert.victims),
            evidence=alert.evidence,
            nodes=() if alert.node else tuple(alert.nodes),
        )
    ]


def correlate(
    found: Mapping[Subject, Finding],
    open_: Iterable[Alert],
    evaluated: Collection[Subject],
    *,
    now: datetime,
) -> tuple[dict[Subject, Finding], set[int]]:
    """Replace the findings of one physical fault by one group, under the key of its alert.

    Returns also the keys of the alerts whose parts have all ended. Findings belong together if
    parts of them began within a minute, their causes are compatible, and their nodes share a
    rack, a run or most of a zone. What could not be evaluated stays in its group.
    """
    loose = dict(found)
    clusters = [_cluster_of(alert, loose, evaluated, now=now) for alert in open_]
    units = [cluster for cluster in clusters if cluster is not None]
    units += [
        Cluster(cause_class, finding.onset_s, {key: finding})
        for key, finding in loose.items()
        if (cause_class := class_of(finding)) is not None
    ]
    if len(units) < 2 and not any(unit.is_group for unit in units):
        return dict(found), set()
    remaining, over = dict(found), set[int]()
    for cluster in _joined(units):
        if cluster.is_over:
            over |= {alert.pk for alert in cluster.alerts}
        elif cluster.is_group and cluster.is_new:
            for key in cluster.parts:
                remaining.pop(key, None)
            key, group = _group_of(cluster)
            remaining[key] = group
    return remaining, over


def _cluster_of(
    alert: Alert,
    loose: dict[Subject, Finding],
    evaluated: Collection[Subject],
    *,
    now: datetime,
) -> Cluster | None:
    """Take the findings of an open alert out of ``loose``; None if it ends or stands alone."""
    cluster = Cluster("", alert.onset_at.timestamp(), {}, [alert])
    ended = ended_of(alert)
    for part in findings_of(alert):
        key = key_of_finding(part)
        own_first = sorted(loose.items(), key=lambda item: item[0] != key)
        same = next(
            (
                each
                for each, f in own_first
                if _continues(f, each, part, key) or (alert.parts and _explains(f, part))
            ),
            None,
        )
        if same is not None:
            finding = loose.pop(same)
            # A finding without a cause does not remove a known culprit.
            weaker = finding.cause == UNKNOWN != part.cause
            if weaker:
                cluster.parts[same] = replace(part, score=finding.score)
            else:
                # What is read now may no longer reach back to when it began.
                began_s = min(part.onset_s, finding.onset_s)
                cluster.parts[same] = replace(finding, onset_s=began_s)
        elif key in evaluated or key in ended or _has_ended(part, alert, now=now):
            since_s = ended.get(key, now.timestamp())
            if alert.parts and now.timestamp() - since_s < LEAVES_AFTER_S:
                cluster.parts[key], cluster.ended[key] = part, since_s
        else:
            cluster.parts[key] = part
            cluster.carried.add(key)
    found = {class_of(part) for part in cluster.parts.values()} - {None}
    # The known parts say what the fault is.
    classes = found - {UNKNOWN} or found
    if len(classes) != 1 and not alert.parts:
        # The problem has ended, or is no hardware fault.
        return None
    cluster.cause_class = min(filter(None, classes), default="")
    return cluster


def _continues(finding: Finding, key: Subject, part: Finding, part_key: Subject) -> bool:
    """Whether a finding is the current form of a part of an alert."""
    is_compatible = CLASS_OF.get(finding.cause) == CLASS_OF.get(part.cause)
    if key == part_key:
        return is_compatible or UNKNOWN in (finding.cause, part.cause)
    overlaps = bool(set(finding.accused) & set(part.accused))
    return is_compatible and finding.cause in CLASS_OF and finding.run == part.run and overlaps


def _explains(finding: Finding, part: Finding) -> bool:
    """Whether a finding names what slows the run of a part."""
    return class_of(part) == UNKNOWN and finding.run == part.run and finding.cause in CLASS_OF


def _has_ended(part: Finding, alert: Alert, *, now: datetime) -> bool:
    """Whether a part's run is over or its nodes are retired; the alert's own run ends with it."""
    if not alert.parts:
        return False
    if part.run and Run.objects.filter(name=part.run, finished_at__lte=now).exists():
        return True
    return is_retired(part.accused)


def is_retired(nodes: Collection[str]) -> bool:
    """Whether there are nodes, and none of them is in use."""
    return bool(nodes) and not Node.objects.unretired().filter(name__in=nodes).exists()


def _joined(units: Sequence[Cluster]) -> list[Cluster]:
    """Join clusters of one fault, the oldest first."""
    places = _places(part for unit in units for part in unit.parts.values())
    n_in_zone: dict[str, int] = {}
    waiting = sorted(units, key=lambda each: (not each.alerts, each.onset_s))
    joined: list[Cluster] = []
    # A larger cluster may be most of a zone, so go on until nothing joins.
    while len(joined) != len(waiting):
        waiting, joined = joined or waiting, []
        for unit in waiting:
            into = next((each for each in joined if _is_one(each, unit, places, n_in_zone)), None)
            if into is None:
                joined.append(unit)
            else:
                if into.cause_class == UNKNOWN:
                    into.cause_class = unit.cause_class
                into.parts |= unit.parts
                into.alerts += unit.alerts
                into.carried |= unit.carried
                into.ended |= unit.ended
    return joined


def _places(findings: Iterable[Finding]) -> dict[str, Place]:
    """Read where the accused nodes are, and all nodes of runs without an accused one."""
    findings = list(findings)
    nodes = Node.objects.filter(name__in={name for each in findings for name in each.accused})
    whole = {each.run for each in findings if each.run and not each.accused}
    if whole:
        nodes |= Node.objects.filter(run__name__in=whole)
    rows = nodes.values_list("name", "zone", "rack", "ultraserver_id", "run__name")
    return {name: Place(zone, rack or server, run) for name, zone, rack, server, run in rows}


def _racks_of(
    cluster: Cluster, places: Mapping[str, Place], *, of_runs: bool = False
) -> set[tuple[str, str]]:
    """List the racks of the accused nodes; a whole run counts if one rack holds all of it.

    ``of_runs``: all racks of a whole run count.
    """
    found: set[tuple[str, str]] = set()
    for part in cluster.parts.values():
        names = part.accused or [n for n, at in places.items() if part.run and at.run == part.run]
        racks = {places[name][:2] for name in names if name in places}
        if part.accused or of_runs or len(racks) == 1:
            found |= {(zone, rack) for zone, rack in racks if rack}
    return found


def _nodes_of(cluster: Cluster, places: Mapping[str, Place]) -> set[str]:
    found = {name for part in cluster.parts.values() for name in part.accused}
    whole = {part.run for part in cluster.parts.values() if part.run and not part.accused}
    return found | {name for name, place in places.items() if whole and place.run in whole}


def _is_one(
    one: Cluster, other: Cluster, places: Mapping[str, Place], n_in_zone: dict[str, int]
) -> bool:
    """Whether two clusters are one physical fault."""
    classes = {one.cause_class, other.cause_class}
    is_compatible = len(classes) == 1 or classes == {UNKNOWN, NETWORK}
    apart_s = min(abs(a - b) for a in one.onsets_s for b in other.onsets_s)
    if not is_compatible or apart_s > ONSET_WITHIN_S:
        return False
    causes = [{part.cause for part in each.parts.values()} for each in (one, other)]
    runs = [{part.run for part in each.parts.values()} - {None} for each in (one, other)]
    is_together = apart_s <= TOGETHER_WITHIN_S
    if runs[0] & runs[1] and causes[0] == causes[1] and (is_together or classes <= OF_ZONES):
        return True
    # Runs that share a switch slow down together.
    of_runs = classes <= {UNKNOWN, NETWORK} and is_together and not runs[0] & runs[1]
    racks = [_racks_of(each, places, of_runs=of_runs) for each in (one, other)]
    if racks[0] & racks[1] and (of_runs or UNKNOWN not in classes):
        return True
    nodes = [_nodes_of(each, places) for each in (one, other)]
    zones = {places[name].zone for name in nodes[0] | nodes[1] if name in places}
    if not classes <= OF_ZONES or len(zones) != 1 or "" in zones:
        return False
    zone = zones.pop()
    if zone not in n_in_zone:
        n_in_zone[zone] = Node.objects.expected().filter(zone=zone).count()
    return 2 * len(nodes[0] | nodes[1]) > n_in_zone[zone]


def _group_of(cluster: Cluster) -> tuple[Subject, Group]:
    """Make one finding of a cluster; it keeps the key of its oldest alert where it can."""
    alerts = sorted(cluster.alerts, key=lambda each: (each.fired_at, each.pk))
    own = (alerts[0].rule, alerts[0].subject) if alerts else None
    # The most urgent part leads; then that of the alert; then a stable order, so that a fault
    # that returns finds its earlier alert.
    key = min(cluster.parts, key=lambda k: (cluster.parts[k].severity, k != own, *k))
    leader, parts = cluster.parts[key], tuple(cluster.parts.values())
    nodes = tuple(sorted({name for part in parts for name in part.accused}))
    runs = sorted({part.run for part in parts if part.run})
    known = {part.cause for part in parts} - {UNKNOWN}
    causes = known - set(CLASSES) or known
    values = {name: getattr(leader, name) for name in NAMES}
    if len(parts) > 1:
        values |= {
            "cause": causes.pop() if len(causes) == 1 else cluster.cause_class,
            "severity": min(part.severity for part in parts),
            "node": nodes[0] if len(nodes) == 1 else None,
            "device": leader.device if len(nodes) == 1 else None,
            "onset_s": min(part.onset_s for part in parts),
            "score": max(part.score for part in parts),
            "victims": tuple(
                sorted({name for part in parts for name in part.victims} - set(nodes))
            ),
            "nodes": nodes if len(nodes) > 1 else (),
            "evidence": {
                **leader.evidence,
                "nodes": list(nodes),
                "runs": runs,
                **_shared_place(nodes),
            },
        }
    owners = tuple(alert.pk for alert in alerts)
    return key, Group(**values, parts=parts, alerts=owners, ended=cluster.ended)


def _shared_place(nodes: Sequence[str]) -> dict[str, str]:
    """Name the rack, else the UltraServer, that all these nodes are in; ``rack`` may be empty."""
    rows = Node.objects.filter(name__in=nodes).values_list("zone", "rack", "ultraserver_id")
    racks = {(zone, rack) for zone, rack, _ in rows}
    servers = {server for _, _, server in rows}
    rack = racks.pop()[1] if len(racks) == 1 else ""
    server = servers.pop() if len(servers) == 1 and not rack else ""
    return {"rack": rack} | ({"ultraserver": server} if server else {})


def parts_json(finding: Finding) -> list[dict[str, Any]]:
    """Write the parts of a group as JSON; empty for a finding that stands alone."""
    if not isinstance(finding, Group) or len(finding.parts) < 2:
        return []
    return [
        asdict(part) | {"ended_s": finding.ended.get(key_of_finding(part))}
        for part in finding.parts
    ]


def has_other_parts(alert: Alert, group: Group) -> bool:
    def place(part: Finding) -> tuple[object, ...]:
        return (*key_of_finding(part), part.cause, part.device, part.accused)

    parts = group.parts if len(group.parts) > 1 else ()
    before = {place(finding_of_part(part)) for part in alert.parts}
    return {place(part) for part in parts} != before or group.ended != ended_of(alert)


def members_text(before: Alert, group: Group) -> tuple[str, str]:
    """Write which runs and nodes joined the alert, and which left it; empty if none."""
    was, now = set(before.nodes), set(group.accused)
    runs_before = set(before.evidence.get("runs") or ([before.run.name] if before.run else []))
    runs_now = {part.run for part in group.parts if part.run}
    came, gone = sorted(runs_now - runs_before), sorted(runs_before - runs_now)
    joined = ""
    if new := sorted(now - was):
        joined = f"{counted(len(new), 'node')}: {listed(new)}"
    if came:
        joined = f"run {listed(came)}" + (f", {joined}" if joined else "")
    left = listed(sorted(was - now)) or (f"run {listed(gone)}" if gone else "")
    if left and len(group.parts) == 1:
        only = group.parts[0]
        left += f"; continues at {listed(only.accused) or f'run {only.run}'} alone"
    return joined and f"also affects {joined}", left and f"no longer affects {left}"
