"""What stands beside a trial's measures: what happened once, and what to know before believing."""

from dataclasses import dataclass

from fleet.templatetags.units import ABSENT, MINUS, duration, si
from fleet.trials.claims import NOT_NAMED
from fleet.trials.figures import ArmFigures, Candidate

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


def notes(
    candidate: Candidate, baseline: ArmFigures, other: ArmFigures, *, has_claim: bool
) -> list[str]:
    """Return what a reader must know to read the figures aright."""
    told = []
    bases = [arm.price_basis for arm in (baseline, other)]
    if all(bases) and bases[0].partition(",")[0] != bases[1].partition(",")[0]:
        told.append(
            f"The prices are of different kinds: {baseline.label} {bases[0]}; "
            f"{other.label} {bases[1]}."
        )
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
