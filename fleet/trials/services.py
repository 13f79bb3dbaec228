"""Begin and end a trial, and compute its figures: measure each arm, compare each candidate."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import numpy as np
from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import IntegrityError, transaction

from fleet.models import Run, Trial, TrialArm
from fleet.models.run import SECONDS_PER_HOUR
from fleet.runs.compiles import compile_summary
from fleet.runs.step_sums import COLUMNS, ArmSteps, steps_of
from fleet.trials.figures import (
    BY_NAME,
    DECIDING,
    EQUIVALENT,
    FIRST_EPOCH,
    LOSS,
    MFU,
    N_SECONDARY,
    ORDER,
    RATIOS,
    USD_PER_EPOCH,
    ArmFigures,
    ArmPrice,
    Candidate,
    Comparison,
    PaceEvidence,
    TrialFigures,
    dump_figures,
    is_known,
    load_figures,
    match_runs,
    values_of,
)
from telemetry.blocks import FloatArray
from telemetry.errors import FieldError
from telemetry.statistics.bootstrap import ArmSamples, Difference, differences
from telemetry.statistics.verdicts import WRONG_RATIO, TrialVerdict, TrialWord, verdict
from telemetry.store.reading import Source

MAX_NAME, MAX_QUESTION, MAX_TEAM = 60, 200, 40
MOST_CANDIDATES = 8
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MOST_STEPS = 100_000_000
MOST_TOKENS = 10**18


def begin(
    name: str,
    question: str,
    *,
    baseline: str,
    candidates: Sequence[str],
    team: str = "",
    planned_steps: int,
    planned_tokens: int | None = None,
    by: str,
    now: datetime,
) -> Trial:
    """Begin a trial of runs, given by name; the label of each arm is its hardware.

    ``planned_tokens`` are those of the whole training; None: unknown.

    Raises FieldError where a field is invalid.
    """
    _check(name, question, team, planned_steps, planned_tokens)
    runs = _runs(baseline, candidates)
    try:
        with transaction.atomic():
            trial = Trial.objects.create(
                name=name,
                question=question.strip(),
                team=team.strip(),
                planned_steps=planned_steps,
                planned_tokens=planned_tokens,
                created_by=by,
                created_at=now,
            )
            hardware = [f"{run.n_nodes} \u00d7 {run.instance_type}" for run in runs]
            labels = hardware if len(set(hardware)) == len(runs) else [run.name for run in runs]
            TrialArm.objects.bulk_create(
                TrialArm(trial=trial, run=run, label=label[:60], is_baseline=i == 0, position=i)
                for i, (run, label) in enumerate(zip(runs, labels, strict=True))
            )
    except IntegrityError as error:
        raise FieldError("name", "there is a trial of that name already") from error
    return trial


def _check(
    name: str, question: str, team: str, planned_steps: int, planned_tokens: int | None
) -> None:
    try:
        validate_slug(name)
    except ValidationError as error:
        raise FieldError("name", "use letters, digits, - and _ only") from error
    if len(name) > MAX_NAME:
        raise FieldError("name", f"use at most {MAX_NAME} characters")
    for field, text, most in (("question", question, MAX_QUESTION), ("team", team, MAX_TEAM)):
        if len(text.strip()) > most:
            raise FieldError(field, f"use at most {most} characters")
        if CONTROL.search(text):
            raise FieldError(field, "use no control characters, not even line breaks")
    if not question.strip():
        raise FieldError("question", "is empty. Say what the trial decides.")
    if not 1 <= planned_steps <= MOST_STEPS:
        raise FieldError("planned_steps", f"choose 1 to {MOST_STEPS:,}")
    if planned_tokens is not None and not 1 <= planned_tokens <= MOST_TOKENS:
        raise FieldError("planned_tokens", f"choose 1 to {MOST_TOKENS:,}, or leave it out")


def _runs(baseline: str, candidates: Sequence[str]) -> list[Run]:
    """Look up the runs of the arms, the baseline first."""
    if not 1 <= len(candidates) <= MOST_CANDIDATES:
        raise FieldError("candidates", f"choose 1 to {MOST_CANDIDATES} runs")
    if len({baseline, *candidates}) <= len(candidates):
        raise FieldError("candidates", "a run can be one arm only")
    known = Run.objects.in_bulk([baseline, *candidates], field_name="name")
    for field, names in (("baseline", [baseline]), ("candidates", candidates)):
        for name in names:
            if name not in known:
                raise FieldError(field, f"no run is called {name[:MAX_NAME]!r}")
    return [known[name] for name in (baseline, *candidates)]


def end(trial: Trial, *, now: datetime) -> bool:
    """End a trial: later steps do not count. False where it was ended before."""
    if not Trial.objects.filter(pk=trial.pk, ended_at=None).update(ended_at=now):
        return False
    trial.ended_at = now
    return True


def update_figures(hot: Source, trial: Trial, *, now: datetime) -> None:
    """Compute a trial's figures, and store them unless it was ended in the meantime."""
    figures = keep_decided(compare(hot, trial, now=now), load_figures(trial.figures))
    trial.figures, trial.figured_at = dump_figures(figures), now
    Trial.objects.filter(pk=trial.pk, ended_at=trial.ended_at).update(
        figures=trial.figures, figured_at=now
    )


