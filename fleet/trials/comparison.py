"""Compute the figures of a trial: measure each arm, compare each candidate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from fleet.models import ReadLog, Run, Trial, TrialArm
from fleet.runs.compile_summaries import compile_summary
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
    is_known,
    match_runs,
    values_of,
)
from fleet.trials.layout import arm_layout
from telemetry.blocks import FloatArray
from telemetry.statistics.bootstrap import (
    MEASURED_RUNS,
    ArmSamples,
    Difference,
    differences,
    estimate,
)
from telemetry.statistics.verdicts import WRONG_RATIO, TrialVerdict, TrialWord, verdict
from telemetry.store.reading import Source
from telemetry.units import HOUR_S

STEPS, STEP_S, COUNTED_S, TOKENS, USD, LOSSES, LOSS_STEPS, PAID_USD = (
    COLUMNS.index(name)
    for name in (
        *("steps", "step_s", "counted_s", "tokens", "usd", "loss", "loss_steps"),
        "paid_usd",
    )
)
UNIQUE_TOKENS, LOST, EARLIER_TOKENS = (
    COLUMNS.index(name) for name in ("unique_tokens", "lost", "earlier_tokens")
)
# Losses are compared over this last part of the tokens that both arms have trained on.
LOSS_WINDOW_RATIO = 0.05
# Points of a loss curve.
N_LOSSES = 60
# A drift is looked for in the first of these that is known.
PACES = (BY_NAME["tokens_per_s"], BY_NAME["step_s"])
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
    """Compute the figures of a trial up to now, or up to its end."""
    until = trial.until(now)
    arms = [measure_arm(hot, trial, arm, until=until) for arm in trial.arms.all()]
    # By arm, its first run before the others.
    runs: dict[int, list[MeasuredArm]] = {}
    for each in arms:
        runs.setdefault(each.arm.replicate_of_id or each.arm.pk, []).append(each)
    baseline = next((arm_runs for arm_runs in runs.values() if arm_runs[0].arm.is_baseline), None)
    return TrialFigures(
        matches=match_runs(
            [each.arm.run for each in arms], [each.figures.tokens_per_step for each in arms]
        ),
        arms=tuple(each.figures for each in arms),
        candidates=tuple(
            compare_arms(trial, baseline, arm_runs)
            for arm_runs in runs.values()
            if baseline is not None and arm_runs is not baseline
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
    # Of a run whose beginning is not stored, no first epoch is known.
    epoch = first_epoch(sums, run.tokens_per_epoch if steps.has_beginning else None)
    epoch_ratio = None
    if run.tokens_per_epoch and len(epoch):
        epoch_ratio = min(1.0, float(epoch[:, UNIQUE_TOKENS].sum()) / run.tokens_per_epoch)
    s_per_token = _ratio(settled, COUNTED_S, TOKENS)
    line = training_line(trial, steps, ready_s)
    pace = next((each for each in PACES if is_known(each, settled)), None)
    level = estimate(ArmSamples(COLUMNS, settled), pace.measure) if pace else None
    figures = ArmFigures(
        label=arm.label,
        run=run.name,
        instance_type=run.instance_type,
        n_nodes=run.n_nodes,
        is_baseline=arm.is_baseline,
        is_simulated=run.is_simulated,
        replicate_of=arm.replicate_of.run.name if arm.replicate_of else "",
        pace_change_ratio=math.expm1(level.change_log) if level and level.has_drift else None,
        n_steps=len(steps),
        n_warm_up=int(warm[:, STEPS].sum()),
        n_settled=int(settled[:, STEPS].sum()),
        n_lost=int(sums[:, LOST].sum()),
        first_step=steps.first_step,
        last_step=steps.last_step,
        has_beginning=steps.has_beginning,
        tokens_per_step=float(np.median(per_step)) if len(per_step) else None,
        n_tokens=float(sums[:, TOKENS].sum()) or None,
        compile_s=compile_s,
        # It is unknown what an imported run did before its first step.
        ready_s=(ready_s or None) if len(steps) and steps.has_beginning else None,
        first_step_s=_finite(steps.first_step_s) if steps.has_beginning else None,
        warm_up_s=float(warm[:, STEP_S].sum()),
        settled_s=float(settled[:, COUNTED_S].sum()) or None,
        settled_tokens=float(settled[:, TOKENS].sum()) or None,
        values=values_of(run, settled),
        first_epoch_step_s=_ratio(epoch, STEP_S, STEPS),
        first_epoch_ratio=epoch_ratio,
        losses=loss_curve(sums),
        time_to_train_s=(
            None if s_per_token is None or line is None else line[0] + line[1] * s_per_token
        ),
        layout=arm_layout(run),
        end_reason=run.end_reason,
        **bad_loss_fields(run),
        **paid_fields(run, steps, ready_s, until=until),
    )
    return MeasuredArm(arm, steps, figures)


def bad_loss_fields(run: Run) -> dict[str, Any]:
    """Return the loss that is not finite at the end of an imported log, and since which step."""
    log = ReadLog.objects.filter(run=run).only("details").first()
    for each in log.details.get("not_finite", ()) if log else ():
        if each["name"] == "loss" and each["is_last"]:
            return {"bad_loss": each["value"], "bad_loss_step": each["since"]}
    return {}


def _ratio(rows: FloatArray, over: int, under: int) -> float | None:
    total = float(rows[:, under].sum())
    return float(rows[:, over].sum()) / total if total > 0 else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def training_line(trial: Trial, steps: ArmSteps, ready_s: float) -> tuple[float, float] | None:
    """Time to train as a line over seconds per token: its start in seconds, its slope in tokens.

    None where the trial plans no tokens, the warm-up has trained on all of them, or the beginning
    of training is not stored.
    """
    warm = steps.sums[: steps.n_warm_rows]
    if not steps.has_beginning:
        return None
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
        # What was paid before the first stored step may be training, too.
        "usd_ready": ready if steps.has_beginning else None,
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
        ArmPrice(float(from_s), float(usd_per_s) * HOUR_S, basis)
        for from_s, usd_per_s, basis in zip(rates.from_s, rates.usd_per_s, bases, strict=True)
    )
    return (first, *(price for price in later if price.from_s < over_s))


def compare_arms(
    trial: Trial, baseline: Sequence[MeasuredArm], candidate: Sequence[MeasuredArm]
) -> Candidate:
    """Compare the runs of a candidate with those of the baseline, by what all of them have."""
    arms = (baseline, candidate)
    measured = sorted(_differences(trial, arms), key=lambda each: ORDER.index(each.name))
    names = {each.name for each in measured}
    deciding = next((name for name in DECIDING if name in names), "")
    n_steps = min(run.figures.n_settled for arm in arms for run in arm)
    pace = next((each for each in measured if each.name == "tokens_per_s"), None)
    evidence = None
    if pace is not None and math.isfinite(pace.difference.error_log):
        difference = pace.difference
        evidence = PaceEvidence(
            difference.ratio,
            difference.error_log,
            pace.n_steps,
            pace.n_planned,
            _finite(difference.freedom),
            difference.run_error_log,
        )
    n_runs = (len(baseline), len(candidate))
    return Candidate(
        candidate[0].arm.label,
        candidate[0].arm.run.name,
        tuple(_comparison(each, deciding, trial.margin_ratio) for each in measured),
        equal_tokens=equal_tokens([run.steps.sums for arm in arms for run in arm]),
        is_decided=n_steps >= trial.planned_steps,
        pace=evidence,
        n_runs=n_runs,
        is_provisional=min(n_runs) < MEASURED_RUNS,
        margin_ratio=trial.margin_ratio,
    )


Arms = tuple[Sequence[MeasuredArm], Sequence[MeasuredArm]]


def _differences(trial: Trial, arms: Arms) -> list[MeasuredDifference]:
    """Measure the difference of each figure that all runs have, in no particular order."""
    runs = [run for arm in arms for run in arm]
    lines = {
        run.arm.pk: training_line(trial, run.steps, run.figures.ready_s or 0.0) for run in runs
    }
    known = [
        figure
        for figure in RATIOS
        if all(is_known(figure, run.settled) for run in runs)
        and (not figure.measure.line or None not in lines.values())
    ]
    by_figure: dict[str, Difference] = {}
    if known:
        baseline, candidate = (
            [
                ArmSamples(
                    COLUMNS, at_mean_price(run.settled), {"time_to_train_s": line} if line else {}
                )
                for run in arm
                for line in [lines[run.arm.pk]]
            ]
            for arm in arms
        )
        by_name = differences(baseline, candidate, {each.name: each.measure for each in known})
        by_figure = {figure.name: _scale(by_name[figure.name], figure.factor) for figure in known}
    mfu = [[run.figures.values.get(MFU.name, math.nan) for run in arm] for arm in arms]
    mine, theirs = (math.exp(float(np.mean(np.log(values)))) for values in mfu)
    if math.isfinite(mine) and math.isfinite(theirs) and (pace := by_figure.get("tokens_per_s")):
        # The difference in pace, scaled by each arm's own peak.
        ratio = theirs / mine - 1
        factor = (1 + ratio) / (1 + pace.ratio)
        low, high = ((1 + end) * factor - 1 for end in (pace.low, pace.high))
        by_figure[MFU.name] = replace(
            pace, baseline=mine, candidate=theirs, ratio=ratio, low=low, high=high
        )
    sums = ([run.steps.sums for run in arms[0]], [run.steps.sums for run in arms[1]])
    epoch = None
    n_tokens, *others = {run.arm.run.tokens_per_epoch for run in runs}
    if n_tokens and not others:
        if usd := by_figure.get("usd_per_mtok"):
            by_figure[USD_PER_EPOCH.name] = _scale(usd, n_tokens / BY_NAME["usd_per_mtok"].factor)
        if all(run.steps.has_beginning for run in runs):
            epoch = compare_first_epochs(sums, n_tokens)
    n_equal = equal_tokens([*sums[0], *sums[1]])
    if n_equal is not None and (loss := compare_losses(n_equal, sums)):
        by_figure[LOSS.name] = loss
    n_steps, n_planned = min(run.figures.n_settled for run in runs), trial.planned_steps
    measured = [MeasuredDifference(*item, n_steps, n_planned) for item in by_figure.items()]
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
        difference, baseline=difference.baseline * factor, candidate=difference.candidate * factor
    )


def first_epoch(sums: FloatArray, tokens_per_epoch: int | None) -> FloatArray:
    """Keep the rows of an arm's first pass over its data, warm-up included; no row if unknown.

    Tokens that were trained again after a failure count once.
    """
    if not tokens_per_epoch or not sums[:, TOKENS].all():
        return sums[:0]
    before = np.cumsum(sums[:, UNIQUE_TOKENS]) - sums[:, UNIQUE_TOKENS]
    return np.asarray(sums[before < tokens_per_epoch])


Sums = tuple[Sequence[FloatArray], Sequence[FloatArray]]


def compare_first_epochs(arms: Sums, tokens_per_epoch: int) -> MeasuredDifference | None:
    """Compare the mean step of two arms' first epochs; None where a run has no step of it."""
    epochs = [[first_epoch(sums, tokens_per_epoch) for sums in arm] for arm in arms]
    every = [rows for arm in epochs for rows in arm]
    if not all(map(len, every)):
        return None
    difference = differences(*_samples(epochs), {FIRST_EPOCH.name: FIRST_EPOCH.measure})
    done = [max(1.0, float(rows[:, UNIQUE_TOKENS].sum())) for rows in every]
    counts = [int(rows[:, STEPS].sum()) for rows in every]
    n_steps, n_tokens = min(zip(counts, done, strict=True))
    n_planned = round(n_steps * max(1.0, tokens_per_epoch / n_tokens))
    return MeasuredDifference(
        FIRST_EPOCH.name, difference[FIRST_EPOCH.name], n_steps, max(1, n_planned)
    )


