"""One physical fault, one alert: findings of several nodes or runs that share place and time."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple, Self

from fleet.alerts.relations import (
    CONTINUES,
    OF_ZONES,
    ONE_FAULT,
    TAKES_OVER,
    Subject,
    View,
    key_of_finding,
    related,
)
from fleet.formatting import counted, listed
from fleet.models import Alert, Node, Run
from telemetry.detect import Finding
from telemetry.detect.causes import CLASSES, UNKNOWN

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


class Place(NamedTuple):
    """Where a node is; empty where unknown. A node without a rack is in its UltraServer."""

    zone: str
    rack: str
    run: str | None


@dataclass(slots=True)
class Places:
    """Where nodes are."""

    of_node: Mapping[str, Place] = field(default_factory=dict)
    in_run: Mapping[str | None, Collection[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Self:
        """Read where the accused nodes are, and all nodes of runs without an accused one."""
        findings = list(findings)
        nodes = Node.objects.filter(
            name__in={name for finding in findings for name in finding.accused}
        )
        whole = {finding.run for finding in findings if finding.run and not finding.accused}
        if whole:
            nodes |= Node.objects.filter(run__name__in=whole)
        rows = nodes.values_list("name", "zone", "rack", "ultraserver_id", "run__name")
        places = {n: Place(zone, rack or server, run) for n, zone, rack, server, run in rows}
        in_run = defaultdict[str | None, list[str]](list)
        for name, place in places.items():
            in_run[place.run].append(name)
        return cls(places, in_run)

    def nodes_of(self, part: Finding) -> Collection[str]:
        """List the accused nodes, else those of the run."""
        return part.accused or (self.in_run.get(part.run, ()) if part.run else ())

    def struck_by(self, clusters: Iterable["Cluster"]) -> set[tuple[str, str]]:
        """List the classes and zones of which these clusters together are most nodes."""
        nodes = defaultdict[tuple[str, str], set[str]](set)
        for each in clusters:
            if each.cause_class in OF_ZONES and len(each.zones) == 1 and "" not in each.zones:
                [zone] = each.zones
                nodes[each.cause_class, zone] |= each.nodes
        expected = Node.objects.expected()
        return {
            (cause_class, zone)
            for (cause_class, zone), of_zone in nodes.items()
            if 2 * len(of_zone) > expected.filter(zone=zone).count()
        }


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
    # Kept as parts come: thousands may join. ``onsets_s`` are its own and those of its parts: rare
    # probes show them one after the other. ``racks`` are those of accused nodes; a whole run
    # counts if one rack holds all of it.
    causes: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    zones: set[str] = field(default_factory=set)
    struck: set[tuple[str, str]] = field(default_factory=set)
    racks: set[tuple[str, str]] = field(default_factory=set)
    run_racks: set[tuple[str, str]] = field(default_factory=set)
    onsets_s: set[float] = field(default_factory=set)

    def locate(self, places: Places) -> None:
        """Note where its parts are."""
        self.onsets_s = {self.onset_s}
        for part in self.parts.values():
            self.causes.add(part.cause)
            self.onsets_s.add(part.onset_s)
            self.runs |= {part.run} if part.run else set()
            nodes = places.nodes_of(part)
            at = {places.of_node[name][:2] for name in nodes if name in places.of_node}
            self.nodes.update(nodes)
            self.zones |= {zone for zone, _ in at}
            racks = {rack for rack in at if rack[1]}
            self.run_racks |= racks
            self.racks |= racks if part.accused or len(at) == 1 else set()

    def take_in(self, other: Self) -> None:
        """Join another cluster to this one."""
        if self.cause_class == UNKNOWN:
            self.cause_class = other.cause_class
        self.alerts += other.alerts
        for name in JOINED:
            into = getattr(self, name)
            into |= getattr(other, name)

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
        return is_found or any(
            self.ended.keys() != ended_of(alert).keys() for alert in self.alerts
        )


JOINED = (
    *("parts", "carried", "ended", "causes", "runs", "nodes", "zones", "struck"),
    *("racks", "run_racks", "onsets_s"),
)


def keys_of(rule: str, subject: str, parts: Iterable[Mapping[str, Any]]) -> set[Subject]:
    keys = {key_of_finding(part) for part in map(finding_of_part, parts)}
    return keys | {(rule, subject)}


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
    near = _near(loose)
    clusters = [_cluster_of(alert, loose, near, evaluated, now=now) for alert in open_]
    units = [cluster for cluster in clusters if cluster is not None]
    units += [
        Cluster(cause_class, finding.onset_s, {key: finding})
        for key, finding in loose.items()
        if (cause_class := View.of(finding).cause_class) is not None
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


Near = Mapping[tuple[str, str | None], Sequence[Subject]]


def _near(found: Mapping[Subject, Finding]) -> Near:
    """Index findings by their run and by each node that they accuse."""
    near = defaultdict[tuple[str, str | None], list[Subject]](list)
    for key, finding in found.items():
        for at in (("run", finding.run), *(("node", name) for name in finding.accused)):
            near[at].append(key)
    return near


def _forms(part: Finding, key: Subject, loose: Collection[Subject], near: Near) -> list[Subject]:
    """List the findings that may be the present form of a part: its own first.

    They accuse one of its nodes, or name what slows its run.
    """
    at = [("run", part.run)] if View.of(part, key).cause_class == UNKNOWN else []
    at += [("node", name) for name in part.accused]
    keys = chain([key], *(near.get(each, ()) for each in at))
    return [each for each in dict.fromkeys(keys) if each in loose]


def _cluster_of(
    alert: Alert,
    loose: dict[Subject, Finding],
    near: Near,
    evaluated: Collection[Subject],
    *,
    now: datetime,
) -> Cluster | None:
    """Take the findings of an open alert out of ``loose``; None if it ends or stands alone."""
    cluster = Cluster("", alert.onset_at.timestamp(), {}, [alert])
    ended = ended_of(alert)
    for part in findings_of(alert):
        key = key_of_finding(part)
        view, rows = View.of(part, key), CONTINUES + (TAKES_OVER if alert.parts else ())
        forms = _forms(part, key, loose, near)
        same = next((k for k in forms if related(rows, View.of(loose[k], k), view)), None)
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
    causes = {View.of(part).cause_class for part in cluster.parts.values()} - {None}
    # The known parts say what the fault is.
    classes = causes - {UNKNOWN} or causes
    if len(classes) != 1 and not alert.parts:
        # The problem has ended, or is no hardware fault.
        return None
    cluster.cause_class = min(filter(None, classes), default="")
    return cluster


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
    places = Places.of(part for unit in units for part in unit.parts.values())
    for unit in units:
        unit.locate(places)
    waiting = sorted(units, key=lambda each: (not each.alerts, each.onset_s))
    joined: list[Cluster] = []
    struck = places.struck_by(units)
    for unit in units:
        unit.struck = struck & {(unit.cause_class, zone) for zone in unit.zones}
    # One that came later may connect two, so go on until nothing joins.
    while len(joined) != len(waiting):
        waiting, joined = joined or waiting, []
        at = defaultdict[object, set[int]](set)
        for unit in waiting:
            # Those of one fault share one of these.
            shared = [*unit.runs, *unit.run_racks, *unit.struck]
            near = sorted(set().union(*(at[each] for each in shared)))
            fits = (i for i in near if related(ONE_FAULT, joined[i], unit))
            into = next(fits, len(joined))
            if into == len(joined):
                joined.append(unit)
            else:
                joined[into].take_in(unit)
            for each in shared:
                at[each].add(into)
    return joined


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
        {name: getattr(part, name) for name in NAMES}
        | {"ended_s": finding.ended.get(key_of_finding(part))}
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
