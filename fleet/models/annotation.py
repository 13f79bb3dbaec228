"""An annotation: an event that may explain a curve, from a person or a program."""

from datetime import UTC, datetime
from typing import Self

from django.db import models
from django.db.models import F, Q

from fleet.models.filters import given


def moment_of(second: float) -> datetime:
    """Convert Unix seconds to a datetime."""
    return datetime.fromtimestamp(second, UTC)


class AnnotationQuerySet(models.QuerySet["Annotation"]):
    def within(self, start: datetime, end: datetime) -> Self:
        """Keep annotations that overlap a time range."""
        return self.filter(at__lte=end).filter(
            Q(ends_at__gte=start) | Q(ends_at=None, at__gte=start)
        )

    def filter_by(
        self,
        *,
        kind: str = "",
        run: str = "",
        node: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Self:
        """Keep annotations that match every given field; the times limit their start."""
        return self.filter(
            **given(kind=kind, run__name=run, node__name=node, at__gte=since, at__lt=until)
        )

    def about(self, *, run: int | None, node: int | None) -> Self:
        """Keep annotations of a run or node, by key, and of the whole fleet."""
        everything = Q(run=None, node=None)
        of_run = Q(run=run) if run is not None else Q(pk__in=[])
        of_node = Q(node=node) if node is not None else Q(pk__in=[])
        return self.filter(everything | of_run | of_node)


class Annotation(models.Model):
    """An event of a run, of a node, or (with neither) of the whole fleet."""

    class Kind(models.TextChoices):
        DEPLOY = "deploy"
        CHECKPOINT = "checkpoint"
        COMPILE = "compile"
        RESTART = "restart"
        SCALE = "scale"
        NOTE = "note"
        # Written by trnwatch where a person changes a limit of a run.
        LIMIT = "limit"

    at = models.DateTimeField(help_text="Start of the event.")
    ends_at = models.DateTimeField(null=True, blank=True, help_text="Empty: no duration.")
    kind = models.CharField(max_length=12, choices=Kind)
    run = models.ForeignKey(
        "fleet.Run", models.CASCADE, null=True, blank=True, related_name="annotations"
    )
    node = models.ForeignKey(
        "fleet.Node", models.CASCADE, null=True, blank=True, related_name="annotations"
    )
    text = models.CharField(max_length=300)
    by = models.CharField(max_length=150, blank=True, help_text="Author. Empty: trnwatch.")

    objects = AnnotationQuerySet.as_manager()

    class Meta:
        ordering = ("at", "pk")
        constraints = (
            models.CheckConstraint(
                condition=Q(ends_at=None) | Q(ends_at__gte=F("at")),
                name="an_annotation_ends_after_it_begins",
            ),
        )
        indexes = (models.Index(fields=["at"], name="annotations_by_time"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.at:%Y-%m-%d %H:%M}: {self.text}"
