"""What fired: each time an alert began to burn, what it said, and when it was over."""

from collections.abc import Iterable
from dataclasses import dataclass

from fleet.models import Alert, AlertEvent
from fleet.words.evidence import Evidence

SETTLED_S = 60.0


@dataclass(slots=True)
class Firing:
    """One stretch of an alert's life from firing to resolved; seconds count from the start."""

    rule: str
    cause: str
    severity: str
    run: str | None
    node: str | None
    device: int | None
    onset_s: float
    fired_s: float
    resolved_s: float | None
    score: float
    victims: tuple[str, ...]
    nodes: tuple[str, ...] = ()

    @property
    def accused(self) -> tuple[str, ...]:
        """All nodes that it accuses: several, one or none."""
        return self.nodes or (() if self.node is None else (self.node,))


class Firings:
    """The firings of a play, followed from the alerts that change."""

    def __init__(self, epoch_s: float) -> None:
        self._epoch_s = epoch_s
        self._burning: dict[int, Firing] = {}
        self._n_refired: dict[int, int] = {}
        self._all: list[Firing] = []

    def note(self, changed: Iterable[Alert], *, at_s: float) -> None:
        """Take note of alerts that have just changed.

        One that burns again fires again; so does one that has come to accuse somebody else.
        """
        for alert in {alert.pk: alert for alert in changed}.values():
            firing = self._burning.get(alert.pk)
            n_refired = alert.events.filter(kind=AlertEvent.Kind.REFIRED).count()
            is_back = n_refired > self._n_refired.get(alert.pk, 0)
            self._n_refired[alert.pk] = n_refired
            if firing is not None and (is_back or is_news(firing, alert, at_s=at_s)):
                firing.resolved_s = at_s
                firing = None
            if firing is not None:
                tell(firing, alert)
            elif alert.is_open:
                self._burning[alert.pk] = firing_of(alert, epoch_s=self._epoch_s, fired_s=at_s)
                self._all.append(self._burning[alert.pk])
            if not alert.is_open and alert.pk in self._burning:
                self._burning.pop(alert.pk).resolved_s = at_s

    def all(self) -> list[Firing]:
        """Return every firing; those that burn still say what their alerts say now."""
        for alert in Alert.objects.filter(pk__in=self._burning).select_related("run", "node"):
            tell(self._burning[alert.pk], alert)
        return list(self._all)


def firing_of(alert: Alert, *, epoch_s: float, fired_s: float) -> Firing:
    """Return what an alert says that fires just now."""
    return Firing(
        rule=alert.rule,
        cause=alert.cause,
        severity=alert.severity,
        run=alert.run.name if alert.run else None,
        node=alert.node.name if alert.node else None,
        device=alert.device,
        onset_s=_onset_at_s(alert) - epoch_s,
        fired_s=fired_s,
        resolved_s=None,
        score=alert.score,
        victims=tuple(alert.victims),
        nodes=_several(alert),
    )


def _onset_at_s(alert: Alert) -> float:
    """Return since when: its row keeps the first onset, its evidence knows the last."""
    onset_s = Evidence(alert.evidence).number("onset_s")
    return max(alert.onset_at.timestamp(), onset_s or 0.0)


def is_news(firing: Firing, alert: Alert, *, at_s: float) -> bool:
    """Whether an alert that accused somebody accuses somebody else now.

    What it says better within the first minute is what it meant from the start. What had no cause
    and could wait for longer, and is urgent now, is news to whoever must get up.
    """
    node = alert.node.name if alert.node else None
    is_urgent = alert.severity < firing.severity and at_s - firing.fired_s >= SETTLED_S
    if alert.is_open and is_urgent and firing.cause == "unknown" != alert.cause:
        return True
    if not alert.is_open or "unknown" in {firing.cause, alert.cause}:
        return False
    if (firing.cause, firing.node) == (alert.cause, node):
        return False
    is_elsewhere = None not in {firing.node, node} and firing.node != node
    return is_elsewhere or at_s - firing.fired_s >= SETTLED_S


def tell(firing: Firing, alert: Alert) -> None:
    """Let a firing say what its alert says."""
    firing.rule, firing.cause, firing.severity = alert.rule, alert.cause, alert.severity
    firing.run = alert.run.name if alert.run else None
    firing.node = alert.node.name if alert.node else None
    firing.device, firing.score = alert.device, alert.score
    firing.victims = tuple(alert.victims)
    # An alert about several nodes loses them one by one; a firing lists all that it accused.
    firing.nodes = tuple(dict.fromkeys((*firing.nodes, *_several(alert))))


def _several(alert: Alert) -> tuple[str, ...]:
    return () if alert.node is not None else tuple(alert.nodes)
