"""What stands beside a trial's measures: what happened once, and what to know before believing."""

from dataclasses import dataclass

from fleet.pricing.kinds import NOT_STATED, ListPrice
from fleet.templatetags.units import ABSENT, MINUS, duration, si, usd
from fleet.trials.claims import NOT_NAMED
from fleet.trials.figures import ArmFigures, Candidate
from fleet.trials.judgement import Judgement

DONE = 1.0
NOT_REPORTED = "not reported"
AGAIN = "; what a failure made them train again counts once"


@dataclass(frozen=True, slots=True)
class Once:
    """What each arm did once, so that no interval can be had of it."""

    words: str
    before: str
    after: str
    change: str


def once(baseline: ArmFigures, candidate: ArmFigures) -> list[Once]:
    """Return how long the arms compiled, and what passed before their first step."""
    return [
        _once("compile time", baseline.compile_s, candidate.compile_s),
        _once("until the first step", baseline.ready_s, candidate.ready_s),
    ]


def _once(words: str, before_s: float | None, after_s: float | None) -> Once:
    before, after = _lasting(before_s), _lasting(after_s)
    if before_s is None or after_s is None:
        return Once(words, before, after, ABSENT)
    more_s = after_s - before_s
    return Once(words, before, after, f"{MINUS if more_s < 0 else '+'}{duration(abs(more_s))}")


def _lasting(value_s: float | None) -> str:
    if value_s is None:
        return NOT_REPORTED
    return duration(value_s) if value_s else "none"


def listed_price(instance_type: str, price: ListPrice) -> str:
    """Write a list price with its region and date; a range where several were seen."""
    ends = usd(price.low_usd)
    if price.high_usd > price.low_usd:
        ends = f"{ends} to {usd(price.high_usd)}"
    region = "" if price.region == "any" else f", {price.region}"
    return f"{instance_type} {ends} ({price.date}{region})"


def notes(
    candidate: Candidate,
    baseline: ArmFigures,
    other: ArmFigures,
    *,
    judgement: Judgement,
    has_claim: bool,
) -> list[str]:
    """Return what a reader must know to read the figures aright."""
    told: list[str] = []
    simulated = [arm.label for arm in (baseline, other) if arm.is_simulated]
    if simulated:
        told.append(
            f"{' and '.join(simulated)}: simulated. Pace and loss follow from assumed constants "
            "of the step model; they are no measurement of real hardware, and the intervals are "
            "of the simulated steps alone."
        )
    if judgement.are_kinds_unlike:
        bases = [arm.price_basis or NOT_STATED for arm in (baseline, other)]
        told.append(
            f"The prices are of different kinds: {baseline.label} {bases[0]}; "
            f"{other.label} {bases[1]}. So no verdict follows from dollars as paid."
        )
    if judgement.at_kinds:
        listed = "; ".join(
            f"{each.kind}: {listed_price(baseline.instance_type, each.prices.baseline)}, "
            f"{listed_price(other.instance_type, each.prices.candidate)}"
            for each in judgement.at_kinds
        )
        told.append(f"List prices per node-hour: {listed}.")
    told += [
        f"{arm.label} changed its price on the way: each second is paid at that of its time."
        for arm in (baseline, other)
        if len(arm.prices) > 1
    ]
    if has_claim and baseline.instance_type.startswith("p5."):
        told.append(f"Of AWS's claim: {NOT_NAMED}")
    ratios = [arm.first_epoch_ratio for arm in (baseline, other)]
    done = min((ratio for ratio in ratios if ratio is not None), default=DONE)
    if done < DONE:
        told.append(f"The first epoch is not over: {done:.0%} of it is done.")
    if candidate.of("loss") is not None and candidate.equal_tokens:
        told.append(
            f"Losses are compared after {si(candidate.equal_tokens)} tokens, the most that both "
            f"arms have trained on{AGAIN if baseline.n_lost or other.n_lost else ''}."
        )
    return told
