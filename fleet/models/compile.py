"""A compile event: one process requested one compiled graph, and its outcome."""

from datetime import datetime
from typing import Self

from django.db import models
from django.db.models import Q

from fleet.models.filters import given


class CompileEventQuerySet(models.QuerySet["CompileEvent"]):
    def unannounced(self) -> Self:
        """Keep the unplanned compiles: again, or during training."""
        return self.filter(verdict__in=(CompileEvent.Verdict.AGAIN, CompileEvent.Verdict.AMID))

    def filter_by(
        self,
        *,
        team: str = "",
        run: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Self:
        """Keep the events that match every field given, unordered.

        Events without a time are kept only where neither ``since`` nor ``until`` is given.
        """
        return self.order_by().filter(
            **given(run__team=team, run__name=run, at__gte=since, at__lt=until)
        )


class CompileEvent(models.Model):
    """One request of a process for a compiled graph."""

    class Outcome(models.TextChoices):
        HIT = "hit", "found in the cache"
        MISS = "miss", "compiled"
        FAIL = "fail", "failed"

    class Verdict(models.TextChoices):
        """Why it was compiled, as known at that time."""

        FIRST = "first", "first time"
        PLANNED = "planned", "announced"
        AGAIN = "again", "compiled again"
        AMID = "amid", "new during training"
        BESIDE = "beside", "compiled by two processes"

    run = models.ForeignKey("fleet.Run", models.CASCADE, related_name="compiles")
    module = models.CharField(
        max_length=120,
        blank=True,
        help_text="MODULE_<hash of the graph>+<hash of the flags>. Empty: unknown.",
    )
    outcome = models.CharField(max_length=4, choices=Outcome)
    rank = models.PositiveIntegerField(null=True, help_text="Empty: unknown.")
    process = models.CharField(
        max_length=160, blank=True, help_text="Requesting process: source and ID."
    )
    at = models.DateTimeField(null=True, help_text="When it was found, or began to compile.")
    seconds = models.FloatField(null=True, help_text="Duration. Empty: unknown.")
    compiler = models.CharField(max_length=60, blank=True, help_text="Version of neuronx-cc.")
    flags = models.CharField(max_length=500, blank=True, help_text="As passed to the compiler.")
    cache = models.CharField(max_length=500, blank=True, help_text="Where the cache is.")
    shape = models.CharField(
        max_length=200,
        blank=True,
        db_default="",
        help_text="Input shapes, if the job reports them.",
    )
    noted_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was received. Empty: imported with a log."
    )
    verdict = models.CharField(
        max_length=8,
        choices=Verdict,
        blank=True,
        db_default="",
        help_text="Why it compiled. Empty: not classified.",
    )
    change = models.JSONField(
        null=True, blank=True, help_text="What changed before an unannounced compile, and when."
    )

    objects = CompileEventQuerySet.as_manager()

    class Meta:
        ordering = ("at", "pk")
        constraints = (
            models.UniqueConstraint(
                fields=["run", "module", "outcome", "process", "at"],
                name="a_compile_event_is_kept_once",
            ),
            models.CheckConstraint(
                condition=Q(seconds=None) | Q(seconds__gte=0) & ~Q(outcome="hit"),
                name="what_is_found_takes_no_compile_time",
            ),
        )
        indexes = (
            models.Index(fields=["-at", "-id"], name="compiles_newest_first"),
            models.Index(fields=["noted_at"], name="compiles_as_they_came"),
        )

    def __str__(self) -> str:
        return f"{self.run}: {self.module or 'a graph'} {self.get_outcome_display()}"