def keep_decided(new: TrialFigures, old: TrialFigures | None) -> TrialFigures:
    """Keep the verdicts of candidates that were decided before.

    Evaluating again after the plan is done would be another chance of an error, and would give
    some verdict in the end where nothing differs.
    """
    decided = {each.run: each for each in (old.candidates if old else ()) if each.is_decided}
    kept = []
    for candidate in new.candidates:
        if (before := decided.get(candidate.run)) is None:
            kept.append(candidate)
            continue
        words = {each.measure: each.word for each in before.comparisons}
        comparisons = tuple(
            each
            if words.get(each.measure, each.word) == each.word
            else msgspec.structs.replace(each, word=words[each.measure], n_more_steps=None)
            for each in candidate.comparisons
        )
        pace = before.pace or candidate.pace
        kept.append(
            msgspec.structs.replace(candidate, comparisons=comparisons, is_decided=True, pace=pace)
        )
    return msgspec.structs.replace(new, candidates=tuple(kept))


def update_due_figures(hot: Source, *, now: datetime) -> int:
    """Compute the trials whose figures may have changed; return their number."""
    due = Trial.objects.due().with_arms()
    for trial in due:
        update_figures(hot, trial, now=now)
    return len(due)


STEPS, STEP_S, COUNTED_S, TOKENS, USD, LOSSES, LOSS_STEPS, PAID_USD, UNIQUE_TOKENS, LOST = (
    COLUMNS.index(name)
    for name in (
        *("steps", "step_s", "counted_s", "tokens", "usd", "loss", "loss_steps"),
        *("paid_usd", "unique_tokens", "lost"),
    )
)
# Losses are compared over this last part of the tokens that both arms have trained on.
LOSS_WINDOW_RATIO = 0.05
# Times are stored to a tenth of a millisecond: less than half a cent is no pause.
MIN_PAUSE_USD = 0.005
PAID_FIELDS = ("usd_ready", "usd_warm_up", "usd_settled", "usd_between", "usd", "usd_per_hour")


@dataclass(frozen=True, slots=True)
class MeasuredArm:
    arm: TrialArm
    steps: ArmSteps
    figures: ArmFigures

    @property
    def settled(self) -> FloatArray:
        """Sums of the steps after warm-up, which alone are compared."""
        return self.steps.sums[self.steps.n_warm_rows :]

    @property
    def warm_up(self) -> FloatArray:
        return self.steps.sums[: self.steps.n_warm_rows]


@dataclass(frozen=True, slots=True)
class MeasuredDifference:
    """The difference of one measure in its unit, over ``n_steps`` of ``n_planned`` steps."""

    name: str
    difference: Difference
    n_steps: int
    n_planned: int


def compare(hot: Source, trial: Trial, *, now: datetime) -> TrialFigures:
    """Compute the figures of a trial up to now, or up to its end.

    Notes
    -----
    The bootstrap is seeded by trial and arm: the same steps always give the same figures.
    """
    until = trial.until(now)
    arms = [measure_arm(hot, trial, arm, until=until) for arm in trial.arms.all()]
    baseline = next((each for each in arms if each.arm.is_baseline), None)
    return TrialFigures(
        matches=match_runs(
            [each.arm.run for each in arms], [each.figures.tokens_per_step for each in arms]
        ),
        arms=tuple(each.figures for each in arms),
        candidates=tuple(
            compare_arms(trial, baseline, each)
            for each in arms
            if baseline is not None and not each.arm.is_baseline
        ),
    )


