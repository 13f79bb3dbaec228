"""What becomes of findings: alerts that fire, are answered, silenced, resolve and come back."""

from fleet.alerting.answers import (
    AlertError,
    acknowledge,
    assign,
    comment,
    resolve_by_hand,
    unacknowledge,
)
from fleet.alerting.handing_over import hand_over
from fleet.alerting.muting import SilenceError, expire, move_end, silence
from fleet.alerting.pairing import Subject, subject_of
from fleet.alerting.reconciling import reconcile

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
