"""A preflight: nodes probed before a run starts on them, and the findings."""

from datetime import datetime, timedelta
from typing import Self

from django.db import models
from django.db.models import F, Q
from django.urls import reverse

from fleet.models.filters import given

# An older pass says little about the current state of the nodes.
GOOD_FOR = timedelta(days=1)


class PreflightQuerySet(models.QuerySet["Preflight"]):
    def filter_by(self, *, verdict: str = "") -> Self:
        """Keep the preflights with a verdict: pass, hold or fail; empty: all."""
        return self.filter(**given(verdict=verdict))

    def unfinished(self) -> Self:
        return self.filter(finished_at=None)

    def valid_at(self, moment: datetime) -> Self:
        """Keep those finished within the day before a time; newest first."""
        return self.filter(finished_at__lte=moment, finished_at__gt=moment - GOOD_FOR).order_by(
            "-finished_at", "-pk"
        )


class Preflight(models.Model):
    """One group of nodes of one type, probed and judged."""

    class Source(models.TextChoices):
        SIMULATED = "simulated"
        FILES = "files", "probe files"

    class Verdict(models.TextChoices):
        PASS = "pass"  # noqa: S105
        HOLD = "hold"
        FAIL = "fail"

    asked_by = models.CharField(max_length=150)
    asked_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    run = models.ForeignKey(
        "fleet.Run",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="preflights",
        help_text="Whose nodes were asked for, if a run's were.",
    )
    instance_type = models.CharField(max_length=40)
    names = models.JSONField(help_text="The nodes, in order.")
    take = models.PositiveIntegerField(
        null=True, blank=True, help_text="Number of nodes to choose. Empty: all that pass."
    )
    source = models.CharField(max_length=12, choices=Source, default=Source.SIMULATED)
    faults = models.JSONField(
        default=list, blank=True, help_text="Injected faults, besides drills."
    )
    n_done = models.PositiveIntegerField(default=0, help_text="Completed stages.")
    n_stages = models.PositiveIntegerField(default=0)
    measured = models.BinaryField(default=bytes, help_text="All figures, packed.")
    verdict = models.CharField(max_length=4, choices=Verdict, blank=True)
    found = models.JSONField(
        default=dict, blank=True, help_text="Results, as pages and the API show them."
    )

    objects = PreflightQuerySet.as_manager()

    class Meta:
        ordering = ("-pk",)
        constraints = (
            models.CheckConstraint(
                condition=Q(n_done__lte=F("n_stages")), name="no_more_stages_than_there_are"
            ),
        )

    def __str__(self) -> str:
        return f"preflight {self.pk}"

    def get_absolute_url(self) -> str:
        return reverse("preflight-detail", args=[self.pk])

    @property
    def is_over(self) -> bool:
        return self.finished_at is not None

    @property
    def progress_ratio(self) -> float:
        return self.n_done / self.n_stages if self.n_stages else 0.0


class PreflightNode(models.Model):
    """The verdict of a preflight on one node, which the fleet may not know yet."""

    preflight = models.ForeignKey(Preflight, models.CASCADE, related_name="nodes")
    name = models.CharField(max_length=80, db_index=True)
    verdict = models.CharField(max_length=4, choices=Preflight.Verdict)
    is_chosen = models.BooleanField(help_text="Whether the node is among the chosen ones.")

    class Meta:
        ordering = ("pk",)
        constraints = (
            models.UniqueConstraint(
                fields=["preflight", "name"], name="a_preflight_judges_a_node_once"
            ),
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict}"
