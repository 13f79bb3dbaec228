"""From an alert's timeline to the outbox: what alerting needs of notifications, and no more."""

from fleet.notifying.enqueueing import enqueue

__all__ = ["enqueue"]
