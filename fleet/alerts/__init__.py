"""Alerts: findings fire and resolve them; people acknowledge, assign, comment and silence them."""

from fleet.alerts.actions import (
    acknowledge,
    assign,
    attempt,
    comment,
    mark_false,
    resolve_manually,
    unacknowledge,
    unmark_false,
)
from fleet.alerts.handover import hand_over
from fleet.alerts.reconcile import reconcile
from fleet.alerts.relations import Subject, subject_of
from fleet.alerts.silences import expire, move_end, silence

__all__ = [
    "Subject",
    "acknowledge",
    "assign",
    "attempt",
    "comment",
    "expire",
    "hand_over",
    "mark_false",
    "move_end",
    "reconcile",
    "resolve_manually",
    "silence",
    "subject_of",
    "unacknowledge",
    "unmark_false",
]
