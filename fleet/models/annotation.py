"""An annotation: what happened and may explain a curve, as a person or a machine says."""

from datetime import UTC, datetime
from typing import Self

from django.db import models
from django.db.models import F, Q

from fleet.models.filters import given


def moment_of(second: float) -> datetime:
    """Return a Unix second as the database knows moments."""
    return datetime.fromtimestamp(second, UTC)


class AnnotationQuerySet(models.QuerySet["Annotation"]):
    """Queries of annotations for pages and charts."""

    def within(self, start: datetime, end: datetime) -> Self:
        """Keep what happened, or went on, between two moments."""
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
        """Keep the annotations that match every field given; the times limit when they begin."""
        return self.filter(
            **given(kind=kind, run__name=run, node__name=node, at__gte=since, at__lt=until)
        )

    def about(self, *, run: int | None, node: int | None) -> Self:
        """Keep what concerns a run or a node, by their keys, and what concerns everything."""
        everything = Q(run=None, node=None)
        of_run = Q(run=run) if run is not None else Q(pk__in=[])
        of_node = Q(node=node) if node is not None else Q(pk__in=[])
        return self.filter(everything | of_run | of_node)


class Annotation(models.Model):
    """One thing that happened: to a run, to a node, or (with neither) to the whole fleet."""

    class Kind(models.TextChoices):
        """What sort of thing."""

        DEPLOY = "deploy"
        CHECKPOINT = "checkpoint"
        COMPILE = "compile"
        RESTART = "restart"
        SCALE = "scale"
        NOTE = "note"

    at = models.DateTimeField(help_text="When it happened, or began.")
    ends_at = models.DateTimeField(null=True, blank=True, help_text="Empty: a moment.")
    kind = models.CharField(max_length=12, choices=Kind)
    run = models.ForeignKey(
        "fleet.Run", models.CASCADE, null=True, blank=True, related_name="annotations"
    )
    node = models.ForeignKey(
        "fleet.Node", models.CASCADE, null=True, blank=True, related_name="annotations"
    )
    text = models.CharField(max_length=300)
    by = models.CharField(
        max_length=150, blank=True, help_text="Who says so; empty: trnwatch saw it itself."
    )

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
