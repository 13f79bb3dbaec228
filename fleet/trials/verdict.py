"""The verdict on a candidate: at equal price kinds first, then as priced, and the break-even."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from fleet.trials.figures import (
    DECIDING,
    ArmFigures,
    Candidate,
    Comparison,
    Match,
    MatchState,
    PaceEvidence,
    TrialFigures,
    match_some,
    mismatches,
)
from telemetry import catalog
from telemetry.statistics.bootstrap import Difference
from telemetry.statistics.forecast import NORMAL_QUANTILE
from telemetry.statistics.verdicts import DEFAULT_STEPS, TrialVerdict, TrialWord, verdict
from telemetry.units import HOUR_S, TOKENS_PER_MTOK

# In the order of display. "reserved" is a list price without a term.
KINDS = (*("on demand", "1-year", "3-year", "reserved"), *("capacity block", "spot", "contract"))
# What a price's terms begin with, longer before shorter.
NAMES: Mapping[str, str] = {
    "on demand": "on demand",
    "on-demand": "on demand",
    "1-year": "1-year",
    "reserved 1-year": "1-year",
    "3-year": "3-year",
    "reserved 3-year": "3-year",
    "reserved": "reserved",
    "capacity block": "capacity block",
    "spot": "spot",
    "contract": "contract",
    "private contract": "contract",
}
# Region of a price that names none, or that every region has.
ANY_REGION = "any"
NOT_STATED, THEN = "terms not stated", " then "


@dataclass(frozen=True, slots=True)
class ListPrice:
    """The catalogue's price of a node-hour of one kind; a range where several are listed.

    ``date`` is that of the oldest of them.
    """

    low_usd: float
    high_usd: float
    region: str
    date: str

    @property
    def usd(self) -> float:
        return (self.low_usd + self.high_usd) / 2


@dataclass(frozen=True, slots=True)
class CommonKind:
    """A kind for which both arms have a list price, per node and hour."""

    kind: str
    baseline: ListPrice
    candidate: ListPrice


@dataclass(frozen=True, slots=True)
class PriceKinds:
    """The kinds of prices of two arms, and the kinds for which both have a list price.

    ``baseline`` and ``candidate`` are kinds: several, joined by "then", where an arm changed its
    kind during the run, and empty where the price or its kind is unknown.
    """

    baseline: str
    candidate: str
    common: tuple[CommonKind, ...]

    @property
    def is_alike(self) -> bool:
        """Whether both arms paid the same single kind of price."""
        return self.baseline == self.candidate and THEN not in self.baseline

    @property
    def text(self) -> str:
        """Both kinds, the candidate's first: capacity block vs. on demand."""
        return f"{self.candidate or NOT_STATED} vs. {self.baseline or NOT_STATED}"


def kind_of(basis: str) -> str:
    """Find the kind that a price's basis begins with; empty where it names none.

    >>> kind_of("capacity block of retail vision, 2026-10-23"), kind_of("as reported")
    ('capacity block', '')
    """
    text = basis.casefold()
    names = (name for name in sorted(NAMES, key=len, reverse=True) if text.startswith(name))
    return NAMES.get(next(names, ""), "")


def list_prices(instance_type: str, region: str = "") -> dict[str, ListPrice]:
    """List the newest list price of an instance type by kind, in the order of KINDS.

    A kind that is not listed in ``region``, or all kinds without one, are a range over regions.
    """
    instance = catalog.instances().get(instance_type)
    prices = instance.prices if instance else ()
    by_kind = {}
    for kind in KINDS:
        listed = [price for price in prices if kind_of(price.basis) == kind]
        here = [price for price in listed if {region, ANY_REGION} & {*price.regions}]
        listed = here or listed
        if not listed:
            continue
        newest: dict[str, str] = {}
        for price in listed:
            for each in price.regions:
                newest[each] = max(price.date, newest.get(each, ""))
        current = [p for p in listed if any(newest[each] == p.date for each in p.regions)]
        regions = dict.fromkeys(each for price in current for each in price.regions)
        by_kind[kind] = ListPrice(
            min(price.usd_per_hour for price in current),
            max(price.usd_per_hour_high or price.usd_per_hour for price in current),
            region if region in regions else ", ".join(regions),
            min(price.date for price in current),
        )
    return by_kind


