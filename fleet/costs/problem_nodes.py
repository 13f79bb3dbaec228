"""Nodes that alerts accused again and again, across runs, and what that has cost."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Q

from fleet.alerts.causes import cause_text
from fleet.models import Alert, Node
from telemetry.units import HOUR_S


@dataclass(slots=True)
class ProblemNode:
    """What one node was accused of; hours and dollars are those of the runs that it slowed.

    The loss of an alert that accuses several nodes is divided evenly between them. Alerts of one
    run at the same time share their loss, so a sum over nodes may count some of it twice.
    """

    name: str
    node: Node | None = None
    alerts: list[Alert] = field(default_factory=list)
    node_hours: float = 0.0
    usd: float = 0.0

    @property
    def runs(self) -> list[str]:
        return sorted({name for alert in self.alerts for name in alert.runs})

    @property
    def causes(self) -> list[tuple[str, int]]:
        """The causes and how often each was found, the commonest first."""
        return Counter(cause_text(alert.cause).name for alert in self.alerts).most_common()

    @property
    def latest(self) -> Alert:
        return max(self.alerts, key=lambda alert: alert.fired_at)

    @property
    def n_open(self) -> int:
        return sum(alert.is_open for alert in self.alerts)

    @property
    def is_repeated(self) -> bool:
        """Whether it was accused at least twice: then it is worth replacing."""
        return len(self.alerts) > 1


def problem_nodes(*, now: datetime, days: int) -> list[ProblemNode]:
    """List the nodes accused within so many days, the most expensive first; drills excluded."""
    since = now - timedelta(days=days)
    lasted = Q(resolved_at=None) | Q(resolved_at__gt=since)
    alerts = Alert.objects.filter(lasted, is_drill=False).select_related("node", "run")
    accusing = list(alerts.filter(~Q(node=None) | ~Q(parts=[])))
    names = {name for alert in accusing for name in alert.nodes}
    nodes: Mapping[str, Node] = {node.name: node for node in Node.objects.filter(name__in=names)}
    by_name = collected(accusing, nodes)
    return sorted(by_name.values(), key=lambda each: (-each.usd, -len(each.alerts), each.name))


def collected(alerts: Iterable[Alert], nodes: Mapping[str, Node]) -> dict[str, ProblemNode]:
    """Add up alerts by accused node, without those of a machine that was replaced."""
    by_name: dict[str, ProblemNode] = {}
    for alert in alerts:
        share = 1 / max(1, len(alert.nodes))
        for name in alert.nodes:
            node = nodes.get(name)
            if node is not None and node.is_newer(alert.fired_at):
                continue
            each = by_name.setdefault(name, ProblemNode(name, node))
            each.alerts.append(alert)
            lost_s, n_nodes = alert.cost.get("lost_s") or 0.0, alert.cost.get("n_nodes") or 0
            each.node_hours += share * lost_s * n_nodes / HOUR_S
            each.usd += share * (alert.cost.get("usd") or 0.0)
    return by_name
