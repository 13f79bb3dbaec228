"""Rule tests for alerts about runs: at the limit, above it, afterwards."""

from telemetry.detect import RULES
from telemetry.detect.rules import Rule
from tests.fleet.metrics.rule_cases import (
    ABOVE,
    ABSENT,
    CORE,
    FOUR,
    LLAMA,
    VCPU,
    Course,
    RuleCase,
    always,
    nodes,
)

SHARE, SLOW = RULES["allreduce_share"].limits, RULES["step_slow"].limits
STILL = RULES["hang"].limits
DRIFT, OVERRUN = RULES["cost_drift"].limits, RULES["budget_overrun"].limits
ENDED = 'trnwatch_run_last_step_timestamp_seconds{run="llama"}'
Series = dict[str, Course | str]


def allreduce_share() -> RuleCase:
    """It fires above its limit, resolves below another, and outlives steps that stop."""
    share, limit, resolve = (
        f'trnwatch_run_allreduce_{name}_ratio{{run="llama"}}'
        for name in ("share", "limit", "resolve")
    )
    fires_above, resolves_below = SHARE["limit_ratio"], SHARE["resolve_ratio"]
    course: Course = (
        (fires_above, 5),
        (fires_above * ABOVE, 5),
        ((fires_above + resolves_below) / 2, 5),
        (ABSENT, 5),
        (resolves_below - 0.001, 10),
    )
    limits = {limit: always(fires_above), resolve: always(resolves_below)}
    series: Series = {share: course, **limits, **nodes(*FOUR)}
    return RuleCase("allreduce_share", share, series, (4.5, 24, 29), (6, 9, 14, 19), LLAMA)


def step_slow() -> RuleCase:
    """It fires where steps take longer than the hours before, and tokens are fewer."""
    ratios = ((0, 20), (SLOW["unknown_ratio"], 20), (0.10, 15))
    resolve_limit = 0.9 * SLOW["unknown_ratio"] * SLOW["half_ratio"]
    course = [(1.0 + ratio, minutes) for ratio, minutes in (*ratios, (resolve_limit, 20))]
    series: Series = {
        'trnwatch_run_step_seconds{run="llama"}': tuple(course),
        'trnwatch_run_tokens_per_second{run="llama"}': tuple(
            (1000 / seconds, minutes) for seconds, minutes in course
        ),
        **nodes(*FOUR),
    }
    about = "trnwatch_run_step_seconds"
    return RuleCase("step_slow", about, series, (19, 39, 44, 59), (46, 54), LLAMA, "warn")


def loss_not_finite() -> list[RuleCase]:
    """It fires while the newest loss is NaN or infinite."""
    loss = 'trnwatch_run_loss{run="llama"}'
    return [
        RuleCase(
            "loss_not_finite",
            "trnwatch_run_loss",
            {loss: ((3.0, 10), (value, 10), (2.9, 10)), **nodes(*FOUR)},
            (9, 28),
            (12, 19),
            LLAMA,
        )
        for value in (float("nan"), float("inf"), float("-inf"))
    ]


def from_trnwatch(rule: Rule) -> RuleCase:
    """A rule that PromQL cannot express fires while trnwatch's own alert fires."""
    series = f'trnwatch_alerts_firing{{rule="{rule.name}", severity="{rule.severity}"}}'
    course = ((0, 5), (1, 5), (0, 5))
    return RuleCase(
        rule.name, series, {series: course}, (4, 14), (6, 9, 11), severity=rule.severity
    )


def hangs() -> list[RuleCase]:
    """It fires if no step ends and no core works; not while a core is at the limit."""
    resting = {f'{CORE}{{node="{n}", core="0"}}': ((0.5, 10.0), (0.05, 60.0)) for n in FOUR}
    at_limit = dict.fromkeys(resting, ((0.5, 10.0), (STILL["working_ratio"], 60.0)))
    hang: Series = {
        # Steps end until the tenth minute; the series goes absent; steps continue.
        ENDED: "0+15x39 600+0x59 _x20 1800+15x80",
        'trnwatch_run_step_seconds{run="llama"}': ((2.0, 11), (ABSENT, 60)),
        **{f'{VCPU}{{node="{n}"}}': always(0.1) for n in FOUR},
        **nodes(*FOUR),
    }
    return [
        RuleCase("hang", ENDED, hang | resting, (9, 10.5, 37), (12, 20, 29), LLAMA),
        RuleCase("hang", ENDED, hang | at_limit, (12, 20, 29), (), LLAMA),
    ]


