"""What the demo's teams pay and may spend: contracts at published prices, and a budget each."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.models import Budget, Run, TeamPrice
from telemetry import catalog

BY = "demo"
DAY = timedelta(days=1)
# Research has got out of an older block; its run that goes on pays each part at its price.
CHANGED_AGO = timedelta(hours=6)
LONG_AGO = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Contract:
    """A team's price, which is a published one: by its terms and the date of its source."""

    team: str
    instance_type: str
    basis: TeamPrice.Basis
    dated: str
    ago: timedelta = LONG_AGO


Basis = TeamPrice.Basis
CONTRACTS = (
    Contract("LLM", "trn2.48xlarge", Basis.CAPACITY_BLOCK, "2026-10"),
    Contract("retail vision", "trn2.48xlarge", Basis.CAPACITY_BLOCK, "2026-10"),
    Contract("research", "trn1.32xlarge", Basis.CAPACITY_BLOCK, "2025"),
    Contract("research", "trn1.32xlarge", Basis.CAPACITY_BLOCK, "2026-10", CHANGED_AGO),
    Contract("search", "trn1.2xlarge", Basis.RESERVED, "2"),
)
# Dollars, and how many days from yesterday on.
BUDGETS = {
    "LLM": (650_000.0, 30),
    "retail vision": (30_000.0, 3),
    "research": (45_000.0, 30),
    "search": (3_500.0, 30),
}
# One pass over the data, and the whole training, in tokens.
LENGTHS = {"pretrain-gpt": (None, 2_000_000_000_000), "search-bert": (3_300_000_000, None)}


def create_contracts(*, now: datetime) -> None:
    """Set the teams' prices, as their leads did before the runs began."""
    for each in CONTRACTS:
        instance = catalog.instance(each.instance_type)
        offer = next(
            offer
            for offer in instance.prices
            if offer.basis.startswith(each.basis.value) and offer.date.startswith(each.dated)
        )
        TeamPrice.objects.create(
            team=each.team,
            instance_type=each.instance_type,
            basis=each.basis,
            usd_per_node_hour=offer.usd_per_hour,
            valid_from=now - each.ago,
            source=f"{offer.source.title}, {offer.date}"[:200],
            set_by=BY,
            set_at=now - each.ago,
        )


def create_budgets(*, now: datetime) -> None:
    """Give each team a budget, and say how long some runs are to be."""
    begins = now.replace(hour=0, minute=0, second=0, microsecond=0) - DAY
    for team, (usd, days) in BUDGETS.items():
        Budget.objects.create(
            team=team,
            usd=usd,
            starts_at=begins,
            ends_at=begins + days * DAY,
            set_by=BY,
            set_at=begins,
        )
    for name, (per_epoch, planned) in LENGTHS.items():
        told = {"tokens_per_epoch": per_epoch, "planned_tokens": planned}
        Run.objects.filter(name=name).update(**{k: v for k, v in told.items() if v})
