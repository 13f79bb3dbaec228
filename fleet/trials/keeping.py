"""A trial's life: begun, worked out again as steps come, and ended; nothing is forgotten."""

import re
from collections.abc import Sequence
from datetime import datetime

from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import IntegrityError, transaction

from fleet.models import Run, Trial, TrialArm
from fleet.trials.comparing import compare
from fleet.trials.figures import kept
from telemetry.store.source import Source

MAX_NAME, MAX_QUESTION, MAX_TEAM = 60, 200, 40
MOST_CANDIDATES = 8
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MOST_STEPS = 100_000_000


class TrialError(ValueError):
    """A trial that cannot be; ``field`` is the one to mend."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def begin(
    name: str,
    question: str,
    *,
    baseline: str,
    candidates: Sequence[str],
    team: str = "",
    planned_steps: int,
    by: str,
    now: datetime,
) -> Trial:
    """Begin a trial of runs, named; each arm is called by its hardware.

    Raises
    ------
    TrialError
        Where a field cannot be.
    """
    _check(name, question, team, planned_steps)
    runs = _runs(baseline, candidates)
    try:
        with transaction.atomic():
            trial = Trial.objects.create(
                name=name,
                question=question.strip(),
                team=team.strip(),
                planned_steps=planned_steps,
                created_by=by,
                created_at=now,
            )
            TrialArm.objects.bulk_create(_arms(trial, runs))
    except IntegrityError as error:
        raise TrialError("name", "there is a trial of that name already") from error
    return trial


def _check(name: str, question: str, team: str, planned_steps: int) -> None:
    try:
        validate_slug(name)
    except ValidationError as error:
        raise TrialError("name", "use letters, digits, - and _ only") from error
    if len(name) > MAX_NAME:
        raise TrialError("name", f"use at most {MAX_NAME} characters")
    for field, text, most in (("question", question, MAX_QUESTION), ("team", team, MAX_TEAM)):
        if len(text.strip()) > most:
            raise TrialError(field, f"use at most {most} characters")
        if CONTROL.search(text):
            raise TrialError(field, "use no control characters, not even line breaks")
    if not question.strip():
        raise TrialError("question", "say what is to be decided")
    if not 1 <= planned_steps <= MOST_STEPS:
        raise TrialError("planned_steps", f"choose 1 to {MOST_STEPS:,}")


def _runs(baseline: str, candidates: Sequence[str]) -> list[Run]:
    """Return the runs of the arms, the baseline first."""
    if not 1 <= len(candidates) <= MOST_CANDIDATES:
        raise TrialError("candidates", f"choose 1 to {MOST_CANDIDATES} runs")
    if len({baseline, *candidates}) <= len(candidates):
        raise TrialError("candidates", "a run can be one arm only")
    known = Run.objects.in_bulk([baseline, *candidates], field_name="name")
    for field, names in (("baseline", [baseline]), ("candidates", candidates)):
        for name in names:
            if name not in known:
                raise TrialError(field, f"no run is called {name[:MAX_NAME]!r}")
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


def work_out(hot: Source, trial: Trial, *, now: datetime) -> None:
    """Work a trial's figures out, and keep them unless it was ended meanwhile."""
    trial.figures, trial.figured_at = kept(compare(hot, trial, now=now)), now
    Trial.objects.filter(pk=trial.pk, ended_at=trial.ended_at).update(
        figures=trial.figures, figured_at=now
    )


def work_out_due(hot: Source, *, now: datetime) -> int:
    """Work out the trials whose figures may have changed; return how many."""
    due = Trial.objects.due().with_arms()
    for trial in due:
        work_out(hot, trial, now=now)
    return len(due)
