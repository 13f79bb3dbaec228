"""The one judgement of a candidate: at equal price kinds first, then as paid, with break-even."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fleet.runs.prices import CommonKind, PriceKinds, list_prices, price_kinds
from fleet.trials.figures import (
    ArmFigures,
    Candidate,
    Comparison,
    PaceEvidence,
    TrialFigures,
    between,
    mismatches,
)
from fleet.trials.measures import DECIDING, TOKENS_PER_MTOK
from telemetry.statistics.bootstrap import Difference
from telemetry.statistics.forecast import NORMAL_QUANTILE
from telemetry.statistics.verdicts import DEFAULT_STEPS, TrialVerdict, TrialWord, verdict

SECONDS_PER_HOUR = 3600.0
# What a badge says in place of a verdict.
ARMS_DIFFER, KINDS_DIFFER, PRICE_UNKNOWN = "arms differ", "price kinds differ", "price unknown"
# Measures whose word falls with the price kinds.
PRICED = ("usd_per_mtok", "usd_per_epoch", "tokens_per_usd")
USD, PACE = "usd_per_mtok", "tokens_per_s"


@dataclass(frozen=True, slots=True)
class AtKind:
    """$ per 1M tokens of a candidate against the baseline's, both at list prices of one kind."""

    prices: CommonKind
    comparison: Comparison

    @property
    def kind(self) -> str:
        """Which kind."""
        return self.prices.kind


@dataclass(frozen=True, slots=True)
class BreakEvenPrice:
    """The baseline's dollars per node and hour at which both arms cost the same per token.

    Above ``usd`` the candidate is cheaper. It rests on the measured throughput and on what the
    candidate's node-hour costs, ``candidate_usd``; ``low`` to ``high`` is its 95 % interval.
    """

    instance_type: str
    usd: float
    low: float | None
    high: float | None
    candidate_usd: float
    is_paid: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """What may be said of a candidate against the baseline.

    ``badge`` is better, worse, cannot tell yet, or why no word is possible; empty before any
    figure. ``unlike`` names the fields in which the arms train different things. ``paid`` is
    the comparison of dollars as they were paid; ``deciding`` that, or the pace without dollars.
    """

    badge: str
    unlike: tuple[str, ...]
    kinds: PriceKinds
    paid: Comparison | None
    deciding: Comparison | None
    at_kinds: tuple[AtKind, ...]
    break_even: BreakEvenPrice | None

    @property
    def are_kinds_unlike(self) -> bool:
        """Whether dollars were paid on unlike terms, so that no word follows from them."""
        return self.paid is not None and not self.kinds.is_alike

    @property
    def opposed(self) -> tuple[AtKind, ...]:
        """The kinds at which something else holds than as paid."""
        found = self.deciding
        if found is None:
            return ()
        if self.paid is None or self.kinds.is_alike:
            return tuple(each for each in self.at_kinds if each.comparison.word != found.word)
        is_less = self.paid.ratio < 0
        word = TrialWord.BETTER if is_less else TrialWord.WORSE
        return tuple(each for each in self.at_kinds if each.comparison.word != word)

    def no_word(self, measure: str) -> str:
        """Why a measure has no word of its own; empty where it has."""
        if self.unlike:
            return ARMS_DIFFER
        return KINDS_DIFFER if self.are_kinds_unlike and measure in PRICED else ""


def deciding(candidate: Candidate) -> Comparison | None:
    """Return the comparison that decides: of dollars, else of the pace."""
    told = (candidate.of(measure) for measure in DECIDING)
    return next((each for each in told if each is not None), None)


def unlike(figures: TrialFigures, candidate: Candidate) -> list[str]:
    """Return in what a candidate is known to train something else than the baseline, in words."""
    places = {arm.run: place for place, arm in enumerate(figures.arms)}
    baseline = next(place for place, arm in enumerate(figures.arms) if arm.is_baseline)
    pair = between(figures.matches, baseline, places[candidate.run])
    return [match.words for match in mismatches(pair)]


def judged(figures: TrialFigures, candidate: Candidate) -> Judgement:
    """Judge a candidate; page, slide, API, spreadsheet and chart all say what this says."""
    arms = {arm.run: arm for arm in figures.arms if not arm.is_baseline}
    baseline = next(arm for arm in figures.arms if arm.is_baseline)
    arm = arms[candidate.run]
    differ = tuple(unlike(figures, candidate))
    kinds = price_kinds(
        baseline.instance_type,
        arm.instance_type,
        baseline_bases=_bases(baseline),
        candidate_bases=_bases(arm),
    )
    at_kinds = tuple(_at_kinds(candidate, baseline, arm, kinds))
    found, paid = deciding(candidate), candidate.of(USD)
    return Judgement(
        badge=_badge(found, paid, kinds, at_kinds, differ=differ),
        unlike=differ,
        kinds=kinds,
        paid=paid,
        deciding=found,
        at_kinds=at_kinds,
        break_even=_break_even(candidate, baseline, arm, kinds),
    )


def _badge(
    found: Comparison | None,
    paid: Comparison | None,
    kinds: PriceKinds,
    at_kinds: tuple[AtKind, ...],
    *,
    differ: tuple[str, ...],
) -> str:
    if found is None:
        return ""
    if differ:
        return ARMS_DIFFER
    if paid is not None:
        return found.word if kinds.is_alike else KINDS_DIFFER
    # The pace decides where dollars are unknown, unless list prices say something else.
    is_opposed = any(each.comparison.word != found.word for each in at_kinds)
    return PRICE_UNKNOWN if is_opposed else found.word


