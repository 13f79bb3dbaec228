"""Verdicts: equal price kinds first, then actual prices, then break-even."""

from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import msgspec
import pytest

from fleet.trials.figures import (
    TRAINIUM2,
    ArmFigures,
    ArmPrice,
    Candidate,
    Comparison,
    Match,
    MatchState,
    PaceEvidence,
    TrialFigures,
)
from fleet.trials.text import (
    candidate_reports,
    interval_chart,
    listed_price,
    notes,
    sentences,
    written_csv,
)
from fleet.trials.verdict import (
    Verdict,
    common_region,
    judge,
    kind_of,
    list_prices,
    price_kinds,
)
from tests.fleet.trials.test_text import ARM, NULLS

# What the catalogue lists, dollars per node-hour.
P5_BLOCK, P5_ON_DEMAND, TRN2_BLOCK = 47.76, 55.04, 35.7608
# Trainium makes 0.7 times as many tokens: the arms are equal at 35.7608 / 0.7 = $51.09.
PACE = 0.7
P5_TOKENS_PER_S = 100_000.0


@dataclass(frozen=True)
class Paid:
    """An arm: instance type, price of a node-hour and its terms; None: no price."""

    instance_type: str
    usd: float | None
    basis: str
    n_nodes: int = 4
    tokens_per_s: float = P5_TOKENS_PER_S

    def figures(self, *, is_baseline: bool) -> ArmFigures:
        arm: Any = msgspec.convert(ARM | dict.fromkeys(NULLS), ArmFigures)
        per_hour = None if self.usd is None else self.usd * self.n_nodes
        found: ArmFigures = msgspec.structs.replace(
            arm,
            run="base" if is_baseline else "cand",
            label="base" if is_baseline else "cand",
            instance_type=self.instance_type,
            n_nodes=self.n_nodes,
            is_baseline=is_baseline,
            n_settled=2000,
            usd_per_hour=per_hour,
            price_basis=self.basis,
            prices=() if per_hour is None else (ArmPrice(0.0, per_hour, self.basis),),
        )
        return found

    @property
    def usd_per_mtok(self) -> float:
        assert self.usd is not None
        return self.usd * self.n_nodes / 3600 / self.tokens_per_s * 1e6


P5 = Paid("p5.48xlarge", P5_ON_DEMAND, "on demand, 2026-07-20")
TRN2 = Paid(
    *("trn2.48xlarge", TRN2_BLOCK, "capacity block, 2026-10"),
    tokens_per_s=PACE * P5_TOKENS_PER_S,
)


def compared(measure: str, before: float, after: float, word: str) -> Comparison:
    ratio = after / before - 1
    return Comparison(
        measure, before, after, ratio, 0.996 * (1 + ratio) - 1, 1.004 * (1 + ratio) - 1, word, 0
    )


def trial(base: Paid, cand: Paid, *matches: Match) -> TrialFigures:
    pace = cand.tokens_per_s / base.tokens_per_s
    found = [
        compared(
            *("tokens_per_s", base.tokens_per_s, cand.tokens_per_s),
            "better" if pace > 1 else "worse",
        )
    ]
    if base.usd is not None and cand.usd is not None:
        before, after = base.usd_per_mtok, cand.usd_per_mtok
        word = "better" if after < before else "worse"
        found = [
            compared("usd_per_mtok", before, after, word),
            compared("tokens_per_usd", 1e6 / before, 1e6 / after, word),
            *found,
        ]
    evidence = PaceEvidence(pace - 1, 0.002, 2000, 2000)
    candidate = Candidate(
        *("cand", "cand", tuple(found)),
        is_decided=True,
        pace=evidence,
        n_runs=(3, 3),
        is_provisional=False,
    )
    arms = (base.figures(is_baseline=True), cand.figures(is_baseline=False))
    return TrialFigures(matches, arms, (candidate,))


def verdict(base: Paid, cand: Paid) -> Verdict:
    figures = trial(base, cand)
    return judge(figures, figures.candidates[0])


def sentence(base: Paid, cand: Paid) -> str:
    text = sentences(trial(base, cand))[0]
    return text.replace("\u202f", " ").replace("\u00a0", " ").replace("\u2212", "-")


