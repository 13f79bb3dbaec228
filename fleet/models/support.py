"""A support check: a model's operators and their judgements, for a trial or none."""

from typing import Self

from django.db import models
from django.db.models import F, Q
from django.urls import reverse

from fleet.models.filters import given
from telemetry.checks.operators import OperatorFileKind


class SupportCheckQuerySet(models.QuerySet["SupportCheck"]):
    def filter_by(self, *, trial: str = "", by: str = "", verdict: str = "") -> Self:
        """Keep the checks that match every field given.

        ``verdict`` is supported (all operators are), unsupported (some are not) or unknown (none
        is known to be unsupported, but some are unknown).
        """
        verdicts: dict[str, dict[str, int]] = {
            "": {},
            "supported": {"n_unsupported": 0, "n_unknown": 0},
            "unsupported": {"n_unsupported__gt": 0},
            "unknown": {"n_unsupported": 0, "n_unknown__gt": 0},
        }
        return self.filter(**given(trial__name=trial, by=by), **verdicts[verdict])


class SupportCheck(models.Model):
    """One file of operators, judged by the list published at that time."""

    class Kind(models.TextChoices):
        FX = OperatorFileKind.FX.value, "graph of PyTorch"
        HLO = OperatorFileKind.HLO.value, "HLO"
        STABLEHLO = OperatorFileKind.STABLEHLO.value, "StableHLO"
        LIST = OperatorFileKind.LIST.value, "list"
        REPORT = OperatorFileKind.REPORT.value, "report of the compiler"

    file = models.CharField(max_length=200, help_text="File name without folders.")
    digest = models.CharField(max_length=64, help_text="SHA-256 of the file.")
    form = models.CharField(max_length=12, choices=Kind)
    n_operators = models.PositiveIntegerField(help_text="Distinct operators, not uses.")
    n_supported = models.PositiveIntegerField()
    n_unsupported = models.PositiveIntegerField()
    n_unknown = models.PositiveIntegerField()
    operators = models.JSONField(help_text="Each operator with its verdict, the worst first.")
    basis = models.JSONField(
        default=dict, help_text="The published list's size and date; the compiler's report."
    )
    checked_at = models.DateTimeField()
    by = models.CharField(max_length=150, help_text="Who checked.")
    trial = models.ForeignKey(
        "fleet.Trial",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="support_checks",
        help_text="What it was checked for.",
    )

    objects = SupportCheckQuerySet.as_manager()

    class Meta:
        ordering = ("-checked_at", "-pk")
        constraints = (
            models.CheckConstraint(
                condition=Q(
                    n_operators=F("n_supported") + F("n_unsupported") + F("n_unknown"),
                    n_operators__gte=1,
                ),
                name="every_operator_is_judged_once",
            ),
        )
        indexes = (models.Index(fields=["-checked_at"], name="support_checks_newest_first"),)

    def __str__(self) -> str:
        return f"{self.file}: {self.n_unsupported} unsupported, {self.n_unknown} unknown"

    def get_absolute_url(self) -> str:
        return reverse("support-detail", args=[self.pk])