def common_region(baseline: str, candidate: str) -> str:
    """Find the first region that the catalogue has a price in for both types; empty if none."""
    known = [
        [region for price in instance.prices for region in price.regions] if instance else []
        for instance in (catalog.instances().get(name) for name in (baseline, candidate))
    ]
    return next((each for each in known[0] if each != ANY_REGION and each in known[1]), "")


def price_kinds(
    baseline: str,
    candidate: str,
    *,
    baseline_bases: Collection[str],
    candidate_bases: Collection[str],
) -> PriceKinds:
    """Compare the kinds of prices of two arms.

    Parameters
    ----------
    baseline, candidate : instance types
    baseline_bases, candidate_bases : terms of the prices that each arm was paid by, in order
    """
    region = common_region(baseline, candidate)
    of_baseline, of_candidate = (list_prices(name, region) for name in (baseline, candidate))
    return PriceKinds(
        _paid(baseline_bases),
        _paid(candidate_bases),
        tuple(
            CommonKind(kind, price, of_candidate[kind])
            for kind, price in of_baseline.items()
            if kind in of_candidate
        ),
    )


def _paid(bases: Collection[str]) -> str:
    kinds = list(dict.fromkeys(kind_of(basis) for basis in bases))
    return kinds[0] if len(kinds) == 1 else THEN.join(kind or NOT_STATED for kind in kinds)


# No training run is known above: PaLM has 0.46 (arXiv:2204.02311), MegaScale 0.55
# (arXiv:2402.15627). Above 1 a figure is wrong.
USUAL_MFU = 0.70
MFU_IMPOSSIBLE = "MFU above 100 %"
TOKENS_UNKNOWN = "tokens unknown"
# Badges where no verdict follows.
ARMS_DIFFER, KINDS_DIFFER, PRICE_UNKNOWN = "arms differ", "price kinds differ", "price unknown"
# Prefix of such a reason where a verdict is expected, in the API and in CSV.
NO_VERDICT = "none: "
# Measures without a verdict where the price kinds differ.
PRICED = ("usd_per_mtok", "usd_per_epoch", "tokens_per_usd")
USD, PACE, STEP = "usd_per_mtok", "tokens_per_s", "step_s"


@dataclass(frozen=True, slots=True)
class ListPriceComparison:
    """$ per 1M tokens of both arms at list prices of one kind."""

    prices: CommonKind
    comparison: Comparison

    @property
    def kind(self) -> str:
        return self.prices.kind


