"""A candidate beside the baseline: each measure's difference, its interval, and the word on it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fleet.models import Trial, TrialArm
from fleet.trials.figures import ArmFigures, Candidate, Comparison, PaceEvidence
from fleet.trials.measures import (
    BY_NAME,
    DECIDING,
    FIGURES,
    FIRST_EPOCH,
    LOSS,
    MFU,
    N_BESIDE,
    ORDER,
    TWINS,
    USD_PER_EPOCH,
    can_be_told,
)
from fleet.trials.portions import TOKENS, equal_tokens, first_epochs, losses_at
from fleet.trials.steps import COLUMNS, ArmSteps
from telemetry.blocks import FloatArray
from telemetry.compare.differences import Arm, Difference, differences
from telemetry.compare.verdicts import WRONG_RATIO, Verdict, Word, verdict


@dataclass(frozen=True, slots=True)
class Shown:
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
class Found:
    """One measure's difference, in the unit people read, and of how many steps it is."""

    name: str
    difference: Difference
    n_steps: int
    n_planned: int


def training_line(trial: Trial, ready_s: float, warm: FloatArray) -> tuple[float, float] | None:
    """Return seconds until an arm has settled, and the tokens that it has to train after that."""
    left = (trial.planned_tokens or 0) - float(warm[:, TOKENS].sum())
    return (ready_s + float(warm[:, 1].sum()), left) if left > 0 else None


def compared(trial: Trial, baseline: Shown, candidate: Shown) -> Candidate:
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


def _evidence(found: list[Found]) -> PaceEvidence | None:
    """Return what words at other prices rest on; None where no interval of the pace is known."""
    for each in found:
        if each.name == "tokens_per_s" and math.isfinite(each.difference.error_log):
            pace = each.difference
            return PaceEvidence(pace.ratio, pace.error_log, each.n_steps, each.n_planned)
    return None


def _differences(trial: Trial, pair: tuple[Shown, Shown]) -> Iterator[Found]:
    """Yield the measures that both arms tell, in no order."""
    n_steps, n_planned = min(each.figures.n_settled for each in pair), trial.planned_steps
    rng = np.random.default_rng([trial.pk, pair[1].arm.pk])
    found = _of_settled(trial, pair, rng)
    for name, difference in found.items():
        yield Found(name, difference, n_steps, n_planned)
    if (mfu := _of_peak(found, *(each.figures for each in pair))) is not None:
        yield Found(MFU.name, mfu, n_steps, n_planned)
    before, after = (each.steps.sums for each in pair)
    per_epoch = {each.arm.run.tokens_per_epoch for each in pair}
    n_tokens = per_epoch.pop()
    if n_tokens and not per_epoch:
        if (usd := found.get("usd_per_mtok")) is not None:
            # Kept in dollars per token: a sum over a sum, as all of them are.
            scaled = _scaled(usd, n_tokens / BY_NAME["usd_per_mtok"].factor)
            yield Found(USD_PER_EPOCH.name, scaled, n_steps, n_planned)
        if (epoch := first_epochs(before, after, n_tokens, rng)) is not None:
            yield Found(FIRST_EPOCH.name, epoch.difference, epoch.n_steps, epoch.n_planned)
    upto = equal_tokens(before, after)
    loss = None if upto is None else losses_at(upto, before, after, rng)
    if loss is not None:
        yield Found(LOSS.name, loss, n_steps, n_planned)


def _of_settled(
    trial: Trial, pair: tuple[Shown, Shown], rng: np.random.Generator
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
        Arm(COLUMNS, levelled(each.settled), {} if line is None else {"time_to_train_s": line})
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


def _comparison(found: Found, deciding: str) -> Comparison:
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


def _said(found: Found, deciding: str) -> Verdict:
    """Judge a measure: the deciding one by itself, the others so that all share one chance.

    Of the loss each look is at other steps, so that looking again is trying again: its word
    falls once, when the plan is done.
    """
    if found.name == LOSS.name and found.n_steps < found.n_planned:
        return Verdict(Word.CANNOT_TELL, found.n_planned - found.n_steps)
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