def test_unlike_kinds_of_opposite_sign_cannot_be_reported() -> None:
    found = verdict(P5, TRN2)

    # As paid 35.7608 / 55.04 / 0.7 = 0.9282; at blocks 35.7608 / 47.76 / 0.7 = 1.0697.
    assert found.paid is not None
    assert found.paid.ratio == pytest.approx(-0.0718, abs=1e-4)
    (block,) = found.at_list_prices
    assert (block.kind, block.comparison.word) == ("capacity block", "worse")
    assert block.comparison.ratio == pytest.approx(0.0697, abs=1e-4)
    assert block.comparison.baseline == pytest.approx(4 * 47.76 / 3600 / 0.1)
    assert block.comparison.candidate == pytest.approx(4 * 35.7608 / 3600 / 0.07)
    assert found.badge == "price kinds differ"
    assert found.break_even is not None
    assert found.break_even.usd == pytest.approx(51.09, abs=0.005)
    assert sentence(P5, TRN2) == (
        "Inconclusive across price kinds: cand costs 7.0 % more per token than base at equal "
        "capacity-block list prices (95 %: +6.5 % to +7.4 %); as priced (capacity block vs. on "
        "demand) it costs 7.2 % less; throughput is 30.0 % lower. "
        "Break-even: cand is cheaper while a p5.48xlarge node-hour costs more than $51.09 "
        "($50.88 to $51.29)."
    )


def test_swapped_arms_give_the_opposite() -> None:
    found = verdict(TRN2, P5)

    # At blocks 47.76 / 35.7608 * 0.7 = 0.9349; as priced 55.04 / 35.7608 * 0.7 = 1.0774.
    assert found.at_list_prices[0].comparison.ratio == pytest.approx(-0.0651, abs=1e-4)
    assert found.at_list_prices[0].comparison.word == "better"
    assert found.paid is not None
    assert found.paid.ratio == pytest.approx(0.0774, abs=1e-4)
    assert found.badge == "price kinds differ"
    # It is cheaper while a trn2 node-hour costs more than 55.04 * 0.7 = $38.53.
    assert "while a trn2.48xlarge node-hour costs more than $38.53" in sentence(TRN2, P5)
    assert sentence(TRN2, P5).startswith("Inconclusive across price kinds: ")


def test_swapped_prices_are_of_the_same_sign_and_still_no_badge() -> None:
    p5 = replace(P5, usd=TRN2_BLOCK, basis="capacity block")
    trn2 = replace(TRN2, usd=P5_ON_DEMAND, basis="on demand")
    found = verdict(p5, trn2)

    assert found.paid is not None
    assert found.paid.ratio == pytest.approx(55.04 / 35.7608 / PACE - 1)
    assert (found.badge, found.at_list_prices[0].comparison.word) == (
        "price kinds differ",
        "worse",
    )
    assert sentence(p5, trn2).startswith("cand costs 7.0 % more per token than base at equal")


def test_unlike_kinds_of_the_same_sign_say_both_without_a_badge() -> None:
    fast = replace(TRN2, tokens_per_s=1.25 * P5_TOKENS_PER_S)
    found = verdict(P5, fast)

    # 35.7608 / 47.76 / 1.25 = 0.5990 and 35.7608 / 55.04 / 1.25 = 0.5198.
    assert found.badge == "price kinds differ"
    assert found.contradicting == ()
    assert sentence(P5, fast).startswith("cand costs 40.1 % less per token than base at equal")
    assert "as priced (capacity block vs. on demand) it costs 48.0 % less" in sentence(P5, fast)


def test_equal_price_kinds_have_their_verdict() -> None:
    p5 = replace(P5, usd=P5_BLOCK, basis="capacity block of LLM, 2026-10-01")
    found = verdict(p5, TRN2)

    assert (found.badge, found.kinds.is_alike) == ("worse", True)
    assert sentence(p5, TRN2).startswith("cand is worse than base: 1M tokens cost $0.5676 instead")
    assert "p5.48xlarge node-hour costs more than $51.09" in sentence(p5, TRN2)
    assert "But at equal" not in sentence(p5, TRN2)