@dataclass(frozen=True, slots=True)
class BreakEvenPrice:
    """The baseline's price per node-hour at which both arms cost the same per token.

    Above ``usd`` the candidate is cheaper. It follows from the measured throughput and from the
    price of the candidate's node-hour, ``candidate_usd``. ``low`` to ``high`` is its 95 %
    interval.
    """

    instance_type: str
    usd: float
    low: float | None
    high: float | None
    candidate_usd: float
    is_paid: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from the figures of a candidate and the baseline.

    ``badge`` is better, worse, equivalent, cannot tell yet, or why there is no verdict; empty
    before any figure. ``differing`` names the fields in which the arms train different workloads.
    ``impossible`` are the labels of arms whose MFU is above 1, and that MFU. ``is_work_unknown``:
    only the time of a step is known, and not that both arms train on as many tokens in it.
    ``paid`` compares the cost as priced; ``deciding`` is that, or the pace where the cost is
    unknown.
    """

    badge: str
    differing: tuple[str, ...]
    kinds: PriceKinds
    paid: Comparison | None
    deciding: Comparison | None
    at_list_prices: tuple[ListPriceComparison, ...]
    break_even: BreakEvenPrice | None
    has_few_runs: bool
    impossible: tuple[tuple[str, float], ...] = ()
    is_work_unknown: bool = False

    @property
    def refused(self) -> str:
        """Why no measure has a verdict; empty where one may have."""
        if self.differing:
            return ARMS_DIFFER
        if self.is_work_unknown:
            return TOKENS_UNKNOWN
        return MFU_IMPOSSIBLE if self.impossible else ""

    @property
    def is_provisional(self) -> bool:
        """Whether the badge rests on an assumed variation between runs."""
        return self.has_few_runs and self.badge in (
            *(TrialWord.BETTER, TrialWord.WORSE, TrialWord.EQUIVALENT),
        )

    @property
    def has_unlike_kinds(self) -> bool:
        """Whether the arms were paid at different kinds of prices."""
        return self.paid is not None and not self.kinds.is_alike

    @property
    def is_across_kinds(self) -> bool:
        """Whether the prices paid cannot be compared, so that those at equal kinds come first."""
        return self.has_unlike_kinds or (self.paid is None and bool(self.at_list_prices))

    @property
    def cost(self) -> Comparison | None:
        """The cost that decides: at equal kinds where the prices paid cannot be compared."""
        if self.is_across_kinds:
            return next((each.comparison for each in self.at_list_prices), None)
        return self.paid

    @property
    def contradicting(self) -> tuple[ListPriceComparison, ...]:
        """The list price kinds at which the result is not that of the prices paid."""
        if self.deciding is None:
            return ()
        if self.paid is None or self.kinds.is_alike:
            word = self.deciding.word
        else:
            word = TrialWord.BETTER if self.paid.ratio < 0 else TrialWord.WORSE
        return tuple(price for price in self.at_list_prices if price.comparison.word != word)

    def why_none(self, measure: str) -> str:
        """Explain why a measure has no verdict; empty where it has one."""
        if self.refused:
            return self.refused
        return KINDS_DIFFER if self.has_unlike_kinds and measure in PRICED else ""


def judge(figures: TrialFigures, candidate: Candidate) -> Verdict:
    """Judge a candidate. Page, slide, API, spreadsheet and chart all show this verdict."""
    baseline = next(arm for arm in figures.arms if arm.is_baseline)
    arm = figures.arm(candidate.run)
    differing = tuple(differing_fields(figures, candidate))
    impossible = tuple(
        (each.label, mfu) for each in (baseline, arm) if (mfu := max_mfu(figures, each.run)) > 1
    )
    kinds = price_kinds(
        baseline.instance_type,
        arm.instance_type,
        baseline_bases=_bases(baseline),
        candidate_bases=_bases(arm),
    )
    at_list_prices = tuple(_at_list_prices(candidate, baseline, arm, kinds))
    paid = candidate.get(USD)
    known = (candidate.get(measure) for measure in DECIDING)
    deciding = next((each for each in known if each is not None), None)
    is_work_unknown = (
        deciding is not None and deciding.measure == STEP and not has_same_work(figures, candidate)
    )
    if deciding is None:
        badge = ""
    elif differing:
        badge = ARMS_DIFFER
    elif is_work_unknown:
        badge = TOKENS_UNKNOWN
    elif impossible:
        badge = MFU_IMPOSSIBLE
    elif paid is not None:
        badge = deciding.word if kinds.is_alike else KINDS_DIFFER
    else:
        # The pace decides where the cost is unknown, unless list prices contradict it.
        is_contradicted = any(price.comparison.word != deciding.word for price in at_list_prices)
        badge = PRICE_UNKNOWN if is_contradicted else deciding.word
    return Verdict(
        badge=badge,
        differing=differing,
        kinds=kinds,
        paid=paid,
        deciding=deciding,
        at_list_prices=at_list_prices,
        break_even=None if impossible else _break_even(candidate, baseline, arm, kinds),
        has_few_runs=candidate.is_provisional,
        impossible=impossible,
        is_work_unknown=is_work_unknown,
    )


def max_mfu(figures: TrialFigures, run: str) -> float:
    """Return the highest MFU of an arm's runs; 0 where it is unknown."""
    return max((each.values.get("mfu_ratio", 0.0) for each in figures.runs_of(run)), default=0.0)


def differing_fields(figures: TrialFigures, candidate: Candidate) -> list[str]:
    """List the labels of the fields in which a candidate is known to differ from the baseline."""
    return [match.label for match in mismatches(_matches(figures, candidate))]


def has_same_work(figures: TrialFigures, candidate: Candidate) -> bool:
    """Whether a step of both arms is known to have as many sequences of the same length."""
    states = {match.field: match.state for match in _matches(figures, candidate)}
    return all(states.get(field) == MatchState.SAME for field in ("global_batch", "seq_len"))


def _matches(figures: TrialFigures, candidate: Candidate) -> list[Match]:
    baseline = next(arm for arm in figures.arms if arm.is_baseline)
    runs = [*figures.runs_of(baseline.run), *figures.runs_of(candidate.run)]
    places = [place for place, arm in enumerate(figures.arms) if arm in runs]
    return match_some(figures.matches, places)


