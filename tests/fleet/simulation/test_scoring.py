"""The score: counts, ratios, and null for empty ratios."""

from collections.abc import Callable
from typing import Any

import pytest

from drills.report import is_kept
from fleet.simulation.scoring import is_in_time, tally

Made = Callable[..., Any]
HOUR_S = 3600.0


def test_everything_noticed_at_once_is_perfect(truth: Made, firing: Made) -> None:
    score = tally([truth()], [firing()], duration_s=HOUR_S).score()

    for share in ("precision", "recall", "localisation", "cause", "in_time"):
        assert score[share] == 1
    assert score["time_to_detect_s"] == {"p50": 6, "p90": 6}
    assert score["false_pages_per_day"] == 0


def test_of_nothing_there_is_no_share() -> None:
    score = tally([], [], duration_s=0.0).score()

    for share in ("precision", "recall", "localisation", "cause", "false_pages_per_day"):
        assert score[share] is None
    assert score["time_to_detect_s"] == {"p50": None, "p90": None}


def test_a_missed_fault_costs_recall_and_nothing_else(truth: Made, firing: Made) -> None:
    score = tally(
        [truth(), truth(node="llama-02", start_s=900.0, end_s=990.0)],
        [firing()],
        duration_s=HOUR_S,
    ).score()

    assert (score["recall"], score["precision"], score["n_missed"]) == (0.5, 1, 1)


def test_a_repeat_costs_precision(truth: Made, firing: Made) -> None:
    score = tally([truth()], [firing(), firing(fired_s=150.0)], duration_s=HOUR_S).score()

    assert (score["precision"], score["n_repeats"], score["false_alerts"]) == (0.5, 1, 0)


def test_a_fault_that_costs_nothing_need_not_be_noticed(truth: Made, firing: Made) -> None:
    faint = truth(step_slowdown_ratio=1.03)

    assert tally([faint], [], duration_s=HOUR_S).score()["recall"] is None
    assert tally([faint], [firing()], duration_s=HOUR_S).score()["precision"] == 1


@pytest.mark.parametrize(
    "shown",
    [
        {"kind": "efa_latency", "magnitude": 2.0},
        {"kind": "efa_loss", "magnitude": 0.01},
        {"kind": "efa_down"},
        {"kind": "hbm_slow", "magnitude": 0.5},
        {"kind": "ecc_uncorrected"},
        {"kind": "node_silent", "device": None},
    ],
    ids=lambda shown: str(shown["kind"]),
)
def test_what_hardware_shows_counts_whatever_it_costs(truth: Made, shown: Any) -> None:
    assert truth(step_slowdown_ratio=1.0, **shown).counts


def test_what_lets_no_step_get_on_counts(truth: Made) -> None:
    assert truth(kind="hang", device=None, step_slowdown_ratio=None, step_s=None).counts


def test_false_alerts_cost_precision_and_false_pages_are_reported_by_the_day(
    truth: Made, firing: Made
) -> None:
    false = firing(fired_s=900.0)
    warning = firing(fired_s=950.0, severity="2-warn")

    score = tally([truth()], [firing(), false, warning], duration_s=HOUR_S).score()

    assert score["precision"] == pytest.approx(1 / 3)
    assert (score["false_alerts"], score["false_pages"]) == (2, 1)
    assert score["false_pages_per_day"] == 24


@pytest.mark.parametrize(
    ("step_s", "delay_s", "is_soon"),
    [(3.0, 15.0, True), (3.0, 16.0, False), (20.0, 40.0, True), (None, 16.0, False)],
)
def test_in_time_is_fifteen_seconds_or_two_steps(
    truth: Made, firing: Made, *, step_s: float | None, delay_s: float, is_soon: bool
) -> None:
    assert is_in_time(truth(step_s=step_s), firing(fired_s=100.0 + delay_s)) == is_soon


@pytest.mark.parametrize(
    ("kind", "resolved_s", "is_there"),
    [
        ("slow_core", None, True),
        ("slow_core", 190.0, True),
        ("slow_core", 189.0, False),
        # One compilation is over long before the fault that caused it.
        ("recompile", 150.0, None),
    ],
)
def test_an_alert_is_kept_if_it_ends_no_sooner_than_its_fault(
    truth: Made, firing: Made, *, kind: str, resolved_s: float | None, is_there: bool | None
) -> None:
    assert is_kept(truth(kind=kind, end_s=190.0), firing(resolved_s=resolved_s)) is is_there
