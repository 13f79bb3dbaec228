"""What a notification says: alerts in words, whatever the receiver."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.template.loader import render_to_string

from fleet.alerts.events import labels_of
from fleet.alerts.impact import Impact, worst_first
from fleet.alerts.runbooks import steps_now
from fleet.alerts.text import AlertText, plain
from fleet.charts.frozen import frozen_link
from fleet.charts.image import image_url
from fleet.models import Alert, Delivery, Receiver

log = logging.getLogger(__name__)

KIND = Delivery.Kind
LABELS = {
    KIND.FIRING: "FIRING",
    KIND.CHANGED: "UPDATE",
    KIND.ACKNOWLEDGED: "ACKNOWLEDGED",
    KIND.MARKED_FALSE: "MARKED FALSE",
    KIND.REPEATED: "STILL FIRING",
    KIND.RESOLVED: "RESOLVED",
    KIND.UNDELIVERED: "NOT DELIVERED",
    KIND.TEST: "TEST",
}


COLOURS = {KIND.ACKNOWLEDGED: "#5a4fb0", KIND.RESOLVED: "#12694a"}


@dataclass(frozen=True, slots=True)
class AlertItem:
    """One alert of a notification; the names of its fields are keys of the webhook's JSON."""

    pk: int
    headline: str
    blame: str
    verdict: str
    because: str
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
    part: str
    n_victims: int
    is_drill: bool
    onset_at: datetime
    fired_at: datetime
    resolved_at: datetime | None
    acknowledged_by: str
    false_mark: str
    url: str
    frozen_url: str
    runbook_url: str
    image_url: str
    do_now: str
    labels: dict[str, str]
    impact: Impact

    @property
    def summary(self) -> str:
        """What is wrong and what it costs, then why, in one line."""
        return f"{self.verdict}. {self.because}".rstrip(". ") if self.because else self.verdict


@dataclass(frozen=True, slots=True)
class TimelineItem:
    alert: int
    kind: str
    at: datetime
    by: str
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """What happened to one or several alerts, for one receiver.

    ``image`` is the chart of the first alert as a PNG. ``has_buttons``: the receiver can answer.
    """

    kind: Delivery.Kind
    key: str
    at: datetime
    items: tuple[AlertItem, ...]
    changes: tuple[TimelineItem, ...] = ()
    list_url: str = ""
    text: str = ""
    image: bytes | None = None
    has_buttons: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it asks for an action: its alerts fire."""
        return self.kind in {KIND.FIRING, KIND.CHANGED, KIND.REPEATED}

    @property
    def label(self) -> str:
        return LABELS[self.kind]

    @property
    def colour(self) -> str:
        """The colour of the mail, as the page has it in its light theme."""
        if self.is_open and self.items and self.items[0].severity == "page":
            return "#b3261e"
        return COLOURS.get(self.kind, "#855400" if self.is_open else "#566372")

    @property
    def is_drill(self) -> bool:
        return bool(self.items) and all(item.is_drill for item in self.items)

    @property
    def title(self) -> str:
        return render_to_string("notifications/title.txt", {"message": self}).rstrip("\n")

    @property
    def by(self) -> str:
        """The person whose action it reports last; empty without one."""
        return next((change.by for change in reversed(self.changes) if change.by), "")

    @property
    def comment(self) -> str:
        """The last text of the timeline entries it reports."""
        return next((change.text for change in reversed(self.changes) if change.text), "")


Draw = Callable[[Alert, datetime], bytes | None]


def message_of(
    delivery: Delivery,
    labels: dict[int, dict[str, str]],
    *,
    base_url: str,
    now: datetime,
    draw: Draw | None = None,
) -> Message:
    """Compose the message of a delivery; ``labels`` are those sent before, by alert.

    ``draw`` draws the chart of an alert for receivers that cannot fetch it.
    """
    rows = delivery.alerts.select_related("run", "node").order_by("pk")
    alerts, receiver = sorted(rows, key=worst_first), delivery.receiver
    is_drawn = draw is not None and alerts and receiver.kind == Receiver.Kind.EMAIL
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
        image=_drawn(draw, alerts[0], now) if draw is not None and is_drawn else None,
        has_buttons=receiver.kind == Receiver.Kind.SLACK and bool(receiver.secret),
    )


def _drawn(draw: Draw, alert: Alert, now: datetime) -> bytes | None:
    """Draw a chart; without the store of measurements the message goes without it."""
    try:
        return draw(alert, now)
    except Exception:
        log.exception("The chart of alert %s could not be drawn", alert.pk)
        return None


def item_of(
    alert: Alert, labels: dict[str, str] | None, *, base_url: str, now: datetime
) -> AlertItem:
    text = AlertText(alert, now)
    return AlertItem(
        pk=alert.pk,
        headline=plain(text.headline),
        blame=plain(text.detail),
        verdict=plain(text.verdict),
        because=plain(text.because),
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
        part=text.part,
        n_victims=len(alert.victims),
        is_drill=alert.is_drill,
        onset_at=alert.onset_at,
        fired_at=alert.fired_at,
        resolved_at=alert.resolved_at,
        acknowledged_by=alert.acknowledged_by,
        false_mark=alert.false_mark,
        url=base_url + alert.get_absolute_url(),
        frozen_url=base_url + frozen_link(alert, at=now),
        runbook_url=f"{base_url}/runbooks/{alert.rule}/",
        image_url=image_url(alert, base_url=base_url, at=now),
        do_now=steps_now(alert, base_url=base_url),
        labels=labels or labels_of(alert),
        impact=text.impact,
    )