def equal_tokens(runs: Sequence[FloatArray]) -> float | None:
    """Count the tokens that all runs have trained on; None where one does not report them.

    Tokens that were trained again after a failure count once.
    """
    if not all(sums[:, UNIQUE_TOKENS].any() for sums in runs):
        return None
    return min(float(trained_tokens(sums)[-1]) for sums in runs)


def trained_tokens(sums: FloatArray) -> FloatArray:
    """Count the tokens of training up to the end of each row, also those before the first one."""
    return np.asarray(np.cumsum(sums[:, UNIQUE_TOKENS] + sums[:, EARLIER_TOKENS]))


def compare_losses(n_tokens: float, arms: Sums) -> Difference | None:
    """Compare two arms' loss just before a number of tokens; None where a run reports none there.

    It is the mean loss of the steps of the last twentieth of these tokens. The loss falls within
    them in both arms. That counts as a drift, which makes the interval too wide rather than too
    narrow. Steps that were trained again after a failure count once.
    """
    windows = [[_loss_window(n_tokens, sums) for sums in arm] for arm in arms]
    if not all(len(rows) and rows[:, LOSSES].any() for arm in windows for rows in arm):
        return None
    return differences(*_samples(windows), {LOSS.name: LOSS.measure})[LOSS.name]


def _loss_window(n_tokens: float, sums: FloatArray) -> FloatArray:
    end = trained_tokens(sums)
    start = end - sums[:, UNIQUE_TOKENS]
    is_within = (start < n_tokens) & (end > n_tokens * (1 - LOSS_WINDOW_RATIO))
    return np.asarray(sums[is_within & (sums[:, LOSS_STEPS] > 0)])


