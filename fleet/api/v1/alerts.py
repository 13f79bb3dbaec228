"""Alerts: which there are, and one with its timeline and its evidence."""

from datetime import datetime
from typing import Annotated, Literal

from django.db.models import Max, Q, QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router

from fleet.api.v1.access import needs
from fleet.api.v1.fields import Key, Moment, Text, among, choice
from fleet.api.v1.paging import Paging, paged
from fleet.api.v1.shapes.alerts import AlertDetail, AlertOut, AlertPage, EventOut
from fleet.models import Alert, AlertEvent
from telemetry.detect import RULES

router = Router(tags=["alerts"])
Rule = Annotated[str, among(("", *RULES)), choice(("", *RULES))]


class AlertFilter(Paging):
    """Which alerts to list."""

    state: Literal["", "open", "firing", "acknowledged", "silenced", "resolved"] = Field(
        "",
        description="open: not over. firing: open, nobody has it, not silenced. acknowledged: "
        "open, somebody has it. silenced: open, nobody is told of it. resolved: over.",
    )
    rule: Rule = Field("", description="Which rule is broken.", examples=["allreduce_share"])
    cause: Text = Field("", description="The cause believed in.", examples=["slow_core"])
    severity: Literal["", "page", "warn"] = Field("", description="How urgent.")
    run: Text = Field("", description="Name of the run it concerns.", examples=["llama"])
    node: Text = Field("", description="Name of the node that is blamed.")
    team: Text = Field("", description="Whose run it is, exactly.")
    who: Text = Field("", description="Who took it, or was given it.", examples=["ada"])
    drill: Literal["", "yes", "no"] = Field("", description="Whether a drill caused it.")
    since: Moment = Field(None, description="Fired then or later: RFC 3339, or Unix seconds.")
    until: Moment = Field(None, description="Fired before then.")

    def keep(self, alerts: QuerySet[Alert], *, now: datetime) -> QuerySet[Alert]:
        """Keep the alerts asked for."""
        plain = {
            "rule": self.rule,
            "cause": self.cause,
            "severity": {"page": "1-page", "warn": "2-warn"}.get(self.severity),
            "run__name": self.run,
            "node__name": self.node,
            "run__team": self.team,
            "fired_at__gte": self.since,
            "fired_at__lt": self.until,
        }
        alerts = alerts.filter(**{name: value for name, value in plain.items() if value})
        if self.who:
            alerts = alerts.filter(Q(acknowledged_by=self.who) | Q(assigned_to=self.who))
        if self.drill:
            alerts = alerts.filter(is_drill=self.drill == "yes")
        return self._in_state(alerts, now=now)

    def _in_state(self, alerts: QuerySet[Alert], *, now: datetime) -> QuerySet[Alert]:
        if not self.state:
            return alerts
        if self.state == "resolved":
            return alerts.exclude(resolved_at=None)
        alerts = alerts.open()  # type: ignore[attr-defined]
        is_muted = Q(silence__starts_at__lte=now, silence__ends_at__gt=now)
        match self.state:
            case "firing":
                return alerts.filter(acknowledged_at=None).exclude(is_muted)
            case "acknowledged":
                return alerts.exclude(acknowledged_at=None)
            case "silenced":
                return alerts.filter(is_muted)
        return alerts


@router.get("", response=AlertPage, openapi_extra=needs("read"), summary="List alerts")
def alert_list(request: HttpRequest, asked: Query[AlertFilter]) -> AlertPage:
    """Alerts, open and over, the one that fired first last comes first."""
    now = timezone.now()
    alerts = Alert.objects.select_related("run", "node", "silence").defer("victims", "evidence")
    rows, links = paged(request, asked.keep(alerts, now=now), asked, by="-pk")
    events = AlertEvent.objects.filter(alert__in=[alert.pk for alert in rows]).order_by()
    last = dict(events.values_list("alert").annotate(last=Max("pk")))
    items = [AlertOut.of(alert, now=now, last_event=last.get(alert.pk)) for alert in rows]
    return AlertPage(items=items, next=links.next, prev=links.prev)


def detail_of(pk: int) -> AlertDetail:
    """Tell one alert with everything; raises Http404."""
    alert = get_object_or_404(Alert.objects.select_related("run", "node", "silence"), pk=pk)
    events = list(alert.events.all())
    last = max((event.pk for event in events), default=None)
    return AlertDetail(
        **AlertOut.told(alert, now=timezone.now(), last_event=last),
        nodes=alert.nodes,
        victims=alert.victims,
        evidence=alert.evidence,
        cost=alert.cost,
        timeline=[EventOut.of(event) for event in events],
    )


@router.get("/{alert_id}", response=AlertDetail, openapi_extra=needs("read"), summary="One alert")
def alert_one(request: HttpRequest, alert_id: Path[Key]) -> AlertDetail:
    """One alert, with its timeline, its evidence and what it has cost."""
    return detail_of(alert_id)
