"""What people do about an alert: take it, give it back, hand it on, remark, call it over."""

from datetime import datetime, timedelta

from django.db import transaction

from fleet.access.roles import assignable_users
from fleet.alerts.events import LONGEST, Kind, change, note
from fleet.models import Alert, AlertEvent

# Seen broken this lately, it is not over, whatever anybody says.
STILL_BROKEN = timedelta(minutes=1)


class AlertError(ValueError):
    """What was asked of an alert cannot be done; the message says why."""


@transaction.atomic
def acknowledge(alert: Alert, *, by: str, comment: str, now: datetime) -> bool:
    """Take an open alert; False where somebody already had it, and their name stands."""
    text = _said(comment)
    free = {"acknowledged_at": None, "resolved_at": None}
    if not change(alert, if_still=free, to={"acknowledged_at": now, "acknowledged_by": by}):
        return False
    note(alert, Kind.ACKNOWLEDGED, now=now, by=by, text=text)
    return True


@transaction.atomic
def unacknowledge(alert: Alert, *, by: str, now: datetime, comment: str = "") -> bool:
    """Undo the acknowledgement in hand; False where it is no longer that one, or it is over."""
    text = _said(comment)
    was = {"acknowledged_at": alert.acknowledged_at, "resolved_at": None}
    was_by, back = alert.acknowledged_by, {"acknowledged_at": None, "acknowledged_by": ""}
    if alert.acknowledged_at is None or not change(alert, if_still=was, to=back):
        return False
    if by != was_by:
        text = f"it was {was_by}'s" + (f"; {text}" if text else "")
    note(alert, Kind.UNACKNOWLEDGED, now=now, by=by, text=text)
    return True


@transaction.atomic
def assign(alert: Alert, *, to: str, by: str, now: datetime, comment: str = "") -> bool:
    """Give an open alert to somebody; False where it went to somebody else meanwhile, or is over.

    Raises
    ------
    AlertError
        Where nobody who may act has that name.
    """
    text = _said(comment)
    if not assignable_users().filter(username=to).exists():
        raise AlertError(f"to: nobody who may act is called {to[:40]!r}; choose from the list")
    was = {"assigned_to": alert.assigned_to, "resolved_at": None}
    if not change(alert, if_still=was, to={"assigned_to": to, "assigned_at": now}):
        return False
    note(alert, Kind.ASSIGNED, now=now, by=by, text=f"to {to}" + (f": {text}" if text else ""))
    return True


@transaction.atomic
def comment(alert: Alert, *, by: str, text: str, now: datetime) -> AlertEvent:
    """Add a remark to the timeline."""
    if not text.strip():
        raise AlertError("comment: is empty; write what the next reader should know")
    return note(alert, Kind.COMMENTED, now=now, by=by, text=_said(text))


@transaction.atomic
def resolve_by_hand(alert: Alert, *, by: str, now: datetime, comment: str = "") -> bool:
    """Call over what trnwatch can no longer see; False where it was over already.

    Raises
    ------
    AlertError
        Where it was seen broken within the last minute.
    """
    text = _said(comment)
    if alert.is_open and now - alert.last_seen_at < STILL_BROKEN:
        raise AlertError("It is still broken, as of the last look; silence it instead.")
    was = {"resolved_at": None, "last_seen_at": alert.last_seen_at}
    if not change(alert, if_still=was, to={"resolved_at": now, "quiet_since": None}):
        return False
    note(alert, Kind.RESOLVED, now=now, by=by, text=text)
    return True


def _said(text: str) -> str:
    if len(text.strip()) > LONGEST:
        raise AlertError(f"comment: is longer than {LONGEST} characters; shorten it")
    return text.strip()