def loss_curve(sums: FloatArray) -> tuple[tuple[float, float], ...]:
    """Average the loss over equal parts of an arm's tokens: the end of each part, and its loss.

    Empty without losses. Steps that were trained again after a failure count once.
    """
    tokens = trained_tokens(sums)
    if not len(tokens) or not tokens[-1] or not sums[:, LOSS_STEPS].any():
        return ()
    ends = np.linspace(tokens[0] - sums[0, UNIQUE_TOKENS], tokens[-1], N_LOSSES + 1)[1:]
    part = np.minimum(np.searchsorted(ends, tokens), N_LOSSES - 1)
    losses, steps = (
        np.bincount(part, sums[:, column], N_LOSSES) for column in (LOSSES, LOSS_STEPS)
    )
    return tuple(
        (float(end), float(loss / n))
        for end, loss, n in zip(ends, losses, steps, strict=True)
        if n
    )


def _samples(arms: Sequence[Sequence[FloatArray]]) -> tuple[list[ArmSamples], list[ArmSamples]]:
    baseline, candidate = ([ArmSamples(COLUMNS, rows) for rows in arm] for arm in arms)
    return baseline, candidate


def _comparison(measured: MeasuredDifference, deciding: str, margin_ratio: float) -> Comparison:
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
            margin_ratio=margin_ratio,
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
