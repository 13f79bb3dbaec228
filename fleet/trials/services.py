"""Begin and end a trial, and keep its figures."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
import numpy as np
from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import IntegrityError, transaction

from fleet.models import ReadLog, Run, Trial, TrialArm
from fleet.runs.imported import unpack_curves
from fleet.trials.comparison import compare
from fleet.trials.figures import TrialFigures, dump_figures, load_figures
from telemetry.errors import FieldError, check_line
from telemetry.statistics.verdicts import MARGIN_RATIO
from telemetry.store.reading import Source

MAX_NAME, MAX_QUESTION, MAX_TEAM = 60, 200, 40
MOST_CANDIDATES = 8
# Further runs of one arm.
MOST_REPLICATES = 9
MOST_MARGIN_RATIO = 0.5
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
    replicates: Mapping[str, Sequence[str]] | None = None,
    margin_ratio: float = MARGIN_RATIO,
    by: str,
    now: datetime,
) -> Trial:
    """Begin a trial of runs, given by name; the label of each arm is its hardware.

    Parameters
    ----------
    planned_tokens : of the whole training; None: unknown
    replicates : further runs of an arm, by the name of its run
    margin_ratio : arms that differ by less are equivalent

    Raises FieldError where a field is invalid.
    """
    _check(name, question, team, planned_steps, planned_tokens)
    if not 0 <= margin_ratio <= MOST_MARGIN_RATIO:
        raise FieldError("margin_ratio", f"choose 0 to {MOST_MARGIN_RATIO}; 0.02 is 2 %")
    runs = _runs(baseline, candidates)
    repeated = _replicates(runs, replicates or {})
    _check_copies(runs, repeated)
    try:
        with transaction.atomic():
            trial = Trial.objects.create(
                name=name,
                question=question.strip(),
                team=team.strip(),
                planned_steps=planned_steps,
                planned_tokens=planned_tokens,
                margin_ratio=margin_ratio,
                created_by=by,
                created_at=now,
            )
            hardware = [f"{run.n_nodes} \u00d7 {run.instance_type}" for run in runs]
            labels = hardware if len(set(hardware)) == len(runs) else [run.name for run in runs]
            arms = TrialArm.objects.bulk_create(
                TrialArm(trial=trial, run=run, label=label[:60], is_baseline=i == 0, position=i)
                for i, (run, label) in enumerate(zip(runs, labels, strict=True))
            )
            further = [(arm, run) for arm in arms for run in repeated.get(arm.run.name, ())]
            TrialArm.objects.bulk_create(
                TrialArm(trial=trial, run=run, label=arm.label, replicate_of=arm, position=i)
                for i, (arm, run) in enumerate(further, len(arms))
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
    check_line("question", question, most=MAX_QUESTION)
    check_line("team", team, most=MAX_TEAM)
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
            if not known[name].n_nodes:
                raise FieldError(
                    field, f"{name} has no number of nodes; import it again with its nodes"
                )
    return [known[name] for name in (baseline, *candidates)]


def _replicates(
    runs: Sequence[Run], replicates: Mapping[str, Sequence[str]]
) -> dict[str, list[Run]]:
    """Look up the further runs of each arm."""
    arms = {run.name: run for run in runs}
    names = [name for replicate in replicates.values() for name in replicate]
    known = Run.objects.in_bulk(names, field_name="name")
    for arm, further in replicates.items():
        if arm not in arms:
            raise FieldError("replicates", f"{arm[:MAX_NAME]!r} is no arm of this trial")
        if len(further) > MOST_REPLICATES:
            raise FieldError(
                "replicates", f"choose at most {MOST_REPLICATES} further runs of one arm"
            )
        for name in further:
            if name not in known:
                raise FieldError("replicates", f"no run is called {name[:MAX_NAME]!r}")
            hardware = [(run.n_nodes, run.instance_type) for run in (arms[arm], known[name])]
            if hardware[0] != hardware[1]:
                raise FieldError(
                    "replicates",
                    f"{name} runs on {hardware[1][0]} \u00d7 {hardware[1][1]}, {arm} on "
                    f"{hardware[0][0]} \u00d7 {hardware[0][1]}; choose runs on the same hardware",
                )
    if len({*arms, *names}) < len(arms) + len(names):
        raise FieldError("replicates", "a run can be in a trial once only")
    return {arm: [known[name] for name in further] for arm, further in replicates.items()}


def _check_copies(runs: Sequence[Run], repeated: Mapping[str, Sequence[Run]]) -> None:
    """Refuse a log that was imported under two names: it is no further measurement."""
    further = [run for each in repeated.values() for run in each]
    fields = dict.fromkeys((run.pk for run in further), "replicates")
    logs = ReadLog.objects.filter(run__in=[*runs, *further]).select_related("run").order_by("pk")
    known: dict[bytes, str] = {}
    for log in logs:
        curves = unpack_curves(bytes(log.curves))
        figures = np.stack([curves[name] for name in ("step", "step_s", "loss", "grad_norm")])
        if not figures.size:
            continue
        first = known.setdefault(figures.tobytes(), log.run.name)
        if first != log.run.name:
            raise FieldError(
                fields.get(log.run_id, "candidates"),
                f"{log.run.name} has the steps of {first}: one log, imported twice; choose "
                "another run",
            )


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
        words = {comparison.measure: comparison.word for comparison in before.comparisons}
        comparisons = tuple(
            comparison
            if words.get(comparison.measure, comparison.word) == comparison.word
            else msgspec.structs.replace(
                comparison, word=words[comparison.measure], n_more_steps=None
            )
            for comparison in candidate.comparisons
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