def measure_arm(hot: Source, trial: Trial, arm: TrialArm, *, until: datetime) -> MeasuredArm:
    """Measure one arm: time and cost until its first step, of its warm-up, and since."""
    run, steps = arm.run, steps_of(hot, arm.run, until=until)
    sums, warm, settled = steps.sums, *np.split(steps.sums, [steps.n_warm_rows])
    began_s = steps.first_began_s if len(steps) else until.timestamp()
    ready_s = round(max(0.0, began_s - run.started_at.timestamp()), 3)
    compiled_s = compile_summary(run).wall_s
    if compiled_s is None and run.is_simulated:
        compile_s = run.plan.get("compile_s")
    else:
        compile_s = None if compiled_s is None else round(compiled_s, 3)
    # The median, since the last batch of an epoch may be short.
    is_counted = sums[:, TOKENS] > 0
    per_step = sums[is_counted, TOKENS] / sums[is_counted, STEPS]
    epoch = first_epoch(sums, run.tokens_per_epoch)
    epoch_ratio = None
    if run.tokens_per_epoch and len(epoch):
        epoch_ratio = min(1.0, float(epoch[:, UNIQUE_TOKENS].sum()) / run.tokens_per_epoch)
    s_per_token = _ratio(settled, COUNTED_S, TOKENS)
    line = training_line(trial, ready_s, warm)
    figures = ArmFigures(
        label=arm.label,
        run=run.name,
        instance_type=run.instance_type,
        n_nodes=run.n_nodes,
        is_baseline=arm.is_baseline,
        is_simulated=run.is_simulated,
        n_steps=len(steps),
        n_warm_up=int(warm[:, STEPS].sum()),
        n_settled=int(settled[:, STEPS].sum()),
        n_lost=int(sums[:, LOST].sum()),
        last_step=steps.last_step,
        tokens_per_step=float(np.median(per_step)) if len(per_step) else None,
        n_tokens=float(sums[:, TOKENS].sum()) or None,
        compile_s=compile_s,
        # It is unknown what an imported run did before its first step.
        ready_s=(ready_s or None) if len(steps) else None,
        first_step_s=_finite(steps.first_step_s),
        warm_up_s=float(warm[:, STEP_S].sum()),
        settled_s=float(settled[:, COUNTED_S].sum()) or None,
        settled_tokens=float(settled[:, TOKENS].sum()) or None,
        values=values_of(run, settled),
        first_epoch_step_s=_ratio(epoch, STEP_S, STEPS),
        first_epoch_ratio=epoch_ratio,
        time_to_train_s=(
            None if s_per_token is None or line is None else line[0] + line[1] * s_per_token
        ),
        **paid_fields(run, steps, ready_s, until=until),
    )
    return MeasuredArm(arm, steps, figures)


def _ratio(rows: FloatArray, over: int, under: int) -> float | None:
    total = float(rows[:, under].sum())
    return float(rows[:, over].sum()) / total if total > 0 else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def training_line(trial: Trial, ready_s: float, warm: FloatArray) -> tuple[float, float] | None:
    """Time to train as a line over seconds per token: its start in seconds, its slope in tokens.

    None where the trial plans no tokens, or the warm-up has trained on all of them.
    """
    left = (trial.planned_tokens or 0) - float(warm[:, TOKENS].sum())
    return (ready_s + float(warm[:, STEP_S].sum()), left) if left > 0 else None


def paid_fields(run: Run, steps: ArmSteps, ready_s: float, *, until: datetime) -> dict[str, Any]:
    """Compute the cost fields of an arm's figures; None without a price.

    The parts add up to what the run has cost by then.
    """
    total = run.usd_by(until)
    if math.isnan(total):
        return dict.fromkeys(PAID_FIELDS)
    began = run.started_at
    ready = min(total, run.usd_between(began, began + timedelta(seconds=ready_s)))
    warm_up, settled = (
        float(part.sum()) for part in np.split(steps.sums[:, PAID_USD], [steps.n_warm_rows])
    )
    between = total - ready - warm_up - settled
    between = between if between >= MIN_PAUSE_USD else 0.0
    prices = prices_of(run, until=until)
    return {
        "usd_ready": ready,
        "usd_warm_up": warm_up,
        "usd_settled": settled,
        "usd_between": between,
        "usd": ready + warm_up + settled + between,
        "usd_per_hour": prices[-1].usd_per_hour,
        "price_basis": prices[-1].basis,
        "prices": prices,
    }


