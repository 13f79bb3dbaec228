"""Rules about what training costs: judged by the hour, from what is expected and budgeted."""

from telemetry.detect.rulebook.rule import Query, Rule

# The ratio is recorded, by the run and by whose word it is expected: see fleet/prometheus.
DRIFT = """
(
  run:trnwatch_cost_drift_ratio:min2h{basis="estimate"} > <estimate_ratio>
  or
  run:trnwatch_cost_drift_ratio:min2h{basis="own"} > <own_ratio>
  or
  (
    run:trnwatch_cost_drift_ratio:min2h{basis="estimate"} > <estimate_ratio> * <half_ratio>
    or
    run:trnwatch_cost_drift_ratio:min2h{basis="own"} > <own_ratio> * <half_ratio>
  )
  and on (run) ALERTS{alertname="cost_drift", alertstate="firing"}
)
unless on (run) run:trnwatch_alerts_explaining:sum > 0
"""
OVERRUN = """
budget:trnwatch_budget_forecast_ratio:max > 1
or
budget:trnwatch_budget_forecast_ratio:max > <calm_ratio>
  and on (budget) ALERTS{alertname="budget_overrun", alertstate="firing"}
"""

MONEY = (
    Rule(
        "cost_drift",
        "Tokens cost more than expected",
        "warn",
        "run",
        "For hours a token has cost more than the estimate for its run, or than in the run's own "
        "first settled hours where its model is not known.",
        {
            "window_s": 7200.0,
            "least_minutes": 40,
            "estimate_ratio": 0.30,
            "own_ratio": 0.15,
            "half_ratio": 0.7,
            "alike_ratio": 0.02,
        },
        (
            Query(
                DRIFT, "It is {{ $value | humanizePercentage }} more, by its {{ $labels.basis }}."
            ),
        ),
        "Checkpoints and evaluations count as work, workers that were left out as nodes that are "
        "paid for, and what an alert explains is left out from when it fired, not from its onset.",
    ),
    Rule(
        "budget_overrun",
        "Budget will be overrun",
        "warn",
        "budget",
        "At today's pace and the prices announced, more will be spent than the budget holds.",
        {"calm_ratio": 0.98},
        (Query(OVERRUN, "It comes to {{ $value | humanizePercentage }} of it."),),
        "The forecast is trnwatch's own, as of the latest scrape.",
    ),
)
