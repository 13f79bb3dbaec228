"""From an alert's timeline to the outbox: what alerting needs of notifications, and no more."""

from fleet.outbox.enqueueing import enqueue

__all__ = ["enqueue"]
