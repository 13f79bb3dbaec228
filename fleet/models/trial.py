"""A trial: runs that train the same thing on different hardware, and what to choose."""

from datetime import datetime
from typing import Self

from django.db import models
from django.db.models import F, Q
from django.urls import reverse

from fleet.models.filters import given
from telemetry.statistics.verdicts import DEFAULT_STEPS, MARGIN_RATIO


class TrialQuerySet(models.QuerySet["Trial"]):
    def due(self) -> Self:
        """Keep trials whose results may still change."""
        return self.filter(Q(ended_at=None) | Q(figured_at=None) | Q(figured_at__lt=F("ended_at")))

    def filter_by(self, *, state: str = "", team: str = "") -> Self:
        """Keep trials that match every given field; ``state`` is open or over."""
        trials = self.filter(**given(team=team))
        return trials.filter(ended_at__isnull=state == "open") if state else trials

    def with_arms(self) -> Self:
        return self.prefetch_related("arms__run", "arms__replicate_of__run")


class Trial(models.Model):
    """A comparison of runs that answers one question."""

    name = models.SlugField(max_length=60, unique=True)
    question = models.CharField(max_length=200, help_text="The decision to make, in one line.")
    team = models.CharField(max_length=40, blank=True)
    planned_steps = models.PositiveIntegerField(
        default=DEFAULT_STEPS, help_text="Settled steps of each arm until the verdict is final."
    )
    margin_ratio = models.FloatField(
        default=MARGIN_RATIO,
        db_default=MARGIN_RATIO,
        help_text="Arms that differ by less are equivalent, 0 to 0.5.",
    )
    planned_tokens = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Tokens of the whole training, to project its duration. Empty: no projection.",
    )
    created_by = models.CharField(max_length=150, help_text="Who created it.")
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True, help_text="Later steps do not count.")
    figures = models.JSONField(
        default=dict, blank=True, help_text="Results of the arms. Empty: not computed yet."
    )
    figured_at = models.DateTimeField(
        null=True, blank=True, help_text="When the results were computed."
    )

    objects = TrialQuerySet.as_manager()

    class Meta:
        ordering = ("-pk",)
        constraints = (
            models.CheckConstraint(
                condition=Q(planned_steps__gte=1), name="a_trial_plans_some_steps"
            ),
        )

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("trial-detail", args=[self.name])

    @property
    def compared_arms(self) -> list["TrialArm"]:
        """The arms without their further runs, the baseline first."""
        return [arm for arm in self.arms.all() if arm.replicate_of_id is None]

    def until(self, now: datetime) -> datetime:
        """Time up to which steps count: its end, or now."""
        return self.ended_at or now


class TrialArm(models.Model):
    """One run of a trial: an arm, or a further run of one."""

    trial = models.ForeignKey(Trial, models.CASCADE, related_name="arms")
    run = models.ForeignKey("fleet.Run", models.CASCADE, related_name="trial_arms")
    label = models.CharField(max_length=60, help_text="Display name, such as the hardware.")
    is_baseline = models.BooleanField(default=False)
    replicate_of = models.ForeignKey(
        "self",
        models.CASCADE,
        null=True,
        blank=True,
        related_name="replicates",
        help_text="The arm of which it is a further run. Empty: it is an arm.",
    )
    position = models.PositiveSmallIntegerField(default=0)

    class Meta:
        ordering = ("-is_baseline", "position", "pk")
        constraints = (
            models.UniqueConstraint(fields=["trial", "run"], name="a_run_is_one_arm_of_a_trial"),
            models.UniqueConstraint(
                fields=["trial"], condition=Q(is_baseline=True), name="one_baseline_per_trial"
            ),
        )

    def __str__(self) -> str:
        return f"{self.label} of {self.trial}"
