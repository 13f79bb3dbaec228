"""Begin a trial, update its figures as steps arrive, and end it."""

import re
from collections.abc import Sequence
from datetime import datetime

import msgspec
from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import IntegrityError, transaction

from fleet.models import Run, Trial, TrialArm
from fleet.trials.comparison import compare
from fleet.trials.figures import Candidate, TrialFigures, dump_figures, load_figures
from telemetry.errors import FieldError
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

    Raises
    ------
    FieldError
        Where a field is invalid.
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
            TrialArm.objects.bulk_create(_arms(trial, runs))
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
        raise FieldError("question", "say what is to be decided")
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


def _arms(trial: Trial, runs: Sequence[Run]) -> list[TrialArm]:
    hardware = [f"{run.n_nodes} \u00d7 {run.instance_type}" for run in runs]
    labels = hardware if len(set(hardware)) == len(runs) else [run.name for run in runs]
    return [
        TrialArm(trial=trial, run=run, label=label[:60], is_baseline=i == 0, position=i)
        for i, (run, label) in enumerate(zip(runs, labels, strict=True))
    ]


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
    candidates = (
        each if each.run not in decided else _with_words(each, decided[each.run])
        for each in new.candidates
    )
    return msgspec.structs.replace(new, candidates=tuple(candidates))


def _with_words(candidate: Candidate, decided: Candidate) -> Candidate:
    words = {each.measure: each.word for each in decided.comparisons}
    comparisons = tuple(
        each
        if words.get(each.measure, each.word) == each.word
        else msgspec.structs.replace(each, word=words[each.measure], n_more_steps=None)
        for each in candidate.comparisons
    )
    pace = decided.pace or candidate.pace
    return msgspec.structs.replace(candidate, comparisons=comparisons, is_decided=True, pace=pace)


def update_due_figures(hot: Source, *, now: datetime) -> int:
    """Compute the trials whose figures may have changed; return their number."""
    due = Trial.objects.due().with_arms()
    for trial in due:
        update_figures(hot, trial, now=now)
    return len(due)
