"""The text of a trial: values as they are written, the verdict as sentences, and notes on it."""

from collections.abc import Callable, Mapping, Sequence

from fleet.formatting import ABSENT, NBSP, change, count, duration, percent, seconds, si, usd
from fleet.runs.prices import NOT_STATED, ListPrice
from fleet.trials.figures import ArmFigures, Candidate, Comparison, TrialFigures
from fleet.trials.measures import BY_NAME, NOT_NAMED, VendorClaim
from fleet.trials.verdict import BreakEvenPrice, ListPriceComparison, Verdict, judge
from telemetry.statistics.verdicts import TrialWord

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
# What a deciding measure says, and the words for a lower and a higher value.
STATEMENTS = {
    "usd_per_mtok": ("1M tokens cost {after} instead of {before}", "less", "more"),
    "tokens_per_s": ("it trains on {after} tokens/s instead of {before}", "fewer", "more"),
    "step_s": ("a step takes {after} instead of {before}", "less", "more"),
}


def written(measure: str, value: float | None) -> str:
    """Write a measure's value with its unit."""
    return ABSENT if value is None else WRITERS[BY_NAME[measure].unit](value)


def interval(comparison: Comparison) -> str:
    """Write a 95 % interval; a dash where there are too few steps for one."""
    if comparison.low is None or comparison.high is None:
        return ABSENT
    return f"{change(comparison.low)} to {change(comparison.high)}"


def sentences(figures: TrialFigures) -> list[str]:
    """Write the verdict on each candidate, in the order of the candidates."""
    baseline = figures.baseline.label if figures.baseline else ""
    return [sentence(each, baseline, judge(figures, each)) for each in figures.candidates]


def sentence(candidate: Candidate, baseline: str, verdict: Verdict) -> str:
    """Write the verdict on a candidate: at equal price kinds first, then as paid."""
    deciding = verdict.deciding
    if deciding is None:
        return f"No verdict on {candidate.label} yet: both arms need steps."
    if verdict.differing:
        return (
            f"{candidate.label} and {baseline} do not train the same thing "
            f"({', '.join(verdict.differing)}): {_result(deciding)}. No verdict follows from that."
        )
    is_across = verdict.has_unlike_kinds or (verdict.paid is None and verdict.at_list_prices)
    if is_across:
        text = _across_kinds(candidate, baseline, verdict)
    elif deciding.word == TrialWord.CANNOT_TELL:
        text = (
            f"Cannot tell yet whether {candidate.label} is better than {baseline}: "
            f"{_result(deciding)}. {_missing_evidence(deciding, is_decided=candidate.is_decided)}"
        )
    else:
        text = f"{candidate.label} is {deciding.word} than {baseline}: {_result(deciding)}."
        pace = candidate.get("tokens_per_s")
        if pace and pace.word not in (deciding.word, TrialWord.CANNOT_TELL):
            way = "slower" if pace.word == TrialWord.WORSE else "faster"
            text = f"{text} But it is {way}: {_tokens_per_second(pace)}."
    if not is_across and verdict.contradicting:
        text = f"{text} But {_at_list_prices(verdict.contradicting)}."
    return f"{text} {break_even_sentence(verdict.break_even, candidate.label)}".rstrip()


def _result(comparison: Comparison) -> str:
    statement, fewer, more = STATEMENTS[comparison.measure]
    text = statement.format(
        after=written(comparison.measure, comparison.candidate),
        before=written(comparison.measure, comparison.baseline),
    )
    text = f"{text}, {percent(abs(comparison.ratio))} {fewer if comparison.ratio < 0 else more}"
    if comparison.low is None:
        return f"{text}; too few steps for an interval"
    return f"{text}{_with_interval(comparison)}"


def _with_interval(comparison: Comparison) -> str:
    if comparison.low is None:
        return ""
    return f" (95{NBSP}% interval {interval(comparison)})"


def _missing_evidence(comparison: Comparison, *, is_decided: bool) -> str:
    if is_decided:
        return "The planned steps are done and did not decide it."
    if comparison.n_more_steps is None:
        return "They are so close that more steps are unlikely to decide it."
    return f"About {count(comparison.n_more_steps)} more steps of each arm would decide it."


def _tokens_per_second(pace: Comparison) -> str:
    return f"{percent(abs(pace.ratio))} {'fewer' if pace.ratio < 0 else 'more'} tokens per second"


