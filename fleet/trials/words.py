"""A trial in words: the verdict in a sentence a meeting can be told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fleet.templatetags.trials import change
from fleet.templatetags.units import ABSENT, NBSP, count, duration, percent, seconds, si, usd
from fleet.trials.figures import Candidate, Comparison, Figures
from fleet.trials.judgement import AtKind, BreakEvenPrice, Judgement, judged
from fleet.trials.measures import BY_NAME
from telemetry.compare.verdicts import LEAST_RATIO, Word

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
class Worded:
    """A comparison as a row of the page has it."""

    comparison: Comparison
    words: str
    before: str
    after: str
    interval: str
    aside: str


def worded(comparison: Comparison) -> Worded:
    """Write a comparison out."""
    name = comparison.measure
    return Worded(
        comparison,
        BY_NAME[name].words,
        written(name, comparison.baseline),
        written(name, comparison.candidate),
        interval(comparison),
        _aside(comparison),
    )


def _aside(comparison: Comparison) -> str:
    """Return what is to be said of a figure of which no word can be: how alike, or how long."""
    if comparison.word != Word.CANNOT_TELL:
        return ""
    if comparison.low is not None and comparison.high is not None:
        farthest = max(abs(comparison.low), abs(comparison.high))
        if farthest < LEAST_RATIO:
            return f"alike within {percent(farthest)}"
    more = comparison.n_more_steps
    return f"about {count(more)} more step{'' if more == 1 else 's'}" if more else ""


def sentences(figures: Figures) -> list[str]:
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
    elif found.word == Word.CANNOT_TELL:
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
    if pace is None or pace.word == Word.CANNOT_TELL:
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
    if pace is None or pace.word in (found.word, Word.CANNOT_TELL):
        return ""
    way = "slower" if pace.word == Word.WORSE else "faster"
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
