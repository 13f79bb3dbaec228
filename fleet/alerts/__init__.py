"""What becomes of findings: alerts that fire, are answered, silenced, resolve and come back."""

from fleet.alerts.actions import (
    AlertError,
    acknowledge,
    assign,
    comment,
    resolve_by_hand,
    unacknowledge,
)
from fleet.alerts.correlation import Subject, subject_of
from fleet.alerts.handover import hand_over
from fleet.alerts.reconcile import reconcile
from fleet.alerts.silences import SilenceError, expire, move_end, silence

__all__ = [
    "AlertError",
    "SilenceError",
    "Subject",
    "acknowledge",
    "assign",
    "comment",
    "expire",
    "hand_over",
    "move_end",
    "reconcile",
    "resolve_by_hand",
    "silence",
    "subject_of",
    "unacknowledge",
]
