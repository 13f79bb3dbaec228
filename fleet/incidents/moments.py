"""An alert as it was at a moment, and the link that shows it so for ever after."""

import copy
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from urllib.parse import urlencode

from fleet.charts.alerts import alert_window
from fleet.models import Alert, AlertEvent, Node, Silence
from fleet.models.alert import SAID

Kind = AlertEvent.Kind
# Unix seconds of this age, to the microsecond: whole seconds would miss, or add, an event.
MOMENT = re.compile(r"\d{1,11}(\.\d{1,6})?", re.ASCII)
SILENCED = re.compile(r"until (\d{4}-\d\d-\d\d \d\d:\d\d) UTC: (.*)", re.DOTALL)


def frozen_link(alert: Alert, *, at: datetime) -> str:
    """Return the address of an alert's page as it stands at a moment: window, evidence, state."""
    window = alert_window(alert, now=at)
    query = {"from": window.start, "to": window.end, "at": written(at)}
    return f"{alert.get_absolute_url()}?{urlencode(query)}"


def written(moment: datetime) -> str:
    """Write a moment as addresses hold it, in Unix seconds."""
    return f"{moment.timestamp():.6f}".rstrip("0").rstrip(".")


def asked_moment(given: str, *, alert: Alert, now: datetime) -> datetime | None:
    """Read the moment of an address, in Unix seconds; None where it can be none of this alert's.

    The alert's own second is as early as it gets: before it fired there was nothing to show.
    """
    if not MOMENT.fullmatch(given):
        return None
    moment = datetime.fromtimestamp(float(given), UTC)
    return max(moment, alert.fired_at) if moment <= now else None


def as_of(alert: Alert, events: Iterable[AlertEvent], *, at: datetime) -> Alert:
    """Return a copy of an alert as it was at a moment; it is never to be saved.

    What it said is what the last event that changed it wrote down; who had it, and whether it
    was over, follow from the events up to then.
    """
    then = copy.copy(alert)
    past = [event for event in events if event.at <= at]
    told = [event.snapshot for event in past if event.snapshot]
    if told:
        _say_again(then, told[-1])
    then.resolved_at = then.acknowledged_at = None
    then.acknowledged_by = then.assigned_to = ""
    then.assigned_at = then.flapping_since = then.quiet_since = then.silence = None
    then.n_firings = 1 + sum(event.kind == Kind.REFIRED for event in past)
    for event in past:
        _replay(then, event)
    return then


def _say_again(then: Alert, told: dict[str, object]) -> None:
    for name in SAID:
        if name in told:
            setattr(then, name, told[name])
    node = told.get("node")
    if node != (then.node.name if then.node else None):
        then.node = Node.objects.filter(name=node).first() if node else None


def _replay(then: Alert, event: AlertEvent) -> None:
    """Let one event happen to an alert again, as far as people and its end are concerned."""
    match event.kind:
        case Kind.ACKNOWLEDGED:
            then.acknowledged_at, then.acknowledged_by = event.at, event.by
        case Kind.UNACKNOWLEDGED:
            then.acknowledged_at, then.acknowledged_by = None, ""
        case Kind.RESOLVED:
            then.resolved_at = event.at
        case Kind.REFIRED:
            then.resolved_at = then.silence = None
        case Kind.SILENCED:
            then.silence = _silence(event)
        case Kind.UNSILENCED:
            then.silence = None
        case Kind.FLAPPING:
            then.flapping_since = event.at
        case Kind.ASSIGNED:
            then.assigned_to = event.text.removeprefix("to ").partition(":")[0]
            then.assigned_at = event.at


def _silence(event: AlertEvent) -> Silence | None:
    """Return a silence as its event announced it: its own row may have changed, or be gone."""
    told = SILENCED.fullmatch(event.text)
    if told is None:
        return None
    ends_at = datetime.strptime(told[1], "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
    return Silence(by=event.by, reason=told[2], starts_at=event.at, ends_at=ends_at)


def with_worst(alert: Alert, events: Iterable[AlertEvent], *, at: datetime) -> dict[str, object]:
    """Return an alert's evidence with the worst share that its timeline ever told of.

    The evidence itself is of the last time that something was worth telling.
    """
    told = [event.snapshot.get("evidence", {}) for event in events if event.at <= at]
    shares = [share for each in told if isinstance(share := each.get("share_ratio"), float)]
    return {**alert.evidence, "worst_share_ratio": max(shares)} if shares else alert.evidence
