"""A route: which alerts go to which receivers, together with which others, how often."""

from typing import Self

from django.db import models
from django.db.models import Q


class RouteQuerySet(models.QuerySet["Route"]):
    """The questions that routing asks about routes."""

    def in_order(self) -> Self:
        """Sort as they are tried; the default route is the last."""
        return self.order_by("is_default", "position", "pk")


class Route(models.Model):
    """One row of the routing table; the first whose matchers all hold takes the alert."""

    class GroupBy(models.TextChoices):
        """What alerts must share to arrive in one message."""

        ALERT = "alert", "each alert alone"
        RUN = "run", "run"
        RULE = "rule", "rule"
        RUN_AND_RULE = "run,rule", "run and rule"
        TEAM = "team", "team"

    position = models.PositiveIntegerField(default=0)
    name = models.CharField(max_length=60)
    matchers = models.TextField(blank=True, help_text="All must hold; empty takes every alert.")
    receivers = models.ManyToManyField("fleet.Receiver", related_name="routes", blank=True)
    group_by = models.CharField(max_length=16, choices=GroupBy, default=GroupBy.RUN)
    group_wait_s = models.PositiveIntegerField(
        default=5, help_text="How long the first alert of a group waits for others."
    )
    repeat_s = models.PositiveIntegerField(
        default=1800, help_text="Reminder while nobody has acknowledged; 0 sends none."
    )
    sends_resolved = models.BooleanField(default=True)
    goes_on = models.BooleanField(default=False, help_text="Try the routes below as well.")
    is_default = models.BooleanField(default=False)

    objects = RouteQuerySet.as_manager()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["is_default"], condition=Q(is_default=True), name="one_default_route"
            ),
        )

    def __str__(self) -> str:
        return self.name