def recompiles() -> list[RuleCase]:
    """It fires where more than half of the hosts compile, and pages where that lasts."""
    compiling = STILL["compiling_ratio"]
    busy = [f'{VCPU}{{node="{n}"}}' for n in FOUR]
    held = ((0.1, 5), (compiling, 25), (0.1, 15))
    series: Series = {
        busy[0]: held,
        busy[1]: held,
        busy[2]: ((0.1, 10), (compiling, 20), (0.1, 15)),
        busy[3]: always(0.1),
        **{f'{CORE}{{node="{n}", core="0"}}': always(0.05) for n in FOUR},
        **nodes(*FOUR),
    }
    return [
        RuleCase("recompile", VCPU, series, (4, 9, 33), (11, 29), LLAMA, "warn"),
        RuleCase("recompile", VCPU, series, (9, 19, 33), (21, 29), LLAMA),
    ]


def costs() -> list[RuleCase]:
    """It fires if two hours cost more, stays slightly below; not if an alert explains it."""
    cost_series = 'trnwatch_run_node_seconds_per_million_tokens{run="llama"}'
    expected = "trnwatch_run_expected_node_seconds_per_million_tokens"
    limit, resolve_limit = (
        1 + DRIFT["estimate_ratio"],
        1 + DRIFT["estimate_ratio"] * DRIFT["half_ratio"],
    )
    high, hardly = 100 * limit * ABOVE, 100 * (limit + resolve_limit) / 2
    series: Series = {
        cost_series: ((high, 80), (hardly, 40), (100 * resolve_limit / ABOVE, 60)),
        f'{expected}{{run="llama", basis="estimate"}}': always(100, 180),
    }
    labels = LLAMA | {"basis": "estimate"}
    explained = series | {
        cost_series: always(high, 85),
        'trnwatch_run_alerts_firing{run="llama", rule="efa_degraded"}': always(1, 85),
    }
    own: Series = {
        cost_series: ((100 * (1 + DRIFT["own_ratio"]) * ABOVE, 85),),
        f'{expected}{{run="llama", basis="own"}}': always(100, 85),
        'trnwatch_run_alerts_firing{run="llama", rule="ecc_uncorrected"}': always(1, 85),
    }
    name = "trnwatch_run_node_seconds"
    return [
        RuleCase("cost_drift", name, series, (60, 160), (75, 79, 115), labels, "warn"),
        RuleCase("cost_drift", name, explained, (60, 79, 84), (), labels, "warn"),
        RuleCase("cost_drift", name, own, (60,), (75, 84), LLAMA | {"basis": "own"}, "warn"),
    ]


def budget_overrun() -> RuleCase:
    """It fires where more will be spent than there is, and holds a little below."""
    of = '{budget="4", team="LLM"}'
    resolve_limit = OVERRUN["calm_ratio"]
    ratios = ((1, 5), (ABOVE, 5), ((1 + resolve_limit) / 2, 5), (resolve_limit, 10))
    series: Series = {
        f"trnwatch_budget_usd{of}": always(1000),
        f"trnwatch_budget_forecast_usd{of}": tuple((1000 * r, minutes) for r, minutes in ratios),
    }
    labels = {"budget": "4", "team": "LLM"}
    about = "trnwatch_budget_forecast"
    return RuleCase("budget_overrun", about, series, (4, 19, 24), (6, 9, 14), labels, "warn")


CASES = [
    allreduce_share(),
    step_slow(),
    *loss_not_finite(),
    *(from_trnwatch(rule) for rule in RULES.values() if not rule.queries),
    *costs(),
    budget_overrun(),
    *hangs(),
    *recompiles(),
]