def prices_of(run: Run, *, until: datetime) -> tuple[ArmPrice, ...]:
    """List the prices that a run was paid by, oldest first; there is at least one."""
    rates, over_s = run.rates, run.paid_by(until).timestamp()
    bases = [run.price_basis] if not run.tariff else [each["basis"] for each in run.tariff]
    first, *later = (
        ArmPrice(float(from_s), float(usd_per_s) * SECONDS_PER_HOUR, basis)
        for from_s, usd_per_s, basis in zip(rates.from_s, rates.usd_per_s, bases, strict=True)
    )
    return (first, *(price for price in later if price.from_s < over_s))


def compare_arms(trial: Trial, baseline: MeasuredArm, candidate: MeasuredArm) -> Candidate:
    """Compare a candidate with the baseline by every measure that both arms have."""
    pair = (baseline, candidate)
    measured = sorted(_differences(trial, pair), key=lambda each: ORDER.index(each.name))
    names = {each.name for each in measured}
    deciding = next((name for name in DECIDING if name in names), "")
    n_steps = min(each.figures.n_settled for each in pair)
    pace = next((each for each in measured if each.name == "tokens_per_s"), None)
    evidence = None
    if pace is not None and math.isfinite(pace.difference.error_log):
        difference = pace.difference
        evidence = PaceEvidence(
            difference.ratio, difference.error_log, pace.n_steps, pace.n_planned
        )
    return Candidate(
        candidate.arm.label,
        candidate.arm.run.name,
        tuple(_comparison(each, deciding) for each in measured),
        equal_tokens=equal_tokens(*(each.steps.sums for each in pair)),
        is_decided=n_steps >= trial.planned_steps,
        pace=evidence,
    )


def _differences(trial: Trial, pair: tuple[MeasuredArm, MeasuredArm]) -> list[MeasuredDifference]:
    """Measure the difference of each figure that both arms have, in no particular order."""
    rng = np.random.default_rng([trial.pk, pair[1].arm.pk])
    lines = [training_line(trial, each.figures.ready_s or 0.0, each.warm_up) for each in pair]
    known = [
        figure
        for figure in RATIOS
        if all(is_known(figure, each.settled) for each in pair)
        and (not figure.measure.line or None not in lines)
    ]
    found: dict[str, Difference] = {}
    if known:
        samples = [
            ArmSamples(
                COLUMNS, at_mean_price(each.settled), {"time_to_train_s": line} if line else {}
            )
            for each, line in zip(pair, lines, strict=True)
        ]
        measures = {figure.name: figure.measure for figure in known}
        # A draw of few steps may contain none that report a measure: its interval is then unknown.
        with np.errstate(divide="ignore", invalid="ignore"):
            by_name = differences(samples[0], samples[1], measures, rng=rng)
        found = {figure.name: _scale(by_name[figure.name], figure.factor) for figure in known}
    mine, theirs = (each.figures.values.get(MFU.name) for each in pair)
    if mine is not None and theirs is not None and (pace := found.get("tokens_per_s")):
        # The difference in pace, scaled by each arm's own peak.
        ratio = theirs / mine - 1
        factor = (1 + ratio) / (1 + pace.ratio)
        low, high = ((1 + end) * factor - 1 for end in (pace.low, pace.high))
        found[MFU.name] = replace(
            pace, baseline=mine, candidate=theirs, ratio=ratio, low=low, high=high
        )
    before, after = (each.steps.sums for each in pair)
    epoch = None
    n_tokens, *others = {each.arm.run.tokens_per_epoch for each in pair}
    if n_tokens and not others:
        if usd := found.get("usd_per_mtok"):
            found[USD_PER_EPOCH.name] = _scale(usd, n_tokens / BY_NAME["usd_per_mtok"].factor)
        epoch = compare_first_epochs(before, after, n_tokens, rng)
    n_equal = equal_tokens(before, after)
    if n_equal is not None and (loss := compare_losses(n_equal, before, after, rng)):
        found[LOSS.name] = loss
    n_steps, n_planned = min(each.figures.n_settled for each in pair), trial.planned_steps
    measured = [MeasuredDifference(*item, n_steps, n_planned) for item in found.items()]
    return measured if epoch is None else [*measured, epoch]


def at_mean_price(sums: FloatArray) -> FloatArray:
    """Price each second at the arm's mean price, which keeps the total.

    A price changes by contract, not by chance: only the seconds may vary in the bootstrap.
    """
    total_s = float(sums[:, COUNTED_S].sum())
    priced = sums.copy()
    if total_s > 0:
        priced[:, USD] = sums[:, COUNTED_S] * (sums[:, USD].sum() / total_s)
    return priced


