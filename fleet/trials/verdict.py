"""A trial in words: the verdict in a sentence a meeting can be told."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fleet.formatting import ABSENT, NBSP, change, count, duration, percent, seconds, si, usd
from fleet.models import Trial, TrialArm
from fleet.runs.step_sums import COLUMNS, ArmSteps
from fleet.trials.figures import ArmFigures, Candidate, Comparison, PaceEvidence, TrialFigures
from fleet.trials.judgement import AtKind, BreakEvenPrice, Judgement, judged
from fleet.trials.measures import (
    BY_NAME,
    DECIDING,
    FIGURES,
    FIRST_EPOCH,
    LOSS,
    MFU,
    N_BESIDE,
    ORDER,
    TOKENS,
    TWINS,
    USD_PER_EPOCH,
    can_be_told,
    equal_tokens,
    first_epochs,
    losses_at,
)
from telemetry.blocks import FloatArray
from telemetry.statistics.bootstrap import ArmSamples, Difference, differences
from telemetry.statistics.verdicts import (
    LEAST_RATIO,
    WRONG_RATIO,
    TrialVerdict,
    TrialWord,
    verdict,
)


@dataclass(frozen=True, slots=True)
class MeasuredArm:
    """An arm with its steps."""

    arm: TrialArm
    steps: ArmSteps
    figures: ArmFigures

    @property
    def settled(self) -> FloatArray:
        """The sums that count."""
        return self.steps.sums[self.steps.n_warm_rows :]

    @property
    def warm_up(self) -> FloatArray:
        """The sums before those."""
        return self.steps.sums[: self.steps.n_warm_rows]


@dataclass(frozen=True, slots=True)
class MeasuredDifference:
    """One measure's difference, in the unit people read, and of how many steps it is."""

    name: str
    difference: Difference
    n_steps: int
    n_planned: int


def training_line(trial: Trial, ready_s: float, warm: FloatArray) -> tuple[float, float] | None:
    """Return seconds until an arm has settled, and the tokens that it has to train after that."""
    left = (trial.planned_tokens or 0) - float(warm[:, TOKENS].sum())
    return (ready_s + float(warm[:, 1].sum()), left) if left > 0 else None


def compared(trial: Trial, baseline: MeasuredArm, candidate: MeasuredArm) -> Candidate:
    """Compare a candidate with the baseline by every measure that both arms tell."""
    pair = (baseline, candidate)
    found = sorted(_differences(trial, pair), key=lambda each: ORDER.index(each.name))
    names = {each.name for each in found}
    deciding = next((name for name in DECIDING if name in names), "")
    n_steps = min(each.figures.n_settled for each in pair)
    return Candidate(
        candidate.arm.label,
        candidate.arm.run.name,
        tuple(_comparison(each, deciding) for each in found),
        equal_tokens=equal_tokens(*(each.steps.sums for each in pair)),
        is_decided=n_steps >= trial.planned_steps,
        pace=_evidence(found),
    )


def _evidence(found: list[MeasuredDifference]) -> PaceEvidence | None:
    """Return what words at other prices rest on; None where no interval of the pace is known."""
    for each in found:
        if each.name == "tokens_per_s" and math.isfinite(each.difference.error_log):
            pace = each.difference
            return PaceEvidence(pace.ratio, pace.error_log, each.n_steps, each.n_planned)
    return None


