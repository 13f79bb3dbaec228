"""Alerts: findings fire and resolve them; people acknowledge, assign, comment and silence them."""

from fleet.alerts.actions import acknowledge, assign, comment, resolve_manually, unacknowledge
from fleet.alerts.handover import hand_over
from fleet.alerts.reconcile import reconcile
from fleet.alerts.relations import Subject, subject_of
from fleet.alerts.silences import expire, move_end, silence

__all__ = [
    "Subject",
    "acknowledge",
    "assign",
    "comment",
    "expire",
    "hand_over",
    "move_end",
    "reconcile",
    "resolve_manually",
    "silence",
    "subject_of",
    "unacknowledge",
]