def _scale(difference: Difference, factor: float) -> Difference:
    return replace(
        difference,
        baseline=difference.baseline * factor,
        candidate=difference.candidate * factor,
    )


def first_epoch(sums: FloatArray, tokens_per_epoch: int | None) -> FloatArray:
    """Keep the rows of an arm's first pass over its data, warm-up included; no row if unknown.

    Tokens that were trained again after a failure count once.
    """
    if not tokens_per_epoch or not sums[:, TOKENS].all():
        return sums[:0]
    before = np.cumsum(sums[:, UNIQUE_TOKENS]) - sums[:, UNIQUE_TOKENS]
    return np.asarray(sums[before < tokens_per_epoch])


def compare_first_epochs(
    before: FloatArray, after: FloatArray, tokens_per_epoch: int, rng: np.random.Generator
) -> MeasuredDifference | None:
    """Compare the mean step of two arms' first epochs; None where one has no step of it."""
    epochs = [first_epoch(sums, tokens_per_epoch) for sums in (before, after)]
    if not all(map(len, epochs)):
        return None
    difference = differences(*_samples(epochs), {FIRST_EPOCH.name: FIRST_EPOCH.measure}, rng=rng)
    done = [max(1.0, float(rows[:, UNIQUE_TOKENS].sum())) for rows in epochs]
    counts = [int(rows[:, STEPS].sum()) for rows in epochs]
    n_steps, n_tokens = min(zip(counts, done, strict=True))
    n_planned = round(n_steps * max(1.0, tokens_per_epoch / n_tokens))
    return MeasuredDifference(
        FIRST_EPOCH.name, difference[FIRST_EPOCH.name], n_steps, max(1, n_planned)
    )


def equal_tokens(before: FloatArray, after: FloatArray) -> float | None:
    """Count the tokens that both arms have trained on; None where one does not report them.

    Tokens that were trained again after a failure count once.
    """
    return min(float(sums[:, UNIQUE_TOKENS].sum()) for sums in (before, after)) or None


def compare_losses(
    n_tokens: float, before: FloatArray, after: FloatArray, rng: np.random.Generator
) -> Difference | None:
    """Compare two arms' loss just before a number of tokens; None where one reports none there.

    Notes
    -----
    It is the mean loss of the steps of the last twentieth of these tokens. The loss falls within
    them in both arms. The bootstrap takes that for noise, which makes the interval too wide
    rather than too narrow. Steps that were trained again after a failure count once.
    """
    windows = []
    for sums in (before, after):
        end = np.cumsum(sums[:, UNIQUE_TOKENS])
        start = end - sums[:, UNIQUE_TOKENS]
        is_within = (start < n_tokens) & (end > n_tokens * (1 - LOSS_WINDOW_RATIO))
        windows.append(np.asarray(sums[is_within & (sums[:, LOSS_STEPS] > 0)]))
    if not all(len(rows) and rows[:, LOSSES].any() for rows in windows):
        return None
    return differences(*_samples(windows), {LOSS.name: LOSS.measure}, rng=rng)[LOSS.name]


def _samples(arms: Sequence[FloatArray]) -> tuple[ArmSamples, ArmSamples]:
    before, after = (ArmSamples(COLUMNS, each) for each in arms)
    return before, after


def _comparison(measured: MeasuredDifference, deciding: str) -> Comparison:
    """Decide a measure: the deciding one by itself; all others share one chance of an error.

    Each evaluation of the loss uses other steps, so each one would be another chance of an
    error. It is decided once, when the planned steps are done.
    """
    name, difference = measured.name, measured.difference
    if name == LOSS.name and measured.n_steps < measured.n_planned:
        n_missing = measured.n_planned - measured.n_steps
        decision = TrialVerdict(TrialWord.CANNOT_TELL, n_missing)
    else:
        is_deciding = EQUIVALENT.get(name, name) == deciding
        decision = verdict(
            difference,
            is_better_low=BY_NAME[name].measure.is_better_low,
            n_steps=measured.n_steps,
            n_planned=measured.n_planned,
            wrong_ratio=WRONG_RATIO if is_deciding else WRONG_RATIO / N_SECONDARY,
        )
    return Comparison(
        measure=name,
        baseline=difference.baseline,
        candidate=difference.candidate,
        ratio=difference.ratio,
        low=_finite(difference.low),
        high=_finite(difference.high),
        word=decision.word,
        n_more_steps=decision.n_more_steps,
    )
