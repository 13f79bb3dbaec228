"""What a notification says, in plain words and figures, before it is given a form."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from fleet.alerts.events import labels_of
from fleet.alerts.text import AlertText, plain
from fleet.charts.frozen import frozen_link
from fleet.models import Alert, AlertEvent, Delivery

KIND = Delivery.Kind


@dataclass(frozen=True, slots=True)
class AlertItem:
    """One alert of a notification."""

    pk: int
    headline: str
    blame: str
    story: str
    rule: str
    cause: str
    cause_name: str
    severity: str
    state: str
    run: str
    team: str
    node: str
    device: int | None
    n_victims: int
    is_drill: bool
    onset_at: datetime
    fired_at: datetime
    resolved_at: datetime | None
    acknowledged_by: str
    url: str
    frozen_url: str
    runbook_url: str
    labels: dict[str, str]

    @property
    def words(self) -> str:
        """The headline, with what is to blame where that is known."""
        return (
            f"{self.headline}. {self.blame}".strip().rstrip(".") if self.blame else self.headline
        )


@dataclass(frozen=True, slots=True)
class TimelineItem:
    """One line of a timeline that the notification tells of."""

    alert: int
    kind: str
    at: datetime
    by: str
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """What happened to one alert or several, to be told to one receiver."""

    kind: Delivery.Kind
    key: str
    at: datetime
    items: tuple[AlertItem, ...]
    changes: tuple[TimelineItem, ...] = ()
    list_url: str = ""
    text: str = ""

    @property
    def mark(self) -> str:
        """What happened, in a word or two."""
        return {
            KIND.FIRING: "FIRING",
            KIND.CHANGED: "UPDATE",
            KIND.ACKNOWLEDGED: "TAKEN",
            KIND.REPEATED: "STILL FIRING",
            KIND.RESOLVED: "RESOLVED",
            KIND.UNDELIVERED: "NOT DELIVERED",
            KIND.TEST: "TEST",
        }[self.kind]

    @property
    def title(self) -> str:
        """All of it in one line."""
        drill = " DRILL" if self.items and all(item.is_drill for item in self.items) else ""
        mark = f"[{self.mark}{drill}]"
        if self.text:
            return f"{mark} {self.text}"
        if len(self.items) == 1:
            return f"{mark} {self.items[0].words}"
        return f"{mark} {len(self.items)} alerts: {self.items[0].headline}, and more"

    @property
    def who(self) -> str:
        """Who did it, where a person did."""
        return next((change.by for change in reversed(self.changes) if change.by), "")


def notice_of(
    delivery: Delivery, labels: dict[int, dict[str, str]], *, base_url: str, now: datetime
) -> Message:
    """Say what a delivery is about, as things stand now."""
    alerts = delivery.alerts.select_related("run", "node").order_by("severity", "fired_at", "pk")
    return Message(
        kind=KIND(delivery.kind),
        key=delivery.key,
        at=now,
        items=tuple(
            item_of(alert, labels.get(alert.pk), base_url=base_url, now=now) for alert in alerts
        ),
        changes=tuple(_changes(delivery.events.all())),
        list_url=f"{base_url}/alerts/",
        text=delivery.note if delivery.kind == KIND.UNDELIVERED else "",
    )


def item_of(
    alert: Alert, labels: dict[str, str] | None, *, base_url: str, now: datetime
) -> AlertItem:
    """Say what one alert is."""
    url = base_url + alert.get_absolute_url()
    text = AlertText(alert, now)
    return AlertItem(
        pk=alert.pk,
        headline=plain(text.headline),
        blame=plain(text.detail),
        story=plain(text.story),
        rule=alert.rule,
        cause=alert.cause,
        cause_name=text.cause,
        severity=alert.get_severity_display(),
        state=alert.state,
        run=alert.run.name if alert.run else "",
        team=alert.run.team if alert.run else "",
        node=alert.node.name if alert.node else "",
        device=alert.device,
        n_victims=len(alert.victims),
        is_drill=alert.is_drill,
        onset_at=alert.onset_at,
        fired_at=alert.fired_at,
        resolved_at=alert.resolved_at,
        acknowledged_by=alert.acknowledged_by,
        url=url,
        frozen_url=base_url + frozen_link(alert, at=now),
        runbook_url=f"{base_url}/runbooks/{alert.rule}/",
        labels=labels or labels_of(alert),
    )


def _changes(events: Iterable[AlertEvent]) -> Iterable[TimelineItem]:
    for event in events:
        yield TimelineItem(event.alert_id, event.kind, event.at, event.by, event.text)
