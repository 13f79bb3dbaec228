"""What Prometheus may know of money: what tokens cost and should, and how budgets stand."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from django.db.models import F
from django.db.models.functions import Coalesce

from fleet.models import Alert
from fleet.money.budgets import burns
from fleet.money.drifting import expected_now
from fleet.summaries import TOKENS_PER_MTOK, RunNow
from telemetry.families import Family, Spec

PER_HOUR = Spec(
    "trnwatch_run_cost_usd_per_hour", "gauge", "Dollars per hour of all its nodes.", ("run",)
)
NODE_SECONDS = Spec(
    "trnwatch_run_node_seconds_per_million_tokens",
    "gauge",
    "Seconds of a node that a million tokens take, last minute.",
    ("run",),
)
EXPECTED = Spec(
    "trnwatch_run_expected_node_seconds_per_million_tokens",
    "gauge",
    "The same as expected: by the estimate, or by the run's own first settled hours.",
    ("run", "basis"),
)
RUN_ALERTS = Spec(
    "trnwatch_run_alerts_firing",
    "gauge",
    "Alerts about a run or its nodes that are not resolved.",
    ("run", "rule"),
)
OF_BUDGET = ("budget", "team", "run")
BUDGET = Spec("trnwatch_budget_usd", "gauge", "Dollars that a budget holds.", OF_BUDGET)
SPENT = Spec("trnwatch_budget_spent_usd", "gauge", "Dollars spent of it so far.", OF_BUDGET)
FORECAST = Spec(
    "trnwatch_budget_forecast_usd",
    "gauge",
    "Dollars that will be spent of it by its end, at the prices announced.",
    OF_BUDGET,
)
BURN = Spec(
    "trnwatch_budget_cost_usd_per_hour", "gauge", "Dollars per hour spent of it now.", OF_BUDGET
)
ENDS = Spec(
    "trnwatch_budget_end_timestamp_seconds", "gauge", "When a budget ends, Unix time.", OF_BUDGET
)


def cost_families(runs: Iterable[RunNow]) -> list[Family]:
    """Return what runs cost by the hour, what their tokens take, and what they should."""
    per_hour, node_seconds, expected = map(Family, (PER_HOUR, NODE_SECONDS, EXPECTED))
    for now in runs:
        run = now.run
        if run.finished_at is not None:
            continue
        per_hour.add(run.usd_per_hour or None, run.name)
        if now.is_stale or not now.tokens_per_s or now.step_s is None:
            continue
        node_seconds.add(run.n_nodes / now.tokens_per_s * TOKENS_PER_MTOK, run.name)
        found = expected_now(run, tokens=now.tokens_per_s * now.step_s)
        if found is not None:
            expected.add(found.cost * TOKENS_PER_MTOK, run.name, found.by)
    return [per_hour, node_seconds, expected]


def budget_families(*, now: datetime) -> list[Family]:
    """Return how the budgets stand whose period is now."""
    families = held, spent, forecast, burn, ends = [
        Family(spec) for spec in (BUDGET, SPENT, FORECAST, BURN, ENDS)
    ]
    for each in burns(now=now):
        budget = each.budget
        if not budget.starts_at <= now < budget.ends_at:
            continue
        labels = (str(budget.pk), budget.team, budget.run.name if budget.run else "")
        held.add(budget.usd, *labels)
        spent.add(each.spent_usd, *labels)
        forecast.add(each.forecast_usd, *labels)
        burn.add(each.usd_per_hour, *labels)
        ends.add(budget.ends_at.timestamp(), *labels)
    return families


def run_alert_family() -> Family:
    """Return how many alerts are open about each run or its nodes, by rule; none is no series."""
    family = Family(RUN_ALERTS)
    about = Alert.objects.open().annotate(whose=Coalesce(F("run__name"), F("node__run__name")))
    counted = Counter(about.exclude(whose=None).values_list("whose", "rule"))
    for labels, n in sorted(counted.items()):
        family.add(n, *labels)
    return family
