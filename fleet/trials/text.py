"""The text of a trial: values, sentences, notes, rows of tables, the interval chart, CSV."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property

from fleet.formatting import (
    ABSENT,
    MINUS,
    WORDS,
    change,
    count,
    csv_text,
    duration,
    percent,
    points,
    render_lines,
    render_text,
    seconds,
    si,
    tick,
    usd,
)
from fleet.runs.prices import chip_price_note, published_date
from fleet.trials.charts import LossChart, PriceChart, loss_chart, price_chart
from fleet.trials.figures import (
    BY_NAME,
    NOT_NAMED,
    NOT_REPORTED,
    ArmFigures,
    Candidate,
    Comparison,
    TrialFigures,
    VendorClaim,
    claim_for,
)
from fleet.trials.verdict import (
    NO_VERDICT,
    NOT_STATED,
    USUAL_MFU,
    ListPrice,
    Verdict,
    judge,
    max_mfu,
)
from telemetry.catalog import age_note
from telemetry.statistics.bootstrap import MEASURED_RUNS, RUN_CV
from telemetry.statistics.verdicts import MARGIN_RATIO, TrialWord


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """A comparison as text. ``why_none`` explains a missing verdict, and is empty otherwise."""

    comparison: Comparison
    label: str
    before: str
    after: str
    difference: str
    interval: str
    note: str
    why_none: str = ""


@dataclass(frozen=True, slots=True)
class OneTimeCost:
    """A one-time cost of each arm: measured once, so without an interval."""

    label: str
    before: str
    after: str
    change: str


@dataclass(frozen=True, slots=True)
class ClaimBand:
    """A vendor's claim on the axis of a chart, in percent of its width."""

    left: str
    width: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class IntervalLine:
    row: ComparisonRow
    at: str
    left: str
    right: str
    band: ClaimBand | None


@dataclass(frozen=True, slots=True)
class IntervalChart:
    """Lines on an axis where better is right; each tick has its position in percent and text."""

    lines: tuple[IntervalLine, ...]
    ticks: tuple[tuple[str, str], ...]
    zero: str

    @property
    def better(self) -> str:
        """The width of the better side, in percent."""
        return f"{100 - float(self.zero):.2f}"


@dataclass(frozen=True)
class Decision:
    """What a lead reads first, each a line that is written where it is shown; empty if unknown.

    The answer and what to do, then the prices on which it rests, up to which price it holds, and
    what limits it.
    """

    about: Mapping[str, object]

    def _line(self, name: str) -> str:
        return render_text(f"trials/_sentences.txt#{name}", **self.about)

    @cached_property
    def answer(self) -> str:
        return self._line("answer")

    @cached_property
    def advice(self) -> str:
        return self._line("advice")

    @property
    def basis(self) -> str:
        return self._line("basis")

    @property
    def break_even(self) -> str:
        return self._line("break-even")

    @property
    def doubt(self) -> str:
        return self._line("doubt")


@dataclass(frozen=True, slots=True)
class CandidateReport:
    candidate: Candidate
    verdict: Verdict
    decision: Decision
    rows: list[ComparisonRow]
    one_time: list[OneTimeCost]
    chart: IntervalChart | None
    price_chart: PriceChart | None
    loss_chart: LossChart | None
    claim: VendorClaim | None
    notes: list[str]

    @property
    def has_band(self) -> bool:
        """Whether the vendor's claim is drawn next to what was measured."""
        return self.chart is not None and any(line.band for line in self.chart.lines)

    @property
    def summary(self) -> list[ComparisonRow | None]:
        """Cost and pace, for one line."""
        pair = (self.candidate.get(name) for name in ("usd_per_mtok", "tokens_per_s"))
        return [None if each is None else comparison_row(each) for each in pair]


def candidate_reports(figures: TrialFigures, today: date) -> list[CandidateReport]:
    """Describe each candidate; prices that are old by ``today`` are marked."""
    baseline = figures.baseline
    if baseline is None:
        return []
    reports = []
    for candidate in figures.candidates:
        arm, verdict = figures.arm(candidate.run), judge(figures, candidate)
        claim = claim_for(baseline.instance_type, arm.instance_type)
        reports.append(
            CandidateReport(
                candidate,
                verdict,
                decision(candidate, figures, verdict),
                comparison_rows(candidate, verdict),
                one_time_costs(baseline, arm),
                interval_chart(candidate, claim, verdict),
                price_chart(baseline, arm, verdict),
                None if verdict.differing else loss_chart(baseline, arm),
                claim,
                notes(candidate, figures, verdict, claim, today),
            )
        )
    return reports