def test_a_verdict_at_one_price_kind_names_the_kind_that_reverses_it() -> None:
    cheap = replace(TRN2, usd=30.0, basis="contract of LLM")
    dear = replace(P5, usd=60.0, basis="contract of LLM")
    found = verdict(dear, cheap)

    assert found.badge == "better"
    assert "But at equal capacity-block list prices it costs 7.0 % more" in sentence(dear, cheap)


def test_a_kind_that_one_arm_lacks_leaves_only_what_was_paid() -> None:
    ultra = replace(TRN2, instance_type="trn2u.48xlarge")
    found = verdict(P5, ultra)

    assert (found.at_list_prices, found.badge) == ((), "price kinds differ")
    assert sentence(P5, ultra).startswith(
        "Inconclusive across price kinds: cand vs. base: as priced (capacity block vs. on "
        "demand) it costs 7.2 % less, and the catalogue lists no price kind for both;"
    )
    assert "node-hour costs more than $51.09" in sentence(P5, ultra)


def test_with_one_arm_priced_list_prices_are_all_there_is() -> None:
    free = replace(TRN2, usd=None, basis="")
    found = verdict(P5, free)

    # Slower and more expensive by blocks: the verdict on pace holds, and is not "better".
    assert (found.paid, found.badge) == (None, "worse")
    assert found.at_list_prices[0].comparison.ratio == pytest.approx(0.0697, abs=1e-4)
    assert found.break_even is not None
    assert found.break_even.usd == pytest.approx(51.09, abs=0.005)
    assert not found.break_even.is_paid
    assert sentence(P5, free).startswith("cand costs 7.0 % more per token than base at equal")
    assert "the price paid is not known for both arms" in sentence(P5, free)
    assert "itself at its list price of $35.76" in sentence(P5, free)


def test_faster_is_not_better_where_list_prices_say_otherwise() -> None:
    # 1.1 times the pace, but 63.16 dollars a block against 47.76: 1.20 times as expensive.
    h200 = Paid("p5en.48xlarge", None, "", tokens_per_s=1.1 * P5_TOKENS_PER_S)
    found = verdict(P5, h200)

    assert found.badge == "price unknown"
    assert "costs 20.2 % more" in sentence(P5, h200)
    assert "the price paid is not known for both arms" in sentence(P5, h200)


def test_an_arm_that_changed_its_kind_is_unlike_any() -> None:
    figures = trial(replace(P5, basis="capacity block"), TRN2)
    base, cand = figures.arms
    prices = (ArmPrice(0.0, 220.16, "on demand"), ArmPrice(60.0, 191.04, "capacity block"))
    base = msgspec.structs.replace(base, prices=prices)
    found = judge(TrialFigures((), (base, cand), figures.candidates), figures.candidates[0])

    assert found.badge == "price kinds differ"
    assert found.kinds.text == "capacity block vs. on demand then capacity block"


def test_arms_that_train_different_things_have_no_verdict_at_any_price() -> None:
    match = Match("global_batch", "global batch", ("256", "128"), MatchState.DIFFERS)
    figures = trial(P5, TRN2, match)
    found = judge(figures, figures.candidates[0])

    assert (found.badge, found.why_none("tokens_per_s")) == ("arms differ", "arms differ")


def test_figures_of_earlier_versions_are_judged_by_their_interval() -> None:
    figures = trial(P5, TRN2)
    kept = msgspec.structs.replace(figures.candidates[0], pace=None)
    found = judge(TrialFigures((), figures.arms, (kept,)), kept)

    assert found.at_list_prices[0].comparison.word == "worse"


def test_too_few_steps_for_an_interval_have_no_verdict_at_any_price() -> None:
    figures = trial(P5, TRN2)
    changed = tuple(
        msgspec.structs.replace(each, low=None, high=None, word="cannot tell yet")
        for each in figures.candidates[0].comparisons
    )
    kept = msgspec.structs.replace(figures.candidates[0], pace=None, comparisons=changed)
    (block,) = judge(TrialFigures((), figures.arms, (kept,)), kept).at_list_prices

    assert (block.comparison.word, block.comparison.low) == ("cannot tell yet", None)


