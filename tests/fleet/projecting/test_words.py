"""What is said of a schedule: whether it pays, when, and how sure that is."""

from dataclasses import replace
from typing import Any

import pytest

from fleet.projecting.planned import Planned
from fleet.projecting.projecting import Span, project
from fleet.projecting.words import (
    days,
    days_span,
    dollars,
    dollars_span,
    reuse_sentence,
    rounded,
    sentence,
)
from telemetry.project.chance import Doubt
from tests.telemetry.project.examples import P5, PORTING_USD, TRN2


def planned(**changed: Any) -> tuple[Planned, ...]:
    return (
        Planned("p5", None, "", P5, Doubt(0.01), (), seed=0),
        Planned("trn2", None, "", replace(TRN2, **changed), Doubt(0.01), (), seed=1),
    )


def said(
    arms: tuple[Planned, ...],
    *,
    porting_usd: float = PORTING_USD,
    has_reuse: bool = True,
    tokens: float | None = None,
) -> str:
    found = project(arms, days=14, porting_usd=porting_usd, tokens=tokens)
    return sentence(found, arms, has_reuse=has_reuse).replace("\u202f", " ")


def test_a_move_that_pays_says_when_and_how_much() -> None:
    text = said(planned())

    assert text.startswith("trn2 earns back its compile and porting after 11.8 days (1")
    assert "; over 14 days it saves $3,760 ($" in text


def test_one_that_pays_too_late_says_how_late() -> None:
    text = said(planned(), porting_usd=50_000)

    assert text.startswith("trn2 does not earn back its compile and porting within 14 days, that")
    assert "over 14 days it costs $26,200 more ($" in text


def test_what_could_be_either_is_said_to() -> None:
    text = said(planned(usd_per_hour=215.0), porting_usd=0)

    assert "anything from $" in text
    assert "lost to $" in text
    assert "of 100 cases it never does." in text


def test_what_is_dearer_for_every_token_never_pays() -> None:
    text = said(planned(usd_per_hour=400.0), porting_usd=0)

    assert text.startswith(
        "trn2 costs more for every token than p5, so that it never earns back its compile; over"
    )


def test_what_is_ahead_from_the_start_says_so() -> None:
    text = said(planned(compile_s=0.0), porting_usd=0)

    assert text.startswith("trn2 is ahead of p5 from its first step on; over 14 days it saves")


def test_tokens_instead_of_days_are_said() -> None:
    assert "; for 300 G tokens (39.3 days) it saves $" in said(planned(), tokens=3e11)


def test_one_arm_says_what_it_costs() -> None:
    assert said(planned()[1:], porting_usd=0).startswith(
        "14 days on trn2 cost $48,400 and train on 106 G (1"
    )
    assert said(planned()[1:], porting_usd=0, tokens=3e11).startswith(
        "300 G tokens on trn2 take 39.3 days (3"
    )


def test_what_reuse_saves_is_said_and_where_there_is_nothing_to_keep() -> None:
    arms = planned()
    found = project(arms, days=14, porting_usd=0)
    none = planned(compile_s=0.0)

    assert reuse_sentence(found, arms).startswith("Keeping compiled graphs saves trn2 $4,90")
    assert reuse_sentence(project(none, days=14, porting_usd=0), none) == (
        "trn2 compiles nothing, so a compile cache saves it nothing."
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [(3.12, "3.1 days"), (1.5, "36.0 h"), (0.05, "72 min"), (0.0, "0 min")],
)
def test_time_is_written_in_the_unit_that_suits_it(value: float, words: str) -> None:
    assert days(value).replace("\u202f", " ") == words


def test_intervals_are_written_in_the_unit_of_their_value() -> None:
    assert days_span(Span(1.5, 1.0, 3.0)).replace("\u202f", " ") == "36.0 h (24.0 to 72.0)"
    assert days_span(Span(3.0, 2.0, None)).replace("\u202f", " ") == "3.0 days (2.0 or more)"
    assert dollars_span(Span(41_234, 28_001, 55_499)) == "$41,200 ($28,000 to $55,500)"


def test_dollars_keep_three_digits() -> None:
    assert [rounded(value) for value in (0.0, 12.345, 98_765.0)] == [0.0, 12.3, 98_800.0]
    assert [dollars(value) for value in (0.0, -1_234.0)] == ["$0", "\u2212$1,230"]
