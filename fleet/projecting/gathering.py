"""The arms of a schedule: those of a trial as they are kept, or runs looked at now."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fleet.models import Run, Trial, TrialArm
from fleet.projecting.keeping import kept_of
from fleet.projecting.observing import observe
from fleet.projecting.planned import Planned, ScheduleError, planned_of
from telemetry.store.source import Source

MOST_RUNS = 2


@dataclass(frozen=True, slots=True)
class Pair:
    """The arms that are set against each other, and as of when they were looked at."""

    planned: tuple[Planned, ...]
    as_of: datetime


def pair_of(trial: Trial, *, candidate: str) -> tuple[TrialArm, TrialArm]:
    """Return a trial's baseline, and the candidate whose run is named, else its first.

    Raises
    ------
    ScheduleError
        Where the trial has no such candidate, or one arm only.
    """
    arms = list(trial.arms.all())
    baseline = next((arm for arm in arms if arm.is_baseline), None)
    candidates = [arm for arm in arms if not arm.is_baseline]
    if baseline is None or not candidates:
        raise ScheduleError("trial", f"{trial} has one arm only; a schedule compares two")
    chosen = next((arm for arm in candidates if candidate in ("", arm.run.name)), None)
    if chosen is None:
        names = ", ".join(arm.run.name for arm in candidates)
        raise ScheduleError("candidate", f"{candidate[:60]!r} is none of {trial}: {names}")
    return baseline, chosen


def kept_pair(trial: Trial, *, candidate: str) -> Pair | None:
    """Return a trial's arms by the newest look that is kept; None where there was none yet.

    Raises
    ------
    ScheduleError
        Where an arm has no price or too few steps, or there is no such candidate.
    """
    arms = pair_of(trial, candidate=candidate)
    kept = kept_of(arm.run for arm in arms)
    if any(arm.run.pk not in kept for arm in arms):
        return None
    looks = [kept[arm.run.pk] for arm in arms]
    planned = [
        planned_of(arm.run, seen, label=arm.label, field="trial")
        for arm, (seen, _) in zip(arms, looks, strict=True)
    ]
    return Pair(tuple(planned), min(at for _, at in looks))


def pair_now(hot: Source, trial: Trial, *, candidate: str, now: datetime) -> tuple[Planned, ...]:
    """Return a trial's arms as they look now.

    Raises
    ------
    ScheduleError
        As of `kept_pair`.
    """
    return tuple(
        planned_of(
            arm.run,
            observe(hot, arm.run, until=trial.until(now)),
            label=arm.label,
            field="trial",
        )
        for arm in pair_of(trial, candidate=candidate)
    )


def runs_now(hot: Source, names: Sequence[str], *, now: datetime) -> tuple[Planned, ...]:
    """Return runs as they look now: one, or a baseline and a candidate.

    Raises
    ------
    ScheduleError
        Where no run is called so, or it has no price or too few steps.
    """
    if len(names) > MOST_RUNS or len(set(names)) < len(names):
        raise ScheduleError("run", "give one run, or two different ones")
    known = Run.objects.in_bulk(list(names), field_name="name")
    for name in names:
        if name not in known:
            raise ScheduleError("run", f"no run is called {name[:60]!r}")
    return tuple(planned_of(known[name], observe(hot, known[name], until=now)) for name in names)