def _bases(arm: ArmFigures) -> tuple[str, ...]:
    return tuple(price.basis for price in arm.prices) or (arm.price_basis,)


def _at_list_prices(
    candidate: Candidate, baseline: ArmFigures, arm: ArmFigures, kinds: PriceKinds
) -> Iterator[ListPriceComparison]:
    """Yield the cost per token at each kind for which both arms have a list price.

    Cost per token is price over pace. So its ratio is the ratio of prices over the measured
    ratio of paces, and the ends of its interval follow in the same way. Between nodes of one
    type the kind changes nothing: one kind is enough, and none is needed where both were paid at
    the same kind.
    """
    pace = candidate.get(PACE)
    is_one_type = baseline.instance_type == arm.instance_type
    if pace is None or (is_one_type and kinds.is_alike) or not (baseline.n_nodes and arm.n_nodes):
        return
    evidence = candidate.pace
    if evidence is None:
        # Figures of earlier versions do not store it.
        n_steps = min(baseline.n_settled, arm.n_settled)
        n_planned = n_steps if candidate.is_decided else max(DEFAULT_STEPS, n_steps + 1)
        error_log = math.inf
        if pace.low is not None and pace.high is not None:
            error_log = (math.log1p(pace.high) - math.log1p(pace.low)) / (2 * NORMAL_QUANTILE)
        evidence = PaceEvidence(pace.ratio, error_log, max(1, n_steps), max(1, n_planned))
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
        decision = _decide(evidence, least, most, margin_ratio=candidate.margin_ratio)
        yield ListPriceComparison(
            common,
            Comparison(
                measure=USD,
                baseline=_usd_per_mtok(common.baseline.usd * baseline.n_nodes, pace.baseline),
                candidate=_usd_per_mtok(common.candidate.usd * arm.n_nodes, pace.candidate),
                ratio=factor / (1 + pace.ratio) - 1,
                low=None if pace.high is None else least / (1 + pace.high) - 1,
                high=None if pace.low is None else most / (1 + pace.low) - 1,
                word=decision.word,
                n_more_steps=decision.n_more_steps,
            ),
        )


def _usd_per_mtok(usd_per_hour: float, tokens_per_s: float) -> float:
    return usd_per_hour / HOUR_S / tokens_per_s * TOKENS_PER_MTOK


def _decide(
    evidence: PaceEvidence, least: float, most: float, *, margin_ratio: float
) -> TrialVerdict:
    """Decide by cost per token over a range of price ratios; both ends must agree."""
    at_ends = [
        verdict(
            Difference(
                *(1.0, factor / (1 + evidence.ratio), factor / (1 + evidence.ratio) - 1),
                *(math.nan, math.nan),
                error_log=evidence.error_log,
                n_blocks=0,
                freedom=math.inf if evidence.freedom is None else evidence.freedom,
                run_error_log=evidence.run_error_log,
            ),
            is_better_low=True,
            n_steps=evidence.n_steps,
            n_planned=evidence.n_planned,
            margin_ratio=margin_ratio,
        )
        for factor in (least, most)
    ]
    if at_ends[0].word == at_ends[1].word:
        return max(at_ends, key=lambda each: each.n_more_steps or 0)
    return TrialVerdict(TrialWord.CANNOT_TELL, None)


def _break_even(
    candidate: Candidate, baseline: ArmFigures, arm: ArmFigures, kinds: PriceKinds
) -> BreakEvenPrice | None:
    """Compute the baseline's price at which both arms cost the same; None where unknown.

    There is no such price between nodes of one type and one price kind.
    """
    pace, paid = candidate.get(PACE), candidate.get(USD)
    if pace is None or (baseline.instance_type == arm.instance_type and kinds.is_alike):
        return None
    if not (baseline.n_nodes and arm.n_nodes):
        return None
    if paid is not None:
        per_hour = paid.candidate * pace.candidate * HOUR_S / TOKENS_PER_MTOK
    elif arm.usd_per_hour:
        per_hour = arm.usd_per_hour
    elif listed := list_prices(
        arm.instance_type, common_region(baseline.instance_type, arm.instance_type)
    ):
        per_hour = next(iter(listed.values())).usd * arm.n_nodes
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
