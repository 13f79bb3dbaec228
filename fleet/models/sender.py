"""Signs of life: of what sends notifications, and of what evaluates the fleet."""

from datetime import datetime, timedelta
from typing import Self

from django.db import models, transaction

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


class Watchdog(models.Model):
    """When the fleet was last evaluated, as the senders know it: the one row of its table.

    It outlasts every sender, so that one that starts does not begin to count anew.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    looked_at = models.DateTimeField(
        help_text="The last evaluation that is known; before the first one, the installation."
    )
    checked_at = models.DateTimeField(help_text="When a sender last checked.")
    missed_s = models.FloatField(
        default=0.0, help_text="For how long senders have seen no evaluation since."
    )

    def __str__(self) -> str:
        return f"evaluated {self.looked_at:%Y-%m-%d %H:%M:%S}"

    @classmethod
    @transaction.atomic
    def check_in(cls, *, seen: datetime | None, now: datetime, longest_gap_s: float) -> Self:
        """Note what one check found; ``seen`` is None where the last evaluation is not known.

        Of the time since the check before, at most ``longest_gap_s`` counts as missed: while no
        sender ran, or the machine was suspended, evaluation may have been switched off as well.
        """
        looked_at = now if seen is None else min(seen, now)
        row, _ = cls.objects.select_for_update().get_or_create(
            pk=1, defaults={"looked_at": looked_at, "checked_at": now}
        )
        # A clock that was set back must not leave an evaluation in the future.
        latest = min(row.looked_at if seen is None else max(row.looked_at, seen), now)
        gap_s = (now - row.checked_at).total_seconds()
        row.missed_s += min(max(gap_s, 0.0), longest_gap_s)
        if latest > row.looked_at:
            row.missed_s = 0.0
        row.looked_at, row.checked_at = latest, now
        row.save(update_fields=["looked_at", "checked_at", "missed_s"])
        return row
