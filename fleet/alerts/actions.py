"""What people do about an alert: acknowledge, assign, comment, mark as false, resolve."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from fleet.access.roles import assignable_users
from fleet.alerts.events import LONGEST, Kind, change, note
from fleet.models import Alert, AlertEvent, FalseMarkCount
from telemetry.errors import FieldError, check_line

# An alert that was detected this recently cannot be resolved manually.
STILL_BROKEN = timedelta(minutes=1)
# With its reason it fits an entry of the timeline.
LONGEST_MARK = 400


@transaction.atomic
def acknowledge(alert: Alert, *, by: str, comment: str, now: datetime) -> bool:
    """Acknowledge an open alert; False if it is already acknowledged or resolved."""
    text = _checked(comment)
    free = {"acknowledged_at": None, "resolved_at": None}
    if not change(alert, if_still=free, to={"acknowledged_at": now, "acknowledged_by": by}):
        return False
    note(alert, Kind.ACKNOWLEDGED, now=now, by=by, text=text)
    return True


@transaction.atomic
def unacknowledge(alert: Alert, *, by: str, now: datetime, comment: str = "") -> bool:
    """Undo the acknowledgement of ``alert``; False if it has changed or is resolved."""
    text = _checked(comment)
    was = {"acknowledged_at": alert.acknowledged_at, "resolved_at": None}
    was_by, back = alert.acknowledged_by, {"acknowledged_at": None, "acknowledged_by": ""}
    if alert.acknowledged_at is None or not change(alert, if_still=was, to=back):
        return False
    if by != was_by:
        text = f"acknowledged by {was_by} before" + (f"; {text}" if text else "")
    note(alert, Kind.UNACKNOWLEDGED, now=now, by=by, text=text)
    return True


@transaction.atomic
def assign(alert: Alert, *, to: str, by: str, now: datetime, comment: str = "") -> bool:
    """Assign an open alert; False if another user assigned it first, or if it is resolved.

    Raises FieldError where ``to`` is not the name of an operator.
    """
    text = _checked(comment)
    if not assignable_users().filter(username=to).exists():
        raise FieldError("to", f"{to[:40]!r} is not an operator. Choose a name from the list.")
    was = {"assigned_to": alert.assigned_to, "resolved_at": None}
    if not change(alert, if_still=was, to={"assigned_to": to, "assigned_at": now}):
        return False
    note(alert, Kind.ASSIGNED, now=now, by=by, text=f"to {to}" + (f": {text}" if text else ""))
    return True


@transaction.atomic
def comment(alert: Alert, *, by: str, text: str, now: datetime) -> AlertEvent:
    if not text.strip():
        raise FieldError("comment", "is empty. Write what the next reader should know.")
    return note(alert, Kind.COMMENTED, now=now, by=by, text=_checked(text))


@transaction.atomic
def resolve_manually(alert: Alert, *, by: str, now: datetime, comment: str = "") -> bool:
    """Resolve what trnwatch can no longer detect; False where it is resolved already.

    Raises FieldError where it was detected within the last minute.
    """
    text = _checked(comment)
    if alert.is_open and now - alert.last_seen_at < STILL_BROKEN:
        raise FieldError("alert", "was detected within the last minute. Silence it instead.")
    was = {"resolved_at": None, "last_seen_at": alert.last_seen_at}
    if not change(alert, if_still=was, to={"resolved_at": now, "quiet_since": None}):
        return False
    note(alert, Kind.RESOLVED, now=now, by=by, text=text)
    return True


@transaction.atomic
def mark_false(alert: Alert, *, by: str, reason: str, now: datetime, comment: str = "") -> bool:
    """Mark an alert as false, open or resolved; False if it is marked already."""
    reasons = dict(Alert.FalseReason.choices)
    if reason not in reasons:
        raise FieldError("reason", f"{reason[:40]!r} is none. Choose one of {', '.join(reasons)}.")
    text = comment.strip()
    check_line("comment", text, most=LONGEST_MARK)
    if reason == Alert.FalseReason.OTHER and not text:
        raise FieldError("comment", "is empty. Say why the alert is false.")
    to = {"marked_false_at": now, "marked_false_by": by}
    to |= {"false_reason": reason, "false_comment": text}
    if not change(alert, if_still={"marked_false_at": None}, to=to):
        return False
    if not alert.is_drill and not alert.events.filter(kind=Kind.MARKED_FALSE).exists():
        count, _ = FalseMarkCount.objects.get_or_create(rule=alert.rule, severity=alert.severity)
        FalseMarkCount.objects.filter(pk=count.pk).update(n_alerts=F("n_alerts") + 1)
    told = f"{reasons[reason]}: {text}" if text else reasons[reason]
    note(alert, Kind.MARKED_FALSE, now=now, by=by, text=told)
    return True


@transaction.atomic
def unmark_false(alert: Alert, *, by: str, now: datetime, comment: str = "") -> bool:
    """Remove the false mark of ``alert``; False if it has none, or has changed."""
    text, was_by = _checked(comment), alert.marked_false_by
    if alert.marked_false_at is None:
        return False
    to = {"marked_false_at": None, "marked_false_by": "", "false_reason": "", "false_comment": ""}
    if not change(alert, if_still={"marked_false_at": alert.marked_false_at}, to=to):
        return False
    if by != was_by:
        text = f"marked by {was_by} before" + (f"; {text}" if text else "")
    note(alert, Kind.UNMARKED_FALSE, now=now, by=by, text=text)
    return True


def _checked(comment: str) -> str:
    if len(comment.strip()) > LONGEST:
        raise FieldError("comment", f"is longer than {LONGEST} characters. Shorten it.")
    return comment.strip()


RESOLVED = "The alert is already resolved."
# Why an action has changed nothing, with the names of the alert as it is now.
REFUSALS: Mapping[Callable[..., bool], str] = {
    acknowledge: "It is already acknowledged by {0.acknowledged_by}.",
    unacknowledge: "It is not acknowledged.",
    assign: "It was assigned to {0.assigned_to} meanwhile.",
    resolve_manually: RESOLVED,
    mark_false: "It is already marked false by {0.marked_false_by}.",
    unmark_false: "It is not marked as false.",
}
OF_RESOLVED = (mark_false, unmark_false)


def attempt(action: Callable[..., bool], alert: Alert, **given: Any) -> str:
    """Act on an alert; return why that changed nothing, or an empty string."""
    if action(alert, **given):
        return ""
    alert.refresh_from_db()
    is_possible = alert.is_open or action in OF_RESOLVED
    return REFUSALS[action].format(alert) if is_possible else RESOLVED
