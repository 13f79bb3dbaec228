"""What is said of a schedule: whether it pays, when, and how sure that is."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from fleet.trials.figures import ArmFigures, Candidate, Comparison, Match, MatchState, TrialFigures
from fleet.trials.schedule import Range, project
from fleet.trials.schedule_arms import Planned
from fleet.trials.schedule_text import (
    assumed_sentence,
    days,
    days_span,
    dollars,
    dollars_span,
    reuse_sentence,
    rounded,
    sentence,
)
from fleet.trials.verdict import sentences, worded
from telemetry.statistics.forecast import Uncertainty
from tests.telemetry.statistics.examples import P5, PORTING_USD, TRN2


def planned(**changed: Any) -> tuple[Planned, ...]:
    return (
        Planned("p5", None, "", P5, Uncertainty(0.01), (), seed=0),
        Planned("trn2", None, "", replace(TRN2, **changed), Uncertainty(0.01), (), seed=1),
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


def test_a_saving_says_how_much_longer_the_same_tokens_take() -> None:
    # 106.5 G tokens take p5 12.5 days at 8.506 G a day.
    assert said(planned()).endswith(
        "and takes 1.5 days longer for the same tokens: 14.0 days instead of 12.5 days."
    )
    fast = planned(tokens_per_s=200_000.0)
    assert "days less for the same tokens: 14.0 days instead of" in said(fast)
    assert "takes about as long for the same tokens" in said(
        planned(tokens_per_s=100_000.0, compile_s=0.0)
    )


def unlike(usd_per_hour: float = 144.0) -> tuple[Planned, ...]:
    """Return both arms with instance types, p5 on demand and trn2 in a capacity block."""
    p5, trn2 = planned(usd_per_hour=usd_per_hour)
    return (
        replace(p5, instance_type="p5.48xlarge", price_basis="on demand, 2026-07-20"),
        replace(trn2, instance_type="trn2.48xlarge", price_basis="capacity block, 2026-10"),
    )


def test_across_price_kinds_equal_kinds_come_first_and_may_say_the_opposite() -> None:
    # At blocks 24 * 4 * 39.33 / 8,506 = $0.4439 against 24 * 4 * 35.7608 / 7,656 = $0.4484.
    text = said(unlike(), porting_usd=0)

    assert text.startswith(
        "Cannot tell across price kinds. At equal capacity-block list prices trn2 costs more for "
        "every token than p5"
    )
    block, _, paid = text.partition("As paid (capacity block against on demand) ")
    assert "over 14 days it costs $" in block
    assert paid.startswith("trn2 earns back its compile after")
    assert "over 14 days it saves $" in paid


def test_across_price_kinds_that_agree_both_are_said() -> None:
    text = said(unlike(usd_per_hour=400.0), porting_usd=0)

    assert text.startswith("At equal capacity-block list prices trn2 costs more")
    assert "As paid (capacity block against on demand) trn2 costs more" in text


def test_where_no_list_price_is_common_only_what_is_paid_is_said() -> None:
    p5, trn2 = unlike()
    text = said((p5, replace(trn2, instance_type="trn2u.48xlarge")), porting_usd=0)

    assert text.startswith(
        "Cannot tell across price kinds. The catalogue lists no price kind for both. As paid ("
    )


def test_of_simulated_arms_the_pace_is_called_assumed() -> None:
    p5, trn2 = planned()

    assert assumed_sentence((p5, trn2)) == ""
    assert assumed_sentence((p5, replace(trn2, is_simulated=True))).startswith(
        "trn2: simulated. The pace follows from assumed constants"
    )


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
    assert days_span(Range(1.5, 1.0, 3.0)).replace("\u202f", " ") == "36.0 h (24.0 to 72.0)"
    assert days_span(Range(3.0, 2.0, None)).replace("\u202f", " ") == "3.0 days (2.0 or more)"
    assert dollars_span(Range(41_234, 28_001, 55_499)) == "$41,200 ($28,000 to $55,500)"


def test_dollars_keep_three_digits() -> None:
    assert [rounded(value) for value in (0.0, 12.345, 98_765.0)] == [0.0, 12.3, 98_800.0]
    assert [dollars(value) for value in (0.0, -1_234.0)] == ["$0", "\u2212$1,230"]


ARM = {
    "run": "vit-p5",
    "instance_type": "p5.48xlarge",
    "n_nodes": 4,
    "is_baseline": True,
    "n_steps": 0,
    "n_settled": 0,
    "warm_up_s": 0.0,
    "n_warm_up": 0,
    "last_step": 0,
    "label": "p5",
    "values": {},
}
NULLS = (
    *("tokens_per_step", "compile_s", "ready_s", "first_step_s", "usd_per_hour", "usd_ready"),
    *("usd_warm_up", "usd_settled", "usd_between", "usd"),
)


@dataclass
class Told:
    """A comparison of dollars, to be varied."""

    ratio: float = -0.31
    low: float | None = -0.33
    high: float | None = -0.29
    word: str = "better"
    n_more_steps: int | None = 0
    measure: str = "usd_per_mtok"

    def sentence(self, *matches: Match) -> str:
        """Return the verdict, its spaces plain."""
        found = Comparison(
            *(self.measure, 2.0, 2.0 * (1 + self.ratio), self.ratio, self.low, self.high),
            *(self.word, self.n_more_steps),
        )
        return plain((found,), matches)


def plain(found: tuple[Comparison, ...], matches: tuple[Match, ...] = ()) -> str:
    arm: Any = msgspec.convert(ARM | dict.fromkeys(NULLS), ArmFigures)
    other = msgspec.structs.replace(arm, run="vit-trn2", label="trn2", is_baseline=False)
    figures = TrialFigures(matches, (arm, other), (Candidate("trn2", "vit-trn2", found),))
    return sentences(figures)[0].replace("\u202f", " ").replace("\u2212", "-")


def test_better_says_by_how_much_and_how_surely() -> None:
    assert Told().sentence() == (
        "trn2 is better than p5: 1M tokens cost $1.38 instead of $2.00, 31.0 % less "
        "(95 % interval -33.0 % to -29.0 %)."
    )


def test_cheaper_and_slower_says_both() -> None:
    dollars = Comparison("usd_per_mtok", 0.0222, 0.0205, -0.0766, -0.08, -0.07, "better", 0)
    pace = Comparison("tokens_per_s", 2.7e6, 1.9e6, -0.296, -0.3, -0.29, "worse", 0)

    said = plain((dollars, pace))

    assert "1M tokens cost $0.0205 instead of $0.0222, 7.7 % less" in said
    assert said.endswith("But it is slower: 29.6 % fewer tokens per second.")


def test_how_alike_or_how_long_stands_beside_a_figure_of_which_no_word_can_be() -> None:
    loss = Comparison("loss", 2.66, 2.66, 0.0, -0.001, 0.002, "cannot tell yet", None)
    pace = Comparison("tokens_per_s", 2.7e6, 2.6e6, -0.04, -0.1, 0.02, "cannot tell yet", 310)
    step = Comparison("step_s", 2.0, 1.0, -0.5, -0.51, -0.49, "better", 0)

    asides = [worded(each).aside.replace("\u202f", " ") for each in (loss, pace, step)]

    assert asides == ["alike within 0.2 %", "about 310 more steps", ""]


def test_an_arm_that_differs_takes_no_verdict_from_the_others() -> None:
    batch = Match("global_batch", "global batch", ("256", "256", "192"), MatchState.DIFFERS)
    found = Comparison("usd_per_mtok", 2.0, 1.4, -0.3, -0.33, -0.29, "better", 0)
    arm: Any = msgspec.convert(ARM | dict.fromkeys(NULLS), ArmFigures)
    others = [
        msgspec.structs.replace(arm, run=name, label=name, is_baseline=False) for name in "ab"
    ]
    candidates = tuple(Candidate(name, name, (found,)) for name in "ab")

    same, other = sentences(TrialFigures((batch,), (arm, *others), candidates))

    assert same.startswith("a is better than p5")
    assert other.startswith("b and p5 do not train the same thing (global batch)")


def test_worse_says_more() -> None:
    said = Told(ratio=0.1, low=0.05, high=0.15, word="worse").sentence()

    assert said.startswith("trn2 is worse than p5: 1M tokens cost $2.20 instead of $2.00, 10.0 %")
    assert "% more" in said


def test_where_nobody_can_tell_it_says_how_many_steps_would() -> None:
    said = Told(ratio=-0.03, low=-0.1, high=0.04, word="cannot tell yet", n_more_steps=1_250)

    assert said.sentence().startswith("Cannot tell yet whether trn2 is better than p5")
    assert said.sentence().endswith("About 1,250 more steps of each arm would tell.")


def test_arms_alike_need_no_more_steps() -> None:
    said = Told(ratio=0.001, low=-0.01, high=0.012, word="cannot tell yet", n_more_steps=None)

    assert said.sentence().endswith("They are so alike that more steps would hardly tell.")


def test_no_verdict_follows_from_arms_that_differ() -> None:
    match = Match("global_batch", "global batch", ("4096", "2048"), MatchState.DIFFERS)
    said = Told().sentence(match)

    assert said.startswith("trn2 and p5 do not train the same thing (global batch): 1M tokens")
    assert said.endswith("No verdict follows from that.")
    assert "better" not in said


def test_few_steps_have_no_interval() -> None:
    assert "31.0 % less; too few steps" in Told(low=None, high=None).sentence()


def test_without_a_price_the_pace_decides() -> None:
    assert "it trains on 1.38 tokens/s instead of 2.00" in Told(measure="tokens_per_s").sentence()


def test_without_steps_nothing_is_said() -> None:
    assert plain(()) == "Nothing can be said of trn2 yet: both arms need steps."
