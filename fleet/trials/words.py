"""A trial in words: the verdict in a sentence a meeting can be told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleet.templatetags.trials import change
from fleet.templatetags.units import ABSENT, NBSP, count, duration, percent, seconds, si, usd
from fleet.trials.figures import Candidate, Comparison, Figures
from fleet.trials.matching import between, mismatches
from fleet.trials.measures import BY_NAME, DECIDING
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


def deciding(candidate: Candidate) -> Comparison | None:
    """Return the comparison that decides: of dollars, else of the pace."""
    told = (candidate.of(measure) for measure in DECIDING)
    return next((each for each in told if each is not None), None)


def sentences(figures: Figures) -> list[str]:
    """Return the verdict on each candidate, in the order of the candidates."""
    baseline = next((arm.label for arm in figures.arms if arm.is_baseline), "")
    return [_sentence(each, baseline, unlike(figures, each)) for each in figures.candidates]


def unlike(figures: Figures, candidate: Candidate) -> list[str]:
    """Return in what a candidate is known to train something else than the baseline, in words."""
    places = {arm.run: place for place, arm in enumerate(figures.arms)}
    baseline = next(place for place, arm in enumerate(figures.arms) if arm.is_baseline)
    pair = between(figures.matches, baseline, places[candidate.run])
    return [match.words for match in mismatches(pair)]


def _sentence(candidate: Candidate, baseline: str, different: list[str]) -> str:
    found = deciding(candidate)
    if found is None:
        return f"Nothing can be said of {candidate.label} yet: both arms need steps."
    if different:
        return (
            f"{candidate.label} and {baseline} do not train the same thing "
            f"({', '.join(different)}): {_measured(found)}. No verdict follows from that."
        )
    if found.word == Word.CANNOT_TELL:
        return (
            f"Cannot tell yet whether {candidate.label} is better than {baseline}: "
            f"{_measured(found)}. {_more(found, is_decided=candidate.is_decided)}"
        )
    said = f"{candidate.label} is {found.word} than {baseline}: {_measured(found)}."
    return f"{said} {_but(candidate, found)}".rstrip()


def _but(candidate: Candidate, found: Comparison) -> str:
    """Return what speaks against the verdict: cheaper may be slower, and dearer faster."""
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