def test_the_claim_is_drawn_at_equal_kinds_alone() -> None:
    figures = trial(P5, TRN2)
    found = interval_chart(figures.candidates[0], TRAINIUM2, judge(figures, figures.candidates[0]))

    assert found is not None
    assert [(line.row.label, line.band is not None) for line in found.lines] == [
        ("$ per 1M tokens, capacity block prices", True),
        ("$ per 1M tokens, as priced", False),
        ("tokens per second", False),
    ]
    assert found.lines[0].row.comparison.ratio == pytest.approx(0.0697, abs=1e-4)


def test_the_newest_list_price_of_a_kind_counts_and_several_are_a_range() -> None:
    assert list_prices("p5.48xlarge", "us-east-1")["on demand"].usd == P5_ON_DEMAND
    everywhere = list_prices("p5.48xlarge")["on demand"]
    assert (everywhere.low_usd, everywhere.high_usd) == (55.04, 71.552)
    spot = list_prices("trn1.32xlarge")["spot"]
    assert (spot.low_usd, spot.high_usd) == (2.81, 8.0)
    # A type without a price in that region is a range too.
    assert list_prices("trn2.48xlarge", "us-east-1")["capacity block"].region == "us-east-2"


def test_list_prices_are_compared_in_a_region_that_has_both_types() -> None:
    (on_demand, block) = price_kinds(
        "p5.48xlarge", "p5en.48xlarge", baseline_bases=[""], candidate_bases=[""]
    ).common

    assert (on_demand.baseline.usd, on_demand.candidate.usd) == (55.04, 63.296)
    assert (on_demand.baseline.region, on_demand.candidate.region) == ("us-east-1", "us-east-1")
    assert (block.kind, block.candidate.region) == ("capacity block", "any")
    assert common_region("p5.48xlarge", "trn2.48xlarge") == "us-east-2"
    assert common_region("p5.48xlarge", "trn3.48xlarge") == ""


def test_an_old_list_price_is_marked_with_its_age() -> None:
    price = list_prices("trn2.3xlarge")["capacity block"]

    assert listed_price("trn2.3xlarge", price, date(2026, 8, 19)) == (
        "trn2.3xlarge $2.23 (2026-05-21)"
    )
    assert "(as of 2026-05-21, 91 days old)" in listed_price(
        "trn2.3xlarge", price, date(2026, 8, 20)
    )


def test_a_range_has_a_verdict_only_where_both_ends_agree() -> None:
    # Spot in us-east-1: trn1 for 3.67 to 4.57 dollars, trn1n for 3.10 to 9.40, at the same pace.
    trn1, trn1n = (Paid(name, 20.0, "contract") for name in ("trn1.32xlarge", "trn1n.32xlarge"))
    verdicts = {each.kind: each.comparison.word for each in verdict(trn1, trn1n).at_list_prices}

    assert verdicts == {"on demand": "worse", "1-year": "worse", "spot": "cannot tell yet"}


@pytest.mark.parametrize(
    ("basis", "kind"),
    [
        ("on demand, 2026-07-20", "on demand"),
        ("Capacity block of retail vision, 2026-10-23", "capacity block"),
        ("reserved, effective", "reserved"),
        ("reserved 3-year, 2026", "3-year"),
        ("1-year, 2026", "1-year"),
        ("as reported", ""),
        ("", ""),
    ],
)
def test_the_kind_is_what_the_terms_begin_with(basis: str, kind: str) -> None:
    assert kind_of(basis) == kind


def with_mfu(base: float, cand: float) -> TrialFigures:
    figures = trial(P5, TRN2)
    arms = [
        msgspec.structs.replace(arm, values=arm.values | {"mfu_ratio": mfu})
        for arm, mfu in zip(figures.arms, (base, cand), strict=True)
    ]
    return msgspec.structs.replace(figures, arms=tuple(arms))


