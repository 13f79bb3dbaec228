"""A sign of life of what sends notifications."""

from datetime import datetime, timedelta
from typing import Self

from django.db import models

# A sender says each few seconds that it is there.
MISSING_AFTER = timedelta(seconds=60)


class SenderPulseQuerySet(models.QuerySet["SenderPulse"]):
    """The questions that pages ask about senders."""

    def alive(self, now: datetime) -> Self:
        """Keep those heard of lately."""
        return self.filter(seen_at__gt=now - MISSING_AFTER)


class SenderPulse(models.Model):
    """One process that sends notifications, and when it was last heard of."""

    name = models.CharField(max_length=64, unique=True)
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    is_watched = models.BooleanField(default=False, help_text="Whether watching is alive.")
    beat_at = models.DateTimeField(
        null=True, blank=True, help_text="When the dead man's switch was last held."
    )
    beat_error = models.CharField(max_length=300, blank=True)

    objects = SenderPulseQuerySet.as_manager()

    class Meta:
        ordering = ("-seen_at",)

    def __str__(self) -> str:
        return self.name

    def is_alive(self, now: datetime) -> bool:
        """Whether it was heard of lately."""
        return self.seen_at > now - MISSING_AFTER
