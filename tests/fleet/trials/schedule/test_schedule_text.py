"""Sentences of a schedule: whether it pays, when, how certain."""

import re
from dataclasses import replace
from typing import Any

import pytest

from fleet.trials.schedule import Range, project
from fleet.trials.schedule_arms import Planned
from fleet.trials.schedule_text import (
    assumption_sentence,
    days,
    dollars,
    reuse_sentence,
    rounded,
    sentence,
    span,
)
from telemetry.statistics.forecast import Uncertainty
from tests.telemetry.statistics.examples import P5, PORTING_USD, TRN2


def planned(**changed: Any) -> tuple[Planned, ...]:
    return (
        Planned("p5", None, "", P5, Uncertainty(0.01), (), seed=0),
        Planned("trn2", None, "", replace(TRN2, **changed), Uncertainty(0.01), (), seed=1),
    )


def shown(
    arms: tuple[Planned, ...],
    *,
    porting_usd: float = PORTING_USD,
    has_reuse: bool = True,
    tokens: float | None = None,
) -> str:
    found = project(arms, days=14, porting_usd=porting_usd, tokens=tokens)
    return sentence(found, arms, has_reuse=has_reuse).replace("\u202f", " ")


def test_a_move_that_pays_states_when_and_how_much() -> None:
    text = shown(planned())

    assert text.startswith("trn2 pays back its compile and porting after 11.8 days (95 %: 1")
    assert "; over 14 days it saves $3,760 (95 %: $" in text


def test_a_saving_states_how_much_longer_the_same_tokens_take() -> None:
    # 106.5 G tokens take p5 12.5 days at 8.506 G a day.
    assert shown(planned()).endswith(
        "and takes 1.5 days longer for the same tokens: 14.0 days instead of 12.5 days."
    )
    fast = planned(tokens_per_s=200_000.0)
    assert "days less for the same tokens: 14.0 days instead of" in shown(fast)
    assert "takes about as long for the same tokens" in shown(
        planned(tokens_per_s=100_000.0, compile_s=0.0)
    )


def unlike(usd_per_hour: float = 144.0) -> tuple[Planned, ...]:
    """Return both arms with instance types, p5 on demand and a slow trn2 in a capacity block."""
    p5, trn2 = planned(usd_per_hour=usd_per_hour, tokens_per_s=0.8 * TRN2.tokens_per_s)
    return (
        replace(p5, instance_type="p5.48xlarge", price_basis="on demand, 2026-07-20"),
        replace(trn2, instance_type="trn2.48xlarge", price_basis="capacity block, 2026-10"),
    )


def test_across_price_kinds_equal_kinds_come_first_and_may_say_the_opposite() -> None:
    # At blocks 24 * 4 * 47.76 / 8,506 = $0.5390 against 24 * 4 * 35.7608 / 6,125 = $0.5605.
    text = shown(unlike(), porting_usd=0)

    assert text.startswith(
        "Inconclusive across price kinds. At equal capacity-block list prices trn2 costs more per "
        "token than p5"
    )
    block, _, paid = text.partition("As paid (capacity block vs. on demand) ")
    assert "over 14 days it costs $" in block
    assert paid.startswith("trn2 pays back its compile after")
    assert "over 14 days it saves $" in paid


def test_across_price_kinds_that_agree_both_are_reported() -> None:
    text = shown(unlike(usd_per_hour=400.0), porting_usd=0)

    assert text.startswith("At equal capacity-block list prices trn2 costs more")
    assert "As paid (capacity block vs. on demand) trn2 costs more" in text


def test_where_no_list_price_is_common_only_what_is_paid_is_reported() -> None:
    p5, trn2 = unlike()
    text = shown((p5, replace(trn2, instance_type="trn2u.48xlarge")), porting_usd=0)

    assert text.startswith(
        "Inconclusive across price kinds. The catalogue lists no price kind for both. As paid ("
    )


def test_of_simulated_arms_the_pace_is_called_assumed() -> None:
    p5, trn2 = planned()

    assert assumption_sentence((p5, trn2)) == ""
    assert assumption_sentence((p5, replace(trn2, is_simulated=True))).startswith(
        "trn2: simulated. The pace follows from the step model"
    )


def test_one_that_pays_too_late_states_how_late() -> None:
    text = shown(planned(), porting_usd=50_000)

    assert text.startswith("trn2 does not pay back its compile and porting within 14 days: that")
    assert "over 14 days it costs $26,200 more (95 %: $" in text


def test_what_could_be_either_is_reported_to() -> None:
    text = shown(planned(usd_per_hour=215.0), porting_usd=0)

    assert re.search(r"more \(95 %: saves \u2212\$[\d,]+ to \+\$[\d,]+\)", text)
    assert "of 100 cases it never does." in text


def test_what_is_dearer_for_every_token_never_pays() -> None:
    text = shown(planned(usd_per_hour=400.0), porting_usd=0)

    assert text.startswith(
        "trn2 costs more per token than p5 and never pays back its compile; over"
    )


def test_what_is_ahead_from_the_start_states_it() -> None:
    text = shown(planned(compile_s=0.0), porting_usd=0)

    assert text.startswith("trn2 is ahead of p5 from its first step; over 14 days it saves")


def test_tokens_instead_of_days_are_reported() -> None:
    assert "; for 300 G tokens (39.3 days) it saves $" in shown(planned(), tokens=3e11)


def test_one_arm_states_what_it_costs() -> None:
    assert shown(planned()[1:], porting_usd=0).startswith(
        "14 days on trn2 cost $48,400 and train on 106 G (95 %: 1"
    )
    assert shown(planned()[1:], porting_usd=0, tokens=3e11).startswith(
        "300 G tokens on trn2 take 39.3 days (95 %: 3"
    )


def test_what_reuse_saves_is_reported_and_where_there_is_nothing_to_keep() -> None:
    arms = planned()
    found = project(arms, days=14, porting_usd=0)
    none = planned(compile_s=0.0)

    assert reuse_sentence(found, arms).startswith("Keeping compiled graphs saves trn2 $4,90")
    assert reuse_sentence(project(none, days=14, porting_usd=0), none) == (
        "trn2 compiles nothing: a compile cache saves nothing."
    )
    unknown = tuple(replace(arm, knows_compile=False) for arm in none)
    assert reuse_sentence(project(unknown, days=14, porting_usd=0), unknown) == (
        "trn2 does not report its compile time: what a compile cache saves is unknown."
    )


@pytest.mark.parametrize(
    ("value", "phrase"),
    [(3.12, "3.1 days"), (1.5, "36.0 h"), (0.05, "72 min"), (0.0, "0 min")],
)
def test_time_is_written_in_the_unit_that_suits_it(value: float, phrase: str) -> None:
    assert days(value).replace("\u202f", " ") == phrase


def test_intervals_are_written_in_the_unit_of_their_value() -> None:
    assert (
        span(Range(1.5, 1.0, 3.0), "days").replace("\u202f", " ") == "36.0 h (95 %: 24.0 to 72.0)"
    )
    assert (
        span(Range(3.0, 2.0, None), "days").replace("\u202f", " ")
        == "3.0 days (95 %: 2.0 to never)"
    )
    assert span(Range(41_234, 28_001, 55_499), "usd").endswith(": $28,000 to $55,500)")


def test_dollars_keep_three_digits() -> None:
    assert [rounded(value) for value in (0.0, 12.345, 98_765.0)] == [0.0, 12.3, 98_800.0]
    assert [dollars(value) for value in (0.0, -1_234.0)] == ["$0", "\u2212$1,230"]
