"""Silences, their timelines, and handover notes."""

from datetime import datetime
from typing import Self

from django.db import models
from django.db.models import F, Q
from django.urls import reverse

from fleet.models.filters import given


class SilenceQuerySet(models.QuerySet["Silence"]):
    def active(self, now: datetime) -> Self:
        """Keep the silences that are active now.

        A silence is active from its creation until it is ended, also for an evaluation
        that began just before: its clock is older than the rows it reads.
        """
        return self.filter(ends_at__gt=now, expired_by="")

    def over(self, now: datetime) -> Self:
        """Keep ended silences, latest first."""
        return self.filter(ends_at__lte=now).order_by("-ends_at", "-pk")

    def filter_by(self, *, now: datetime, state: str = "", by: str = "") -> Self:
        """Keep silences that match every given field; ``state`` is active or over."""
        silences = self.filter(**given(by=by))
        if state == "active":
            return silences.active(now)
        return silences.over(now) if state else silences


class Silence(models.Model):
    """Mutes notifications of matching alerts for a time; the alerts stay visible."""

    matchers = models.CharField(max_length=500, help_text="Parsed by fleet/alerts/matchers.py.")
    reason = models.CharField(max_length=500)
    by = models.CharField(max_length=150)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    expired_by = models.CharField(max_length=150, blank=True, help_text="Who ended it early.")

    objects = SilenceQuerySet.as_manager()

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=Q(ends_at__gte=F("starts_at")), name="ends_after_it_starts"
            ),
        )
        indexes = (models.Index(fields=["ends_at"], name="silences_by_their_end"),)

    def __str__(self) -> str:
        return f"{self.matchers} until {self.ends_at:%Y-%m-%d %H:%M}"

    def get_absolute_url(self) -> str:
        return reverse("silence-detail", args=[self.pk])

    def is_active(self, now: datetime) -> bool:
        return now < self.ends_at and not self.expired_by


class SilenceEvent(models.Model):
    class Kind(models.TextChoices):
        CREATED = "created"
        END_MOVED = "end_moved", "end moved"
        EXPIRED = "expired", "ended early"

    silence = models.ForeignKey(Silence, models.CASCADE, related_name="events")
    at = models.DateTimeField()
    kind = models.CharField(max_length=12, choices=Kind)
    by = models.CharField(max_length=150)
    text = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ("at", "pk")

    def __str__(self) -> str:
        return f"{self.silence_id} {self.kind} {self.at:%H:%M:%S}"


class HandoverNote(models.Model):
    at = models.DateTimeField()
    since = models.DateTimeField(help_text="Start of the shift.")
    by = models.CharField(max_length=150)
    to = models.CharField(max_length=150, blank=True, help_text="Empty: the next person on call.")
    text = models.TextField(max_length=5000)

    class Meta:
        db_table = "fleet_handover"
        ordering = ("-at", "-pk")

    def __str__(self) -> str:
        return f"{self.by} to {self.to or 'the next shift'}, {self.at:%Y-%m-%d %H:%M}"