def comparison_rows(candidate: Candidate, verdict: Verdict) -> list[ComparisonRow]:
    """List the rows of a candidate: cost at equal price kinds, then what was measured."""
    why_none = verdict.refused
    rows = []
    for listed in verdict.at_list_prices:
        row = comparison_row(listed.comparison)
        label = f"{row.label}, {listed.kind} list prices"
        rows.append(replace(row, label=label, why_none=why_none))
    listed_measures = {listed.comparison.measure for listed in verdict.at_list_prices}
    for comparison in candidate.comparisons:
        # The inverse of the cost would show one saving with two signs.
        if comparison.measure == "tokens_per_usd":
            continue
        row = comparison_row(comparison)
        as_paid = ", as priced" if comparison.measure in listed_measures else ""
        why_none = verdict.why_none(comparison.measure)
        why_none = WORDS.get(why_none, why_none)
        rows.append(replace(row, label=f"{row.label}{as_paid}", why_none=why_none))
    return rows


def comparison_row(comparison: Comparison) -> ComparisonRow:
    """Write a comparison as text, with a note: how close the arms are, or steps needed."""
    name, note, more = comparison.measure, "", comparison.n_more_steps
    if comparison.word == TrialWord.CANNOT_TELL:
        ends = (comparison.low, comparison.high)
        farthest = max((abs(end) for end in ends if end is not None), default=0.0)
        if None not in ends and farthest < MARGIN_RATIO:
            note = f"same within {percent(farthest)}"
        elif more:
            note = f"about {count(more)} more step{'' if more == 1 else 's'}"
    return ComparisonRow(
        comparison,
        BY_NAME[name].label,
        written(name, comparison.baseline),
        written(name, comparison.candidate),
        difference(comparison, comparison.ratio),
        interval(comparison),
        note,
    )


def one_time_costs(baseline: ArmFigures, candidate: ArmFigures) -> list[OneTimeCost]:
    """Compare how long the arms compiled, and how long they took until their first step."""
    rows = []
    for label, before_s, after_s in (
        ("compile time", baseline.compile_s, candidate.compile_s),
        ("until the first step", baseline.ready_s, candidate.ready_s),
    ):
        before, after = (
            NOT_REPORTED if value_s is None else duration(value_s) if value_s else "none"
            for value_s in (before_s, after_s)
        )
        more = ABSENT
        if before_s is not None and after_s is not None:
            more = f"{MINUS if after_s < before_s else '+'}{duration(abs(after_s - before_s))}"
        rows.append(OneTimeCost(label, before, after, more))
    return rows


# The same figures, and signs, as the answer has.
CHARTED = ("usd_per_mtok", "tokens_per_s")
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
MOST_TICKS = 6
MARGIN = 0.08


def interval_chart(
    candidate: Candidate, claim: VendorClaim | None, verdict: Verdict | None = None
) -> IntervalChart | None:
    """Draw a candidate's cost per token and its pace; None where there is none.

    List prices are drawn only where the prices paid are of different kinds or unknown, or where
    list prices contradict them. A claim about tokens per dollar is drawn as the cost per token
    that it means, only where the prices are of one kind. Without a verdict they are taken to be.
    Better is right: a lower cost per token is as far from zero as it is, to the other side.
    """
    is_unlike = verdict is not None and verdict.has_unlike_kinds
    # Each row, and whether the claim applies to it.
    charted: list[tuple[ComparisonRow, bool]] = []
    if verdict and (verdict.paid is None or is_unlike or verdict.contradicting):
        for listed in verdict.at_list_prices:
            row = comparison_row(listed.comparison)
            charted.append((replace(row, label=f"{row.label}, {listed.kind} prices"), True))
    for name in CHARTED:
        if (comparison := candidate.get(name)) is None:
            continue
        row = comparison_row(comparison)
        is_priced = name == "usd_per_mtok"
        if is_priced and is_unlike:
            row = replace(row, label=f"{row.label}, as priced")
        charted.append((row, is_priced and not is_unlike))
    if not charted:
        return None
    claim = claim if any(has_band for _, has_band in charted) else None
    # So much fewer dollars per token are so many more tokens per dollar.
    claimed = (1 / (1 + claim.high) - 1, 1 / (1 + claim.low) - 1) if claim else ()
    gains = [gain_of(row.comparison) for row, _ in charted]
    axis = _Axis([end for each in gains for end in each] + [-end for end in claimed])
    lines = []
    for (row, has_band), gain in zip(charted, gains, strict=True):
        band = None
        if claimed and has_band:
            width = (claimed[1] - claimed[0]) / axis.length * 100
            band = ClaimBand(axis.place(-claimed[1]), f"{width:.2f}", *claimed)
        at, left, right = (axis.place(value) for value in gain)
        lines.append(IntervalLine(row, at, left, right, band))
    ticks = tuple((axis.place(at), tick(at).strip(f"+{MINUS}")) for at in axis.ticks)
    return IntervalChart(tuple(lines), ticks, axis.place(0.0))