def _differences(
    trial: Trial, pair: tuple[MeasuredArm, MeasuredArm]
) -> Iterator[MeasuredDifference]:
    """Yield the measures that both arms tell, in no order."""
    n_steps, n_planned = min(each.figures.n_settled for each in pair), trial.planned_steps
    rng = np.random.default_rng([trial.pk, pair[1].arm.pk])
    found = _of_settled(trial, pair, rng)
    for name, difference in found.items():
        yield MeasuredDifference(name, difference, n_steps, n_planned)
    if (mfu := _of_peak(found, *(each.figures for each in pair))) is not None:
        yield MeasuredDifference(MFU.name, mfu, n_steps, n_planned)
    before, after = (each.steps.sums for each in pair)
    per_epoch = {each.arm.run.tokens_per_epoch for each in pair}
    n_tokens = per_epoch.pop()
    if n_tokens and not per_epoch:
        if (usd := found.get("usd_per_mtok")) is not None:
            # Kept in dollars per token: a sum over a sum, as all of them are.
            scaled = _scaled(usd, n_tokens / BY_NAME["usd_per_mtok"].factor)
            yield MeasuredDifference(USD_PER_EPOCH.name, scaled, n_steps, n_planned)
        if (epoch := first_epochs(before, after, n_tokens, rng)) is not None:
            yield MeasuredDifference(
                FIRST_EPOCH.name, epoch.difference, epoch.n_steps, epoch.n_planned
            )
    upto = equal_tokens(before, after)
    loss = None if upto is None else losses_at(upto, before, after, rng)
    if loss is not None:
        yield MeasuredDifference(LOSS.name, loss, n_steps, n_planned)


def _of_settled(
    trial: Trial, pair: tuple[MeasuredArm, MeasuredArm], rng: np.random.Generator
) -> dict[str, Difference]:
    """Compare what settled steps tell, in the unit people read."""
    lines = [training_line(trial, each.figures.ready_s or 0.0, each.warm_up) for each in pair]
    told = [
        figure
        for figure in FIGURES
        if all(can_be_told(figure, each.settled) for each in pair)
        and (not figure.measure.line or None not in lines)
    ]
    if not told:
        return {}
    before, after = (
        ArmSamples(
            COLUMNS, levelled(each.settled), {} if line is None else {"time_to_train_s": line}
        )
        for each, line in zip(pair, lines, strict=True)
    )
    measures = {figure.name: figure.measure for figure in told}
    # A draw of very few steps may have none that a measure tells: its interval is then unknown.
    with np.errstate(divide="ignore", invalid="ignore"):
        found = differences(before, after, measures, rng=rng)
    return {figure.name: _scaled(found[figure.name], figure.factor) for figure in told}


def levelled(sums: FloatArray) -> FloatArray:
    """Return sums with each second at the arm's mean price, which keeps their total.

    A price that changes on the way does so by contract: only the seconds are left to chance.
    """
    usd, taken_s = COLUMNS.index("usd"), COLUMNS.index("counted_s")
    total_s = float(sums[:, taken_s].sum())
    found = sums.copy()
    if total_s > 0:
        found[:, usd] = sums[:, taken_s] * (sums[:, usd].sum() / total_s)
    return found


def _scaled(found: Difference, factor: float) -> Difference:
    return replace(found, baseline=found.baseline * factor, candidate=found.candidate * factor)


def _of_peak(
    found: dict[str, Difference], baseline: ArmFigures, candidate: ArmFigures
) -> Difference | None:
    """Return MFU's difference: the pace's, each arm by its own peak."""
    before, after = (each.values.get(MFU.name) for each in (baseline, candidate))
    if before is None or after is None or "tokens_per_s" not in found:
        return None
    pace = found["tokens_per_s"]
    factor = (1 + after / before - 1) / (1 + pace.ratio)
    return replace(
        pace,
        baseline=before,
        candidate=after,
        ratio=after / before - 1,
        low=(1 + pace.low) * factor - 1,
        high=(1 + pace.high) * factor - 1,
    )


def _comparison(found: MeasuredDifference, deciding: str) -> Comparison:
    said, difference = _said(found, deciding), found.difference
    return Comparison(
        measure=found.name,
        baseline=difference.baseline,
        candidate=difference.candidate,
        ratio=difference.ratio,
        low=_known(difference.low),
        high=_known(difference.high),
        word=said.word,
        n_more_steps=said.n_more_steps,
    )


