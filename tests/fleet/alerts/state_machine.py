"""A timeline followed to its end, compared with the stored alert."""

from typing import Any

from fleet.models import Alert, AlertEvent

Kind = AlertEvent.Kind


def as_notified(events: list[AlertEvent]) -> dict[str, Any]:
    """Follow a timeline to where it leaves the alert."""
    state: dict[str, Any] = {"n_fired": 0}
    for event in events:
        match event.kind:
            case Kind.FIRED | Kind.REFIRED:
                state |= {"is_open": True, "n_fired": state["n_fired"] + 1, "is_muted": False}
            case Kind.RESOLVED:
                state |= {"is_open": False, "resolved_at": event.at}
            case Kind.ACKNOWLEDGED:
                state |= {"acknowledged_by": event.by, "acknowledged_at": event.at}
            case Kind.UNACKNOWLEDGED:
                state |= {"acknowledged_by": "", "acknowledged_at": None}
            case Kind.MARKED_FALSE:
                state |= {"marked_false_by": event.by, "marked_false_at": event.at}
            case Kind.UNMARKED_FALSE:
                state |= {"marked_false_by": "", "marked_false_at": None}
            case Kind.ASSIGNED:
                state["assigned_at"] = event.at
            case Kind.SILENCED | Kind.UNSILENCED:
                state["is_muted"] = event.kind == Kind.SILENCED
    return state


def as_stored(alert: Alert) -> dict[str, Any]:
    """Return the state of an alert that follows from its timeline."""
    kinds = {event.kind: event.at for event in alert.events.all()}
    n_fired = sum(event.kind in {Kind.FIRED, Kind.REFIRED} for event in alert.events.all())
    reported: dict[str, Any] = {"is_open": alert.is_open, "is_muted": alert.silence_id is not None}
    reported["n_fired"] = n_fired
    if Kind.RESOLVED in kinds:
        reported["resolved_at"] = alert.resolved_at or kinds[Kind.RESOLVED]
    if Kind.ACKNOWLEDGED in kinds:
        reported["acknowledged_by"] = alert.acknowledged_by
        reported["acknowledged_at"] = alert.acknowledged_at
    if Kind.MARKED_FALSE in kinds:
        reported["marked_false_by"] = alert.marked_false_by
        reported["marked_false_at"] = alert.marked_false_at
    if Kind.ASSIGNED in kinds:
        reported["assigned_at"] = alert.assigned_at
    return reported
