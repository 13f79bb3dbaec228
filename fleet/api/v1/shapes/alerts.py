"""An alert as the API tells it, with its timeline and what it rests on."""

from datetime import datetime
from typing import Any, Self

from ninja import Field

from fleet.api.v1.fields import Told
from fleet.api.v1.paging import Links
from fleet.models import Alert, AlertEvent
from telemetry.detect import RULES


class AlertOut(Told):
    """One problem: a rule broken by one subject, from noticing until it is over."""

    id: int = Field(description="Number of the alert.", examples=[42])
    version: str = Field(
        description="Changes with every line of its timeline; `If-Match` takes it in quotes.",
        examples=["42-137"],
    )
    rule: str = Field(description="Which rule is broken.", examples=["allreduce_share"])
    title: str = Field(description="What that means, in words.")
    cause: str = Field(description="The cause believed in, or unknown.", examples=["slow_core"])
    severity: str = Field(description="page or warn.", examples=["page"])
    state: str = Field(description="firing, acknowledged or resolved.", examples=["firing"])
    is_silenced: bool = Field(description="Whether nobody is told of it now.")
    subject: str = Field(description="What breaks the rule.", examples=["run:llama"])
    run: str | None = Field(description="The run it concerns.", examples=["llama"])
    team: str | None = Field(description="Whose run that is.")
    node: str | None = Field(description="The node that is blamed.", examples=["llama-03"])
    device: int | None = Field(description="Core, accelerator or EFA device, by cause.")
    score: float = Field(description="Evidence over threshold; 1 is just enough.")
    onset_at: datetime = Field(description="When the signal changed, UTC.")
    fired_at: datetime = Field(description="When trnwatch noticed, UTC.")
    last_seen_at: datetime = Field(description="When it was last seen broken, UTC.")
    resolved_at: datetime | None = Field(description="When it was over, UTC.")
    acknowledged_at: datetime | None = Field(description="When somebody took it, UTC.")
    acknowledged_by: str | None = Field(description="Who took it.", examples=["ada"])
    assigned_at: datetime | None = Field(description="When it was given to somebody, UTC.")
    assigned_to: str | None = Field(description="To whom.", examples=["ada"])
    is_drill: bool = Field(description="Whether a drill caused it.")
    n_firings: int = Field(description="How often it has fired.")
    flapping_since: datetime | None = Field(description="Since when it comes and goes, UTC.")
    silence: int | None = Field(description="Number of the silence that mutes it.")
    earlier: int | None = Field(description="The same problem within the hour before.")
    url: str = Field(description="Path of its page.", examples=["/alerts/42/"])

    @classmethod
    def told(cls, alert: Alert, *, now: datetime, last_event: int | None) -> dict[str, Any]:
        """Return the fields of an alert, asked for with run, node and silence."""
        return {
            **{name: getattr(alert, name) for name in PLAIN},
            "version": version_of(alert.pk, last_event),
            "title": RULES[alert.rule].title if alert.rule in RULES else alert.rule,
            "severity": alert.get_severity_display(),
            "state": alert.state,
            "is_silenced": alert.is_silenced(now),
            "run": alert.run.name if alert.run else None,
            "team": alert.run.team if alert.run else None,
            "node": alert.node.name if alert.node else None,
            "acknowledged_by": alert.acknowledged_by or None,
            "assigned_to": alert.assigned_to or None,
            "silence": alert.silence_id,
            "earlier": alert.earlier_id,
            "url": alert.get_absolute_url(),
        }

    @classmethod
    def of(cls, alert: Alert, *, now: datetime, last_event: int | None) -> Self:
        """Tell an alert."""
        return cls(**cls.told(alert, now=now, last_event=last_event))


PLAIN = (
    "id",
    "rule",
    "cause",
    "subject",
    "device",
    "score",
    "onset_at",
    "fired_at",
    "last_seen_at",
    "resolved_at",
    "acknowledged_at",
    "assigned_at",
    "is_drill",
    "n_firings",
    "flapping_since",
)


def version_of(pk: int, last_event: int | None) -> str:
    """Return the version of an alert: every change of it adds to its timeline."""
    return f"{pk}-{last_event or 0}"


class EventOut(Told):
    """One change in an alert's life."""

    at: datetime = Field(description="When, UTC.")
    kind: str = Field(description="What happened.", examples=["acknowledged"])
    by: str | None = Field(description="Who did it; null: trnwatch itself.", examples=["ada"])
    text: str = Field(description="What was said.")

    @classmethod
    def of(cls, event: AlertEvent) -> Self:
        """Tell a line of the timeline."""
        return cls(at=event.at, kind=event.kind, by=event.by or None, text=event.text)


class AlertDetail(AlertOut):
    """One alert with its timeline and its evidence."""

    nodes: list[str] = Field(description="Names of all nodes that it accuses.")
    victims: list[str] = Field(description="Names of nodes that are slowed.")
    evidence: dict[str, Any] = Field(
        description="The figures it rests on, frozen when it fired; units end their names."
    )
    cost: dict[str, Any] = Field(description="What it has cost; units end the names.")
    timeline: list[EventOut] = Field(description="Everything that happened to it, in order.")


class AlertPage(Links):
    """A page of alerts."""

    items: list[AlertOut] = Field(description="The alerts of this page.")
    sorted_by: str = Field(default="-id", description="What fired last comes first.")