def _said(found: MeasuredDifference, deciding: str) -> TrialVerdict:
    """Judge a measure: the deciding one by itself, the others so that all share one chance.

    Of the loss each look is at other steps, so that looking again is trying again: its word
    falls once, when the plan is done.
    """
    if found.name == LOSS.name and found.n_steps < found.n_planned:
        return TrialVerdict(TrialWord.CANNOT_TELL, found.n_planned - found.n_steps)
    decides = TWINS.get(found.name, found.name) == deciding
    return verdict(
        found.difference,
        is_better_low=BY_NAME[found.name].measure.is_better_low,
        n_steps=found.n_steps,
        n_planned=found.n_planned,
        wrong_ratio=WRONG_RATIO if decides else WRONG_RATIO / N_BESIDE,
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
ARE = {
    "usd_per_mtok": ("1M tokens cost {after} instead of {before}", "less", "more"),
    "tokens_per_s": ("it trains on {after} tokens/s instead of {before}", "fewer", "more"),
    "step_s": ("a step takes {after} instead of {before}", "less", "more"),
}


def written(measure: str, value: float | None) -> str:
    """Write a measure's value as people read it."""
    if value is None:
        return ABSENT
    return WRITERS[BY_NAME[measure].unit](value)


def interval(comparison: Comparison) -> str:
    """Write a 95 % interval; a dash where there are too few steps for one."""
    if comparison.low is None or comparison.high is None:
        return ABSENT
    return f"{change(comparison.low)} to {change(comparison.high)}"


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """A comparison as a row of the page has it."""

    comparison: Comparison
    words: str
    before: str
    after: str
    interval: str
    aside: str


def worded(comparison: Comparison) -> ComparisonRow:
    """Write a comparison out."""
    name = comparison.measure
    return ComparisonRow(
        comparison,
        BY_NAME[name].words,
        written(name, comparison.baseline),
        written(name, comparison.candidate),
        interval(comparison),
        _aside(comparison),
    )


def _aside(comparison: Comparison) -> str:
    """Return what is to be said of a figure of which no word can be: how alike, or how long."""
    if comparison.word != TrialWord.CANNOT_TELL:
        return ""
    if comparison.low is not None and comparison.high is not None:
        farthest = max(abs(comparison.low), abs(comparison.high))
        if farthest < LEAST_RATIO:
            return f"alike within {percent(farthest)}"
    more = comparison.n_more_steps
    return f"about {count(more)} more step{'' if more == 1 else 's'}" if more else ""


def sentences(figures: TrialFigures) -> list[str]:
    """Return the verdict on each candidate, in the order of the candidates."""
    baseline = next((arm.label for arm in figures.arms if arm.is_baseline), "")
    return [sentence(each, baseline, judged(figures, each)) for each in figures.candidates]


def sentence(candidate: Candidate, baseline: str, judgement: Judgement) -> str:
    """Say what is judged of a candidate: at equal price kinds first, then as paid."""
    found = judgement.deciding
    if found is None:
        return f"Nothing can be said of {candidate.label} yet: both arms need steps."
    if judgement.unlike:
        return (
            f"{candidate.label} and {baseline} do not train the same thing "
            f"({', '.join(judgement.unlike)}): {_measured(found)}. No verdict follows from that."
        )
    is_across = judgement.are_kinds_unlike or (judgement.paid is None and judgement.at_kinds)
    if is_across:
        said = _across(candidate, baseline, judgement)
    elif found.word == TrialWord.CANNOT_TELL:
        said = (
            f"Cannot tell yet whether {candidate.label} is better than {baseline}: "
            f"{_measured(found)}. {_more(found, is_decided=candidate.is_decided)}"
        )
    else:
        said = f"{candidate.label} is {found.word} than {baseline}: {_measured(found)}."
        said = f"{said} {_but(candidate, found)}".rstrip()
    if not is_across and judgement.opposed:
        said = f"{said} But {_at_kinds(judgement.opposed)}."
    return f"{said} {break_even_words(judgement.break_even, candidate.label)}".rstrip()


def _across(candidate: Candidate, baseline: str, judgement: Judgement) -> str:
    """Say what holds where the prices paid cannot be compared."""
    paid, at_kinds = judgement.paid, judgement.at_kinds
    if paid is None:
        as_paid = "what was paid is not known for both arms"
    else:
        as_paid = f"as paid ({judgement.kinds.words}) it {_costs(paid)}"
    if at_kinds:
        first, *others = at_kinds
        said = (
            f"{candidate.label} {_costs(first.comparison, per_token=True)} than {baseline} "
            f"{_at(first)}{_ends(first.comparison)}"
        )
        said = "; ".join(filter(None, (said, _at_kinds(others), as_paid)))
    else:
        said = (
            f"{candidate.label} against {baseline}: {as_paid}, and the catalogue lists no price "
            "kind for both"
        )
    prefix = "Cannot tell across price kinds: " if judgement.opposed or not at_kinds else ""
    return f"{prefix}{said}.{_pace(candidate)}"


def _costs(found: Comparison, *, per_token: bool = False) -> str:
    way = "less" if found.ratio < 0 else "more"
    return f"costs {percent(abs(found.ratio))} {way}{' per token' if per_token else ''}"


def _at(found: AtKind) -> str:
    """Say at which list prices: at equal capacity-block list prices."""
    return f"at equal {found.kind.replace(' ', '-')} list prices"


def _ends(found: Comparison) -> str:
    return "" if found.low is None else f" (95{NBSP}% interval {interval(found)})"


def _at_kinds(found: Sequence[AtKind]) -> str:
    """Say what holds at other kinds, one after the other."""
    return "; ".join(
        f"{_at(each)} it {_costs(each.comparison)}{_ends(each.comparison)}" for each in found
    )


def _pace(candidate: Candidate) -> str:
    """Say how fast it is, where that is known."""
    pace = candidate.of("tokens_per_s")
    if pace is None or pace.word == TrialWord.CANNOT_TELL:
        return ""
    few = "fewer" if pace.ratio < 0 else "more"
    return f" It trains on {percent(abs(pace.ratio))} {few} tokens per second."


def break_even_words(found: BreakEvenPrice | None, label: str) -> str:
    """Say above which price of the baseline's node-hour the candidate is cheaper."""
    if found is None:
        return ""
    ends = "" if found.low is None else f" ({usd(found.low)} to {usd(found.high)})"
    at = "" if found.is_paid else f", itself at its list price of {usd(found.candidate_usd)}"
    return (
        f"Break-even: {label} is cheaper while a {found.instance_type} node-hour costs more than "
        f"{usd(found.usd)}{ends}{at}."
    )


def _but(candidate: Candidate, found: Comparison) -> str:
    """Return what speaks against the verdict: cheaper may be slower, and more costly faster."""
    pace = candidate.of("tokens_per_s")
    if pace is None or pace.word in (found.word, TrialWord.CANNOT_TELL):
        return ""
    way = "slower" if pace.word == TrialWord.WORSE else "faster"
    few = "fewer" if pace.ratio < 0 else "more"
    return f"But it is {way}: {percent(abs(pace.ratio))} {few} tokens per second."


def _measured(found: Comparison) -> str:
    words, fewer, more = ARE[found.measure]
    told = words.format(
        after=written(found.measure, found.candidate),
        before=written(found.measure, found.baseline),
    )
    way = fewer if found.ratio < 0 else more
    if found.low is None:
        return f"{told}, {percent(abs(found.ratio))} {way}; too few steps for an interval"
    return f"{told}, {percent(abs(found.ratio))} {way} (95{NBSP}% interval {interval(found)})"


def _more(found: Comparison, *, is_decided: bool) -> str:
    if is_decided:
        return "The planned steps are done, and did not tell."
    if found.n_more_steps is None:
        return "They are so alike that more steps would hardly tell."
    return f"About {count(found.n_more_steps)} more steps of each arm would tell."
