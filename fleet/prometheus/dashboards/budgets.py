"""Budgets: how much of each is spent, and how much will have been."""

from fleet.prometheus.dashboards.grafana import Ask, Panel, Row

OF_BUDGET = "max by (budget, team, run)"
MONEY = Row(
    "Budgets",
    (
        Panel(
            "Forecast share of each budget",
            (Ask("budget:trnwatch_budget_forecast_ratio:max", "{{team}}{{run}}"),),
            "percentunit",
            "At today's pace and the prices announced; above 100 % it will be overrun.",
            limit=1,
            link="/budgets/",
        ),
        Panel(
            "Share spent so far",
            (
                Ask(
                    f"{OF_BUDGET} (trnwatch_budget_spent_usd)\n"
                    f"/ {OF_BUDGET} (trnwatch_budget_usd)",
                    "{{team}}{{run}}",
                ),
            ),
            "percentunit",
            limit=1,
            link="/budgets/",
        ),
    ),
)