def _across_kinds(candidate: Candidate, baseline: str, verdict: Verdict) -> str:
    """Write the verdict where the prices paid cannot be compared."""
    paid, at_list_prices = verdict.paid, verdict.at_list_prices
    if paid is None:
        as_paid = "the price paid is not known for both arms"
    else:
        as_paid = f"as paid ({verdict.kinds.text}) it {_costs(paid)}"
    if at_list_prices:
        first, *others = at_list_prices
        text = (
            f"{candidate.label} {_costs(first.comparison)} per token than {baseline} "
            f"{_at_kind(first)}{_with_interval(first.comparison)}"
        )
        text = "; ".join(filter(None, (text, _at_list_prices(others), as_paid)))
    else:
        text = (
            f"{candidate.label} against {baseline}: {as_paid}, and the catalogue lists no price "
            "kind for both"
        )
    is_open = verdict.contradicting or not at_list_prices
    text = f"{'Cannot tell across price kinds: ' if is_open else ''}{text}."
    pace = candidate.get("tokens_per_s")
    if pace and pace.word != TrialWord.CANNOT_TELL:
        text = f"{text} It trains on {_tokens_per_second(pace)}."
    return text


def _costs(comparison: Comparison) -> str:
    return f"costs {percent(abs(comparison.ratio))} {'less' if comparison.ratio < 0 else 'more'}"


def _at_kind(listed: ListPriceComparison) -> str:
    return f"at equal {listed.kind.replace(' ', '-')} list prices"


def _at_list_prices(listed: Sequence[ListPriceComparison]) -> str:
    return "; ".join(
        f"{_at_kind(each)} it {_costs(each.comparison)}{_with_interval(each.comparison)}"
        for each in listed
    )


def break_even_sentence(price: BreakEvenPrice | None, label: str) -> str:
    """Write above which price of the baseline's node-hour the candidate is cheaper."""
    if price is None:
        return ""
    ends = "" if price.low is None else f" ({usd(price.low)} to {usd(price.high)})"
    at = "" if price.is_paid else f", itself at its list price of {usd(price.candidate_usd)}"
    return (
        f"Break-even: {label} is cheaper while a {price.instance_type} node-hour costs more than "
        f"{usd(price.usd)}{ends}{at}."
    )


def listed_price(instance_type: str, price: ListPrice) -> str:
    """Write a list price with its region and date; as a range where several are listed."""
    ends = usd(price.low_usd)
    if price.high_usd > price.low_usd:
        ends = f"{ends} to {usd(price.high_usd)}"
    region = "" if price.region == "any" else f", {price.region}"
    return f"{instance_type} {ends} ({price.date}{region})"


def notes(
    candidate: Candidate,
    arms: tuple[ArmFigures, ArmFigures],
    verdict: Verdict,
    claim: VendorClaim | None,
) -> list[str]:
    """List what a reader must know to interpret the figures of two arms, the baseline first."""
    baseline, other = arms
    texts: list[str] = []
    simulated = [arm.label for arm in arms if arm.is_simulated]
    if simulated:
        texts.append(
            f"{' and '.join(simulated)}: simulated. Pace and loss follow from assumed constants "
            "of the step model. They are no measurement of real hardware, and the intervals cover "
            "the simulated steps alone."
        )
    if verdict.has_unlike_kinds:
        bases = [arm.price_basis or NOT_STATED for arm in arms]
        texts.append(
            f"The prices are of different kinds: {baseline.label} {bases[0]}; "
            f"{other.label} {bases[1]}. No verdict follows from cost as paid."
        )
    if verdict.at_list_prices:
        listed = "; ".join(
            f"{each.kind}: {listed_price(baseline.instance_type, each.prices.baseline)}, "
            f"{listed_price(other.instance_type, each.prices.candidate)}"
            for each in verdict.at_list_prices
        )
        texts.append(f"List prices per node-hour: {listed}.")
    texts += [
        f"The price of {arm.label} changed during the run: each second is paid at the price of "
        "its time."
        for arm in arms
        if len(arm.prices) > 1
    ]
    if claim is not None and baseline.instance_type.startswith("p5."):
        texts.append(f"On AWS's claim: {NOT_NAMED}")
    ratios = [arm.first_epoch_ratio for arm in arms]
    done = min((ratio for ratio in ratios if ratio is not None), default=1.0)
    if done < 1.0:
        texts.append(f"The first epoch is not over: {done:.0%} of it is done.")
    if candidate.get("loss") is not None and candidate.equal_tokens:
        again = "; steps trained again after a failure count once"
        texts.append(
            f"Losses are compared after {si(candidate.equal_tokens)} tokens, the most that both "
            f"arms have trained on{again if baseline.n_lost or other.n_lost else ''}."
        )
    return texts
