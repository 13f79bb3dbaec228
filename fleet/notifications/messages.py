"""The content of a notification, before a channel gives it its form."""

from dataclasses import dataclass
from datetime import datetime

from django.template.loader import render_to_string

from fleet.alerts.events import labels_of
from fleet.alerts.text import AlertText, plain
from fleet.charts.frozen import frozen_link
from fleet.models import Alert, Delivery

KIND = Delivery.Kind
LABELS = {
    KIND.FIRING: "FIRING",
    KIND.CHANGED: "UPDATE",
    KIND.ACKNOWLEDGED: "ACKNOWLEDGED",
    KIND.REPEATED: "STILL FIRING",
    KIND.RESOLVED: "RESOLVED",
    KIND.UNDELIVERED: "NOT DELIVERED",
    KIND.TEST: "TEST",
}


@dataclass(frozen=True, slots=True)
class AlertItem:
    """One alert of a notification; the names of its fields are keys of the webhook's JSON."""

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
    def summary(self) -> str:
        """The headline and the likely cause, in one line."""
        return f"{self.headline}. {self.blame}".rstrip(". ") if self.blame else self.headline


@dataclass(frozen=True, slots=True)
class TimelineItem:
    """A timeline entry that the notification reports."""

    alert: int
    kind: str
    at: datetime
    by: str
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """What happened to one or several alerts, for one receiver."""

    kind: Delivery.Kind
    key: str
    at: datetime
    items: tuple[AlertItem, ...]
    changes: tuple[TimelineItem, ...] = ()
    list_url: str = ""
    text: str = ""

    @property
    def label(self) -> str:
        """What happened, in a word or two."""
        return LABELS[self.kind]

    @property
    def is_drill(self) -> bool:
        """Whether all its alerts are drills."""
        return bool(self.items) and all(item.is_drill for item in self.items)

    @property
    def title(self) -> str:
        """The whole message in one line."""
        return render_to_string("notifications/title.txt", {"message": self}).rstrip("\n")

    @property
    def by(self) -> str:
        """The person whose action it reports last; empty without one."""
        return next((change.by for change in reversed(self.changes) if change.by), "")

    @property
    def comment(self) -> str:
        """The last text of the timeline entries it reports."""
        return next((change.text for change in reversed(self.changes) if change.text), "")


def message_of(
    delivery: Delivery, labels: dict[int, dict[str, str]], *, base_url: str, now: datetime
) -> Message:
    """Return the content of a delivery, as of now."""
    alerts = delivery.alerts.select_related("run", "node").order_by("severity", "fired_at", "pk")
    return Message(
        kind=KIND(delivery.kind),
        key=delivery.key,
        at=now,
        items=tuple(
            item_of(alert, labels.get(alert.pk), base_url=base_url, now=now) for alert in alerts
        ),
        changes=tuple(
            TimelineItem(event.alert_id, event.kind, event.at, event.by, event.text)
            for event in delivery.events.all()
        ),
        list_url=f"{base_url}/alerts/",
        text=delivery.note if delivery.kind == KIND.UNDELIVERED else "",
    )


def item_of(
    alert: Alert, labels: dict[str, str] | None, *, base_url: str, now: datetime
) -> AlertItem:
    """Return an alert as part of a notification."""
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
