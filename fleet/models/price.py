"""A price: what a team pays for a node of an instance type, from a moment on; never changed."""

from typing import Self

from django.db import models
from django.db.models import Q


class TeamPriceQuerySet(models.QuerySet["TeamPrice"]):
    """The questions that runs and pages ask about prices."""

    def of(self, team: str, instance_type: str) -> Self:
        """Keep what a team may be charged for a type: its own prices, and everybody's."""
        return self.filter(Q(team=team) | Q(team=""), instance_type=instance_type)


class TeamPrice(models.Model):
    """One price of a contract. A new one is a new row: what was paid stays what was paid."""

    class Basis(models.TextChoices):
        """On which terms."""

        ON_DEMAND = "on demand"
        RESERVED = "reserved"
        CAPACITY_BLOCK = "capacity block"
        SPOT = "spot"
        CONTRACT = "contract", "private contract"

    team = models.CharField(max_length=40, blank=True, help_text="Empty: every team without one.")
    instance_type = models.CharField(max_length=40)
    basis = models.CharField(max_length=20, choices=Basis)
    usd_per_node_hour = models.FloatField()
    valid_from = models.DateTimeField(help_text="From when on the contract has it.")
    source = models.CharField(max_length=200, help_text="Contract, invoice or page it is from.")
    set_by = models.CharField(max_length=150)
    set_at = models.DateTimeField()

    objects = TeamPriceQuerySet.as_manager()

    class Meta:
        # Of two from the same moment the one set later holds.
        ordering = ("valid_from", "set_at", "pk")
        constraints = (
            models.CheckConstraint(condition=Q(usd_per_node_hour__gt=0), name="a_price_is_paid"),
        )
        indexes = (
            models.Index(fields=["instance_type", "team"], name="prices_of_a_type_and_team"),
        )

    def __str__(self) -> str:
        return f"{self.team or 'every team'}: {self.instance_type} at {self.usd_per_node_hour}"
