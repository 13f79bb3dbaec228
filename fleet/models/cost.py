"""A price: what a team pays for a node of an instance type, from a moment on; never changed."""

from datetime import datetime, timedelta
from typing import Self

from django.db import models
from django.db.models import F, Q

from fleet.models.filters import given


class BudgetQuerySet(models.QuerySet["Budget"]):
    def kept(self) -> Self:
        return self.filter(ended_at=None)

    def current(self, now: datetime) -> Self:
        return self.kept().filter(starts_at__lte=now, ends_at__gt=now)

    def withdrawn(self) -> Self:
        return self.exclude(ended_at=None)

    def filter_by(self, *, now: datetime, team: str = "", run: str = "", state: str = "") -> Self:
        """Keep budgets that match every given field; ``state`` as in `Budget.state`."""
        budgets = self.filter(**given(team=team, run__name=run))
        match state:
            case "ahead":
                return budgets.kept().filter(starts_at__gt=now)
            case "current":
                return budgets.current(now)
            case "over":
                return budgets.kept().filter(ends_at__lte=now)
            case "withdrawn":
                return budgets.withdrawn()
        return budgets


class Budget(models.Model):
    """A budget in US dollars for a team or a run, in a period."""

    team = models.CharField(max_length=40, blank=True)
    run = models.ForeignKey(
        "fleet.Run", models.CASCADE, null=True, blank=True, related_name="budgets"
    )
    usd = models.FloatField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(help_text="Exclusive end.")
    set_by = models.CharField(max_length=150)
    set_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True, help_text="Withdrawn.")
    ended_by = models.CharField(max_length=150, blank=True)

    objects = BudgetQuerySet.as_manager()

    class Meta:
        ordering = ("ends_at", "pk")
        constraints = (
            models.CheckConstraint(condition=Q(usd__gt=0), name="a_budget_is_money"),
            models.CheckConstraint(
                condition=Q(ends_at__gt=F("starts_at")), name="a_budget_ends_after_it_starts"
            ),
            models.CheckConstraint(
                condition=(Q(run=None) & ~Q(team="")) | (Q(run__isnull=False) & Q(team="")),
                name="a_budget_is_a_teams_or_a_runs",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.usd:,.0f} USD"

    @property
    def name(self) -> str:
        """Its team or run; select budgets with their run."""
        return self.run.name if self.run else self.team

    def state(self, now: datetime) -> str:
        """Return ahead, current, over or withdrawn."""
        if self.ended_at is not None:
            return "withdrawn"
        if now < self.starts_at:
            return "ahead"
        return "current" if now < self.ends_at else "over"

    @property
    def last_day(self) -> datetime:
        return self.ends_at - timedelta(microseconds=1)

    @property
    def subject(self) -> str:
        return f"budget:{self.pk}"


class TeamPriceQuerySet(models.QuerySet["TeamPrice"]):
    def of(self, team: str, instance_type: str) -> Self:
        """Keep the prices that apply to a team and a type: its own, and those for all teams."""
        return self.filter(Q(team=team) | Q(team=""), instance_type=instance_type)

    def filter_by(
        self,
        *,
        team: str = "",
        whose: str = "",
        instance_type: str = "",
        basis: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Self:
        """Keep the prices that match every field given.

        ``whose`` is ``team`` (of one team) or ``everybody``; ``since`` and ``until`` limit from
        when the price is valid.
        """
        prices = self.filter(
            **given(
                team=team,
                instance_type=instance_type,
                basis=basis,
                valid_from__gte=since,
                valid_from__lt=until,
            )
        )
        if not whose:
            return prices
        return prices.exclude(team="") if whose == "team" else prices.filter(team="")


class TeamPrice(models.Model):
    """One contract price. Rows never change: past costs stay the same."""

    class Basis(models.TextChoices):
        ON_DEMAND = "on demand"
        RESERVED = "reserved"
        CAPACITY_BLOCK = "capacity block"
        SPOT = "spot"
        CONTRACT = "contract", "private contract"

    team = models.CharField(
        max_length=40, blank=True, help_text="Empty: every team without a price of its own."
    )
    instance_type = models.CharField(max_length=40)
    basis = models.CharField(max_length=20, choices=Basis)
    usd_per_node_hour = models.FloatField()
    valid_from = models.DateTimeField(help_text="Start of validity.")
    source = models.CharField(max_length=200, help_text="Contract, invoice or page.")
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