def test_an_mfu_above_the_peak_has_no_verdict_and_says_what_to_check() -> None:
    figures = with_mfu(0.4, 1.55)
    found = judge(figures, figures.candidates[0])

    assert (found.badge, found.break_even) == ("MFU above 100 %", None)
    assert {found.why_none(name) for name in ("usd_per_mtok", "tokens_per_s")} == {found.badge}
    (text,) = sentences(figures)
    assert text.startswith(
        "No verdict: the MFU is above 100 %, which no hardware reaches (cand 155"
    )
    for word in ("chips", "precision", "batch", "sequence length"):
        assert word in text


@pytest.mark.parametrize(
    ("mfu", "is_warned"), [(0.55, False), (0.70, False), (0.72, True), (1.0, True)]
)
def test_an_mfu_above_all_that_is_published_is_warned_of(mfu: float, is_warned: bool) -> None:  # noqa: FBT001
    figures = with_mfu(0.4, mfu)
    candidate = figures.candidates[0]
    found = judge(figures, candidate)
    texts = notes(candidate, figures, found, None, date(2026, 11, 1))

    assert found.badge != "MFU above 100 %"
    assert any("Check the number of chips" in text for text in texts) == is_warned


def test_a_price_of_the_catalogue_is_said_to_be_that() -> None:
    contract = replace(TRN2, basis="on demand of LLM, 2026-07-20, mail")
    figures = trial(P5, contract)
    candidate = figures.candidates[0]
    texts = " ".join(notes(candidate, figures, judge(figures, candidate), None, date(2026, 8, 1)))

    assert "base: catalogue list price of 2026-07-20" in texts
    assert "cand: catalogue" not in texts


def test_a_run_that_failed_or_diverged_is_not_compared_without_a_word() -> None:
    figures = trial(P5, TRN2)
    base, cand = figures.arms
    arms = (
        msgspec.structs.replace(base, end_reason="NRT_EXEC_HW_ERR_HBM_UE"),
        msgspec.structs.replace(cand, bad_loss="NaN", bad_loss_step=1500),
    )
    figures = msgspec.structs.replace(figures, arms=arms)
    candidate = figures.candidates[0]
    texts = notes(candidate, figures, judge(figures, candidate), None, date(2026, 11, 1))

    assert texts[0].startswith(f"{base.run} failed: NRT_EXEC_HW_ERR_HBM_UE.")
    assert texts[1].startswith(f"The loss of {cand.run} is NaN since step 1,500")


def test_the_price_of_a_chip_is_marked() -> None:
    chip = replace(TRN2, usd=TRN2_BLOCK / 16)

    for base, cand, n in ((P5, TRN2, 0), (P5, chip, 1), (chip, P5, 1)):
        figures = trial(base, cand)
        (candidate,) = figures.candidates
        found = notes(candidate, figures, judge(figures, candidate), None, date(2026, 11, 1))
        assert sum("the price of one of its 16 chips" in note for note in found) == n


@pytest.mark.parametrize(
    ("seq_lens", "badge"),
    [
        (("4096", "4096"), "better"),
        (("4096", ""), "tokens unknown"),
        (("", ""), "tokens unknown"),
    ],
)
def test_a_shorter_step_is_better_only_if_it_has_as_many_tokens(
    seq_lens: tuple[str, str], badge: str
) -> None:
    before = trial(
        *(P5, replace(TRN2, n_nodes=2)),
        Match("global_batch", "global batch", ("256", "256"), MatchState.SAME),
        Match(
            "seq_len",
            "sequence length",
            tuple(value or "not reported" for value in seq_lens),
            MatchState.SAME if all(seq_lens) else MatchState.UNKNOWN,
        ),
    )
    step = compared("step_s", 7.0, 3.0, "better")
    candidate = msgspec.structs.replace(before.candidates[0], comparisons=(step,), pace=None)
    figures = msgspec.structs.replace(before, candidates=(candidate,))

    (report,) = candidate_reports(figures, date(2026, 11, 1))

    has_verdict = badge == "better"
    assert report.verdict.badge == badge
    assert ("Move to" in report.decision.advice) == has_verdict
    assert ("--seq-len" in report.decision.advice) != has_verdict
    assert ("is better than" in sentences(figures)[0]) == has_verdict
    assert ("none: tokens unknown" in written_csv(figures)) != has_verdict
