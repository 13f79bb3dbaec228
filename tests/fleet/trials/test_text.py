"""The verdict in one sentence."""

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from fleet.trials.figures import ArmFigures, Candidate, Comparison, Match, MatchState, TrialFigures
from fleet.trials.text import comparison_row, decision, sentences
from fleet.trials.verdict import judge

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
class Dollars:
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


def plain(
    found: tuple[Comparison, ...],
    matches: tuple[Match, ...] = (),
    *,
    is_provisional: bool = False,
    is_decided: bool = False,
) -> str:
    figures = compared(found, matches, is_provisional=is_provisional, is_decided=is_decided)
    return sentences(figures)[0].replace("\u202f", " ").replace("\u2212", "-")


def compared(
    found: tuple[Comparison, ...], matches: tuple[Match, ...] = (), **state: Any
) -> TrialFigures:
    arm: Any = msgspec.convert(ARM | dict.fromkeys(NULLS), ArmFigures)
    other = msgspec.structs.replace(arm, run="vit-trn2", label="trn2", is_baseline=False)
    state = {"is_provisional": False} | state
    candidate = Candidate("trn2", "vit-trn2", found, **state)
    return TrialFigures(matches, (arm, other), (candidate,))


def test_better_states_by_how_much_and_how_surely() -> None:
    assert Dollars().sentence() == (
        "trn2 is better than p5: 1M tokens cost $1.38 instead of $2.00, 31.0 % less "
        "(95 %: -33.0 % to -29.0 %)."
    )


def test_with_few_runs_a_verdict_is_provisional() -> None:
    found = Comparison("usd_per_mtok", 2.0, 1.38, -0.31, -0.33, -0.29, "better", 0)
    close = Comparison("usd_per_mtok", 2.0, 1.94, -0.03, -0.07, 0.01, "cannot tell yet", None)

    assert plain((found,), is_provisional=True).startswith("Provisional: trn2 is better than p5")
    assert "more runs of each arm would" in plain((close,), is_provisional=True)
    decided = plain((close,), is_provisional=True, is_decided=True)
    assert "A trial with 3 runs of each arm may" in decided


def test_equivalent_states_the_margin() -> None:
    found = Comparison("usd_per_mtok", 2.0, 1.99, -0.005, -0.012, 0.002, "equivalent", 0)

    assert plain((found,)).startswith(
        "trn2 and p5 are equivalent, within 2.0 %: 1M tokens cost $1.99 instead of $2.00"
    )


def test_cheaper_and_slower_states_both() -> None:
    dollars = Comparison("usd_per_mtok", 0.0222, 0.0205, -0.0766, -0.08, -0.07, "better", 0)
    pace = Comparison("tokens_per_s", 2.7e6, 1.9e6, -0.296, -0.3, -0.29, "worse", 0)

    shown = plain((dollars, pace))

    assert "1M tokens cost $0.0205 instead of $0.0222, 7.7 % less" in shown
    assert shown.endswith("But throughput is 29.6 % lower.")

    figures = compared((dollars, pace))
    (candidate,) = figures.candidates
    card = decision(candidate, figures, judge(figures, candidate))
    for line in (card.answer, card.advice):
        assert re.findall(r"29\.6|4\d\.\d", line) == ["29.6"], "one figure for one loss"


def test_an_undecided_row_notes_how_close_the_arms_are_or_how_many_steps_lack() -> None:
    loss = Comparison("loss", 2.66, 2.66, 0.0, -0.001, 0.002, "cannot tell yet", None)
    pace = Comparison("tokens_per_s", 2.7e6, 2.6e6, -0.04, -0.1, 0.02, "cannot tell yet", 310)
    step = Comparison("step_s", 2.0, 1.0, -0.5, -0.51, -0.49, "better", 0)

    notes = [comparison_row(each).note.replace("\u202f", " ") for each in (loss, pace, step)]

    assert notes == ["same within 0.2 %", "about 310 more steps", ""]


def test_an_arm_that_differs_takes_no_verdict_from_the_others() -> None:
    batch = Match("global_batch", "global batch", ("256", "256", "192"), MatchState.DIFFERS)
    found = Comparison("usd_per_mtok", 2.0, 1.4, -0.3, -0.33, -0.29, "better", 0)
    arm: Any = msgspec.convert(ARM | dict.fromkeys(NULLS), ArmFigures)
    others = [
        msgspec.structs.replace(arm, run=name, label=name, is_baseline=False) for name in "ab"
    ]
    candidates = tuple(Candidate(name, name, (found,), is_provisional=False) for name in "ab")

    same, other = sentences(TrialFigures((batch,), (arm, *others), candidates))

    assert same.startswith("a is better than p5")
    assert other.startswith("b and p5 train different workloads (global batch)")


def test_worse_states_more() -> None:
    shown = Dollars(ratio=0.1, low=0.05, high=0.15, word="worse").sentence()

    assert shown.startswith("trn2 is worse than p5: 1M tokens cost $2.20 instead of $2.00, 10.0 %")
    assert "% more" in shown


def test_where_no_one_can_tell_it_states_how_many_steps_would() -> None:
    shown = Dollars(ratio=-0.03, low=-0.1, high=0.04, word="cannot tell yet", n_more_steps=1_250)

    assert shown.sentence().startswith("trn2 vs. p5 is inconclusive:")
    assert shown.sentence().endswith("About 1,250 more steps of each arm would decide it.")


def test_arms_alike_need_no_more_steps() -> None:
    shown = Dollars(ratio=0.001, low=-0.01, high=0.012, word="cannot tell yet", n_more_steps=None)

    assert shown.sentence().endswith("more steps are unlikely to decide it.")


def test_no_verdict_follows_from_arms_that_differ() -> None:
    match = Match("global_batch", "global batch", ("4096", "2048"), MatchState.DIFFERS)
    shown = Dollars().sentence(match)

    assert shown.startswith("trn2 and p5 train different workloads (global batch): 1M tokens")
    assert shown.endswith("No verdict follows from that.")
    assert "better" not in shown


def test_few_steps_have_no_interval() -> None:
    assert "31.0 % less; too few independent steps" in Dollars(low=None, high=None).sentence()


def test_without_a_price_the_pace_decides() -> None:
    assert (
        "throughput is 1.38 tokens/s instead of 2.00" in Dollars(measure="tokens_per_s").sentence()
    )


def test_without_steps_nothing_is_reported() -> None:
    assert plain(()) == "No verdict on trn2 yet: both arms need steps."


def test_a_label_is_text_that_pages_escape() -> None:
    arm: Any = msgspec.convert(ARM | dict.fromkeys(NULLS), ArmFigures)
    other = msgspec.structs.replace(arm, run="vit-trn2", label="a <b>", is_baseline=False)
    candidate = Candidate("a <b> & c", "vit-trn2", ())
    (text,) = sentences(TrialFigures((), (arm, other), (candidate,)))

    assert text == "No verdict on a <b> & c yet: both arms need steps."
    assert not hasattr(text, "__html__")