def gain_of(shown: Comparison) -> tuple[float, float, float]:
    """Return a difference and the ends of its interval; positive is better."""
    sign = -1 if BY_NAME[shown.measure].measure.is_better_low else 1
    ends = (shown.ratio if end is None else end for end in (shown.low, shown.high))
    low, high = sorted(sign * end for end in ends)
    return sign * shown.ratio, low, high


class _Axis:
    """An axis that extends a little beyond everything it shows."""

    def __init__(self, shown: Sequence[float]) -> None:
        ends = [0.0, *shown]
        margin = MARGIN * (max(ends) - min(ends)) or 0.01
        self.start = min(ends) - margin
        self.length = max(ends) + margin - self.start

    @property
    def ticks(self) -> list[float]:
        """Round values between the ends of the axis, at most a handful."""
        every = next((t for t in TICKS if self.length / t <= MOST_TICKS), TICKS[-1])
        first = -int(-self.start // every)
        n = int((self.start + self.length) // every) - first + 1
        return [(first + i) * every for i in range(n)]

    def place(self, value: float) -> str:
        """Position of a difference, in percent of the axis."""
        return f"{(value - self.start) / self.length * 100:.2f}"


COMPARISON_COLUMNS = (
    *("candidate", "run", "measure", "baseline", "value", "ratio"),
    *("low_95", "high_95", "word", "n_more_steps"),
)
ARM_COLUMNS = (
    *("arm", "run", "instance_type", "n_nodes", "n_steps", "n_settled", "n_warm_up"),
    *("tokens_per_step", "compile_s", "ready_s", "first_step_s", "warm_up_s"),
    *("first_epoch_step_s", "first_epoch_ratio", "time_to_train_s", "n_tokens", "n_lost"),
    *("settled_s", "settled_tokens", "price_basis"),
    *("usd_per_hour", "usd_ready", "usd_warm_up", "usd_settled", "usd_between", "usd"),
)


def written_csv(figures: TrialFigures) -> str:
    """Write two tables with an empty line between: the comparisons, and what each arm took."""
    rows: list[Sequence[object]] = [COMPARISON_COLUMNS]
    for candidate in figures.candidates:
        verdict = judge(figures, candidate)
        for comparison in candidate.comparisons:
            why_none = verdict.why_none(comparison.measure)
            arms = (comparison.baseline, comparison.candidate)
            row: list[object] = [candidate.label, candidate.run, comparison.measure, *arms]
            row += [comparison.ratio, comparison.low, comparison.high]
            row.append(f"{NO_VERDICT}{why_none}" if why_none else comparison.word)
            row.append(None if why_none else comparison.n_more_steps)
            rows.append(row)
    rows += [(), ARM_COLUMNS]
    rows += [
        [arm.label, *(getattr(arm, name) for name in ARM_COLUMNS[1:])] for arm in figures.arms
    ]
    return csv_text(rows)


# Two arms may cost nearly the same: below this, dollars are written to a hundredth of a cent.
FINE_USD = 1.0
WRITERS: Mapping[str, Callable[[float], str]] = {
    "usd": lambda value: usd(value) if value >= FINE_USD else f"${value:.4f}",
    "count": si,
    "s": seconds,
    "ratio": percent,
    "duration": duration,
    "plain": lambda value: f"{value:.4f}",
}


def written(measure: str, value: float | None) -> str:
    """Write a measure's value with its unit; a dash for None."""
    return ABSENT if value is None else WRITERS[BY_NAME[measure].unit](value)


def difference(comparison: Comparison, ratio: float) -> str:
    """Write a difference from the baseline: of a share in points."""
    if BY_NAME[comparison.measure].unit != "ratio":
        return change(ratio)
    return points(comparison.baseline * ratio)


def interval(comparison: Comparison) -> str:
    """Write a 95 % interval; a dash where there are too few steps for one."""
    if comparison.low is None or comparison.high is None:
        return ABSENT
    return f"{difference(comparison, comparison.low)} to {difference(comparison, comparison.high)}"


def sentences(figures: TrialFigures) -> list[str]:
    """Write the verdict on each candidate, in the order of the candidates."""
    baseline = figures.baseline.label if figures.baseline else ""
    return [
        sentence(candidate, baseline, judge(figures, candidate))
        for candidate in figures.candidates
    ]


def sentence(candidate: Candidate, baseline: str, verdict: Verdict) -> str:
    """Write the verdict on a candidate: at equal price kinds first, then as priced."""
    return render_text(
        "trials/_sentences.txt#verdict",
        candidate=candidate,
        baseline=baseline,
        verdict=verdict,
        deciding=comparison_row(verdict.deciding) if verdict.deciding else None,
        pace=candidate.get("tokens_per_s"),
        measured_runs=MEASURED_RUNS,
    )


def decision(candidate: Candidate, figures: TrialFigures, verdict: Verdict) -> Decision:
    """Return what follows for a lead."""
    arms = [arm for arm in figures.arms if arm.is_baseline or arm.run == candidate.run]
    pace = candidate.get("tokens_per_s")
    runs = [run for arm in arms for run in figures.runs_of(arm.run)]
    return Decision(
        {
            "candidate": candidate,
            "baseline": figures.baseline.label if figures.baseline else "",
            "verdict": verdict,
            "pace": pace,
            "simulated": [arm.label for arm in arms if arm.is_simulated],
            "failed": [run.run for run in runs if run.end_reason],
            "diverged": [run.run for run in runs if run.bad_loss],
            "run_cv": RUN_CV,
            "measured_runs": MEASURED_RUNS,
        }
    )


def listed_price(instance_type: str, price: ListPrice, today: date) -> str:
    """Write a list price with its region and date; as a range where several are listed."""
    ends = usd(price.low_usd)
    if price.high_usd > price.low_usd:
        ends = f"{ends} to {usd(price.high_usd)}"
    region = "" if price.region == "any" else f", {price.region}"
    return f"{instance_type} {ends} ({age_note(price.date, today) or price.date}{region})"


def notes(
    candidate: Candidate,
    figures: TrialFigures,
    verdict: Verdict,
    claim: VendorClaim | None,
    today: date,
) -> list[str]:
    """List what a reader must know to interpret the figures of a candidate and the baseline."""
    baseline = next(arm for arm in figures.arms if arm.is_baseline)
    arms = (baseline, figures.arm(candidate.run))
    runs = [run for arm in arms for run in figures.runs_of(arm.run)]
    checked, doubts = [], []
    for arm in arms:
        if arm.usd_per_hour and arm.n_nodes:
            usd_per_node_hour = arm.usd_per_hour / arm.n_nodes
            doubts.append(chip_price_note(arm.instance_type, usd_per_node_hour, arm.price_basis))
        dated, mfu = published_date(arm.price_basis), max_mfu(figures, arm.run)
        old = age_note(dated, today) or f"of {dated}" if dated else ""
        checked.append((arm.label, old, mfu if USUAL_MFU < mfu <= 1 else None))
    ratios = [run.first_epoch_ratio for run in runs]
    return render_lines(
        "trials/_sentences.txt#notes",
        candidate=candidate,
        arms=arms,
        runs=runs,
        verdict=verdict,
        not_stated=NOT_STATED,
        listed=[
            (
                price.kind,
                listed_price(arms[0].instance_type, price.prices.baseline, today),
                listed_price(arms[1].instance_type, price.prices.candidate, today),
            )
            for price in verdict.at_list_prices
        ],
        checked=checked,
        price_doubts=[doubt for doubt in doubts if doubt],
        not_named=NOT_NAMED if claim and baseline.instance_type.startswith("p5.") else "",
        epoch_done=min((ratio for ratio in ratios if ratio is not None), default=1.0),
        has_loss=candidate.get("loss") is not None,
        has_lost=any(run.n_lost for run in runs),
    )


def layout_warning(arm: ArmFigures) -> str:
    """Say how far an arm is from its best layout."""
    return render_text("trials/_sentences.txt#layout", arm=arm)
