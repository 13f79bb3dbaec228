"""Rules about what training costs: judged by the hour, and told by trnwatch alone."""

from telemetry.detect.rulebook.rule import Rule

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
        falls_short="No series says what a run is to cost, nor what other alerts explain.",
    ),
    Rule(
        "budget_overrun",
        "Budget will be overrun",
        "warn",
        "budget",
        "At today's pace and the prices announced, more will be spent than the budget holds.",
        {"calm_ratio": 0.98},
        falls_short="Budgets and the prices to come are in no series.",
    ),
)
