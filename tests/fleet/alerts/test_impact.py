"""The impact of an alert: what it costs an hour, who is paged for it, and what comes first."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries, Settings

from fleet.alerts import reconcile
from fleet.alerts.impact import impact_of, lowered_below, worst_first
from fleet.alerts.text import AlertText, plain
from fleet.models import Alert, Node, Run
from fleet.pages.alerts import rows_of
from fleet.runs.limits import set_limits
from telemetry.detect import Finding
from tests.alerts import straggling
from tests.helpers import NOON

NOW = NOON + timedelta(minutes=4)
# Four nodes at $21.50: a step of 1.6 times its usual time loses 3/8 of $86.
SLOW = {"step_s": 3.2, "baseline_step_s": 2.0, "wait_ratio": 0.3, "kind": "waiting"}
Make = Callable[..., Alert]


@pytest.fixture
def make(run: Run, limping: Node) -> Make:
    def make(evidence: dict[str, Any], **fields: Any) -> Alert:
        return straggling(run, limping, at=NOON, evidence=evidence, **fields)

    return make


def verdict(alert: Alert) -> str:
    return plain(AlertText(alert, NOW).verdict).replace("\u202f", " ").replace("\u00a0", " ")


def test_slower_steps_cost_their_share_of_each_hour(make: Make) -> None:
    alert = make(SLOW)
    impact = impact_of(alert)

    assert impact.step_factor == pytest.approx(1.6)
    assert impact.lost_ratio == pytest.approx(0.375)
    assert impact.usd_per_hour == pytest.approx(0.375 * 4 * 21.5)
    assert verdict(alert) == "Core 7 of limping is slow: steps \u00d7 1.60, \u2212$32/h, for 4 min"


def test_an_hour_after_its_end_the_verdict_says_what_was(make: Make) -> None:
    cost = {"lost_s": 90.0, "span_s": 240.0, "n_steps": 45.0, "usd": 2.15}
    alert = make(SLOW, cost=cost, resolved_at=NOON + timedelta(minutes=4))

    assert verdict(alert) == (
        "Core 7 of limping was slow: steps \u00d7 1.60 for 4 min, $2.15 lost"
    )
    assert AlertText(alert, NOW).problem == "Core 7 of limping was slow"


def test_of_several_runs_the_loss_is_at_least_that_of_the_first(make: Make) -> None:
    cost = {"lost_s": 90.0, "span_s": 240.0, "n_steps": 45.0, "usd": 2.15, "usual_s": 2.0}
    evidence = SLOW | {"runs": ["bert", "llama"]}
    alert = make(evidence, cost=cost, resolved_at=NOON + timedelta(minutes=4))

    assert verdict(alert).endswith("for 4 min, at least $2.15 lost")
    assert "At least $2.15 and 45" in plain(AlertText(alert, NOW).story)


@pytest.mark.parametrize(
    ("fields", "ratio", "shown"),
    [
        (
            {"rule": "hang", "cause": "hang", "device": None},
            1.0,
            "no steps, \u2212$86/h, for 4 min",
        ),
        ({"evidence": {**SLOW, "step_s": 2.01}}, 0.0, "steps as before, for 4 min"),
        # Nothing says how long steps take: what was measured of the loss does.
        (
            {"evidence": {}, "cost": {"lost_s": 60.0, "span_s": 240.0, "n_steps": 9}},
            0.25,
            "steps \u00d7 1.33, \u2212$22/h, for 4 min",
        ),
        # Its job trains, perhaps: its reports are refused.
        ({"rule": "hang", "cause": "reports_refused", "evidence": {}}, None, ", for 4 min"),
    ],
)
def test_the_lost_share_depends_on_the_rule(
    make: Make, fields: dict[str, Any], ratio: float | None, shown: str
) -> None:
    alert = make(**{"evidence": SLOW} | fields)

    assert impact_of(alert).lost_ratio == (None if ratio is None else pytest.approx(ratio))
    assert verdict(alert).endswith(shown)


def test_a_run_without_a_price_has_a_factor_and_says_what_is_missing(make: Make, run: Run) -> None:
    run.usd_per_node_hour = 0.0
    alert = make(SLOW)

    assert impact_of(alert).usd_per_hour is None
    assert "steps \u00d7 1.60, price not set" in verdict(alert)


def test_the_most_expensive_alert_comes_first_and_no_row_costs_a_query(
    make: Make, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    ratios = (2.1, 6.0, 3.0)
    for i, step_s in enumerate(ratios):
        make({**SLOW, "step_s": step_s}, subject=f"run:{i}")
    make(SLOW, subject="run:warn", severity=Alert.Severity.WARN)
    make({}, subject="run:unknown")
    listed = list(Alert.objects.open().select_related("run", "node", "silence"))

    # One for how often each fired this week.
    with django_assert_num_queries(1):
        rows = rows_of(listed, now=NOW)
        assert all(str(row.text.verdict) for row in rows)

    subjects = [row.alert.subject.removeprefix("run:") for row in rows]
    assert subjects == ["unknown", "1", "2", "0", "warn"]
    assert sorted(listed, key=worst_first) == [row.alert for row in rows]


@pytest.fixture
def slow(finding: Finding) -> Finding:
    return replace(finding, evidence={**finding.evidence, **SLOW})


def fire(finding: Finding, *, minutes: float = 0.0) -> Alert:
    now = NOON + timedelta(minutes=minutes)
    reconcile([finding], evaluated=[(finding.rule, f"run:{finding.run}")], now=now)
    return Alert.objects.get()


def test_without_a_limit_each_page_pages(slow: Finding) -> None:
    assert fire(replace(slow, evidence={**SLOW, "step_s": 2.05})).severity == "1-page"


@pytest.mark.parametrize(
    ("limit", "own", "severity"),
    [
        (50.0, None, "2-warn"),
        (20.0, None, "1-page"),
        (50.0, 20.0, "1-page"),
        (0.0, 50.0, "2-warn"),
    ],
)
def test_slow_steps_below_the_limit_of_the_run_only_warn(
    slow: Finding,
    run: Run,
    settings: Settings,
    limit: float,
    own: float | None,
    severity: str,
) -> None:
    settings.PAGE_FROM_USD_PER_HOUR = limit
    set_limits(run.name, {"page-usd_per_hour": own}, by="ada", now=NOON)
    alert = fire(slow)

    assert alert.severity == severity
    assert (lowered_below(alert) is not None) == (severity == "2-warn")


def test_a_warning_that_grows_beyond_the_limit_becomes_a_page_and_stays_one(
    slow: Finding, settings: Settings
) -> None:
    settings.PAGE_FROM_USD_PER_HOUR = 50.0
    assert fire(slow).severity == "2-warn"
    worse = replace(slow, evidence={**slow.evidence, "step_s": 8.0})
    assert fire(worse, minutes=1).severity == "1-page"
    assert fire(slow, minutes=2).severity == "1-page"


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "hang", "cause": "hang"},
        {"cause": "node_crash"},
        {"rule": "node_silent", "cause": "node_silent"},
        {"rule": "ecc_uncorrected", "cause": "ecc_uncorrected"},
        {"rule": "loss_not_finite", "cause": "loss_not_finite"},
        # What it costs is not known.
        {"evidence": {}},
    ],
)
def test_what_stops_a_run_or_loses_hardware_pages_whatever_it_costs(
    slow: Finding, settings: Settings, change: dict[str, Any]
) -> None:
    settings.PAGE_FROM_USD_PER_HOUR = 1_000.0

    assert fire(replace(slow, **change)).severity == "1-page"


def test_a_run_without_a_price_is_paged_for(slow: Finding, run: Run, settings: Settings) -> None:
    Run.objects.update(usd_per_node_hour=0.0)
    settings.PAGE_FROM_USD_PER_HOUR = 1_000.0

    assert fire(slow).severity == "1-page"