def _bases(arm: ArmFigures) -> tuple[str, ...]:
    """Return the terms of the prices that an arm was paid by."""
    return tuple(price.basis for price in arm.prices) or (arm.price_basis,)


def _at_kinds(
    candidate: Candidate, baseline: ArmFigures, arm: ArmFigures, kinds: PriceKinds
) -> Iterator[AtKind]:
    """Yield dollars per token at each kind for which both arms have a list price.

    Dollars per token are the price over the pace, so that their ratio is the prices' ratio over
    the measured pace's, and so are the ends of its interval. Between nodes of one type the kind
    changes nothing: one says it, and none is needed where they were paid alike.
    """
    pace = candidate.of(PACE)
    is_one_type = baseline.instance_type == arm.instance_type
    if pace is None or (is_one_type and kinds.is_alike):
        return
    evidence = candidate.pace or _evidence_of(candidate, pace, baseline, arm)
    for common in kinds.common[:1] if is_one_type else kinds.common:
        nodes = arm.n_nodes / baseline.n_nodes
        factor, least, most = (
            nodes * over / under
            for over, under in (
                (common.candidate.usd, common.baseline.usd),
                (common.candidate.low_usd, common.baseline.high_usd),
                (common.candidate.high_usd, common.baseline.low_usd),
            )
        )
        said = _said(evidence, least, most)
        yield AtKind(
            common,
            Comparison(
                measure=USD,
                baseline=_usd_per_mtok(common.baseline.usd * baseline.n_nodes, pace.baseline),
                candidate=_usd_per_mtok(common.candidate.usd * arm.n_nodes, pace.candidate),
                ratio=factor / (1 + pace.ratio) - 1,
                low=None if pace.high is None else least / (1 + pace.high) - 1,
                high=None if pace.low is None else most / (1 + pace.low) - 1,
                word=said.word,
                n_more_steps=said.n_more_steps,
            ),
        )


def _usd_per_mtok(usd_per_hour: float, tokens_per_s: float) -> float:
    return usd_per_hour / SECONDS_PER_HOUR / tokens_per_s * TOKENS_PER_MTOK


def _said(evidence: PaceEvidence, least: float, most: float) -> TrialVerdict:
    """Judge dollars per token at a price ratio; of a range both ends must give the same word."""
    at_ends = [
        verdict(
            Difference(
                *(1.0, factor / (1 + evidence.ratio), factor / (1 + evidence.ratio) - 1),
                *(math.nan, math.nan),
                error_log=evidence.error_log,
                n_blocks=0,
            ),
            is_better_low=True,
            n_steps=evidence.n_steps,
            n_planned=evidence.n_planned,
        )
        for factor in (least, most)
    ]
    if at_ends[0].word == at_ends[1].word:
        return max(at_ends, key=lambda each: each.n_more_steps or 0)
    return TrialVerdict(TrialWord.CANNOT_TELL, None)


def _evidence_of(
    candidate: Candidate, pace: Comparison, baseline: ArmFigures, arm: ArmFigures
) -> PaceEvidence:
    """Return what words rest on, from figures of earlier versions that did not keep it."""
    n_steps = min(baseline.n_settled, arm.n_settled)
    n_planned = n_steps if candidate.is_decided else max(DEFAULT_STEPS, n_steps + 1)
    error_log = math.inf
    if pace.low is not None and pace.high is not None:
        error_log = (math.log1p(pace.high) - math.log1p(pace.low)) / (2 * NORMAL_QUANTILE)
    return PaceEvidence(pace.ratio, error_log, max(1, n_steps), max(1, n_planned))


def _break_even(
    candidate: Candidate, baseline: ArmFigures, arm: ArmFigures, kinds: PriceKinds
) -> BreakEvenPrice | None:
    """Return the baseline's price at which both arms cost the same; None where nobody can tell.

    Between nodes of one type and one price kind there is no such price.
    """
    pace, paid = candidate.of(PACE), candidate.of(USD)
    if pace is None or (baseline.instance_type == arm.instance_type and kinds.is_alike):
        return None
    if paid is not None:
        per_hour = paid.candidate * pace.candidate * SECONDS_PER_HOUR / TOKENS_PER_MTOK
    elif (usd := _known_price(arm)) is not None:
        per_hour = usd * arm.n_nodes
    else:
        return None
    per_node = per_hour / baseline.n_nodes
    return BreakEvenPrice(
        instance_type=baseline.instance_type,
        usd=per_node / (1 + pace.ratio),
        low=None if pace.high is None else per_node / (1 + pace.high),
        high=None if pace.low is None else per_node / (1 + pace.low),
        candidate_usd=per_hour / arm.n_nodes,
        is_paid=paid is not None or bool(arm.usd_per_hour),
    )


def _known_price(arm: ArmFigures) -> float | None:
    """Return what a node-hour of an arm costs: as paid now, or else by the first list price."""
    if arm.usd_per_hour:
        return arm.usd_per_hour / arm.n_nodes
    return next((price.usd for price in list_prices(arm.instance_type).values()), None)
