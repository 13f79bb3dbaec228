"""The text of a schedule: sentences, tables and JSON of what a long run costs on each arm."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import floor, log10
from typing import Any

import msgspec
import numpy as np

from fleet.formatting import ABSENT, MINUS, NBSP, duration, render_text, seconds, si, usd
from fleet.models import Trial
from fleet.trials.schedule import (
    ArmCost,
    Projection,
    Range,
    ReuseScenario,
    at_equal_kinds,
    forecasts_of,
    kinds_of,
    project_request,
    stored_pair,
)
from fleet.trials.schedule_arms import Assumption, Planned
from fleet.trials.schedule_forms import ScheduleRequest
from fleet.trials.verdict import PriceKinds
from telemetry.statistics.break_even import Curve, Reason, over_days
from telemetry.units import DAY_S, MINUTE_S

HOURS_PER_DAY = 24.0
# Below this, the next smaller unit is easier to read.
FEW_DAYS, FEW_HOURS = 2.0, 2.0
CERTAIN_RATIO = 0.975
# Times that differ by less are taken for the same.
SAME_DAYS_RATIO = 0.01

NAMES: Mapping[str, str] = {
    "usd_per_hour": "Price of all nodes, per hour",
    "tokens_per_s": "Pace of settled steps",
    "checkpoint_s_per_hour": "Checkpoints, of each hour",
    "checkpoint_every_s": "Training between checkpoints",
    "compile_s": "Compiling with an empty cache",
    "load_s": "Loading, the rest of a start",
    "warm_up_s": "Lost to warming up",
    "failures_per_node_day": "Failures per node and day",
    "recompiles_per_day": "Unplanned recompiles per day",
    "outage_s": "From a failure to the restart",
}
WRITERS: Mapping[str, Callable[[float], str]] = {
    "usd_per_hour": usd,
    "tokens_per_s": lambda value: f"{si(value)}{NBSP}tokens/s",
    "failures_per_node_day": lambda value: f"{value:.3g}",
    "recompiles_per_day": lambda value: f"{value:.3g}",
}


def rounded(value: float) -> float:
    """Round to three digits; a projection is not more precise than that."""
    return round(value, 2 - floor(log10(abs(value)))) if value else 0.0


def dollars(value: float) -> str:
    """Write dollars to three digits: $41,200."""
    return usd(rounded(value)) if value else "$0"


def days(value: float) -> str:
    """Write a length of time in a suitable unit: 3.1 days, 5.2 h, 20 min, 19 s."""
    if 0 < abs(value) * DAY_S < MINUTE_S:
        return f"{value * DAY_S:.0f}{NBSP}s"
    factor, unit, decimals = _unit(value)
    return f"{value * factor:.{decimals}f}{NBSP}{unit}"


def _unit(value: float) -> tuple[float, str, int]:
    """Choose a unit for a number of days: how many of it make a day, its name, its decimals."""
    if abs(value) >= FEW_DAYS:
        return 1.0, "days", 1
    is_hours = abs(value) * HOURS_PER_DAY >= FEW_HOURS
    return (HOURS_PER_DAY, "h", 1) if is_hours else (HOURS_PER_DAY * 60, "min", 0)


def change_of(usd_saved: float) -> str:
    """Write dollars saved with their sign: +$41,200."""
    return f"{MINUS if usd_saved < 0 else '+'}{dollars(abs(usd_saved))}"


PROJECTED: Mapping[str, Callable[[float], str]] = {
    "change": change_of,
    "days": days,
    # Of a schedule: 14 days, 1 day.
    "length": lambda value: f"{value:g}{NBSP}{'day' if value == 1 else 'days'}",
    "number": lambda value: f"{value:g}",
    "tokens": si,
    "usd": dollars,
    "usd_per_mtok": lambda value: usd(value) if value >= 1 else f"${value:.4f}",
}


def projected(value: float, unit: str) -> str:
    return PROJECTED[unit](value)


def ends(found: Range, unit: str) -> str:
    """Write an interval, which may be open at its high end; days in the unit of their value."""
    write = PROJECTED[unit]
    if unit == "days":
        factor, _, decimals = _unit(found.value)
        write = lambda value: f"{value * factor:.{decimals}f}"  # noqa: E731
    low = ABSENT if found.low is None else write(found.low)
    return f"{low} to {'never' if found.high is None else write(found.high)}"


def span(found: Range, unit: str) -> str:
    """Write a figure with its interval: 3.1 days (95 %: 2.2 to 4.6)."""
    return f"{projected(found.value, unit)} (95{NBSP}%: {ends(found, unit)})"


def _assumed(assumption: Assumption, value: float) -> str:
    """Write a value of an assumption; a duration with tenths of a second where it is short."""
    if write := WRITERS.get(assumption.name):
        return write(value)
    return duration(round(value)) if value >= MINUTE_S else seconds(value)


def written(assumption: Assumption) -> str:
    return _assumed(assumption, assumption.value)


def basis_written(assumption: Assumption) -> str:
    """Format the interval and the source of an assumption."""
    if assumption.low is None or assumption.high is None:
        return assumption.basis
    low, high = (_assumed(assumption, end) for end in (assumption.low, assumption.high))
    return "; ".join(filter(None, (f"{low} to {high}", assumption.basis)))


@dataclass(frozen=True, slots=True)
class ProjectionText:
    """One scenario of a projection, as ``trials/_projection.txt`` needs it.

    ``pays`` is when the candidate pays back what it costs at first: never, ahead at first, at
    once, too late or in time. ``extra`` is how much longer it takes: "1.5 days longer", "same", or
    empty with one arm. ``n_never`` of 100 cases never pay it back.
    """

    found: Projection
    scenario: ReuseScenario
    compiles: bool
    pays: str = ""
    extra: str = ""
    n_never: str = ""


def projection_text(
    found: Projection, planned: tuple[Planned, ...], *, has_reuse: bool
) -> ProjectionText:
    scenario = found.scenario(has_reuse=has_reuse)
    even, compiles = scenario.break_even, bool(planned[-1].habits.compile_s)
    if even is None or scenario.saved_usd is None:
        return ProjectionText(found, scenario, compiles)
    if even.days is None:
        pays = "ahead at first" if even.reason == Reason.AHEAD_AT_FIRST else "never"
    elif even.reason == Reason.FROM_THE_START or even.days.value * DAY_S < MINUTE_S:
        pays = "at once"
    else:
        pays = "too late" if even.days.value > found.days else "in time"
    is_unsure = even.days is not None and even.chance_ratio < CERTAIN_RATIO
    n_never = f"{100 * (1 - even.chance_ratio):.0f}" if is_unsure else ""
    return ProjectionText(found, scenario, compiles, pays, _extra(scenario), n_never)


def _extra(scenario: ReuseScenario) -> str:
    """Say how much longer the candidate takes, in the unit of the time that it takes."""
    if scenario.extra_days is None:
        return ""
    before, after = (arm.same_tokens_days.value for arm in scenario.arms)
    extra = scenario.extra_days.value
    if abs(extra) < SAME_DAYS_RATIO * before:
        return "same"
    factor, unit, decimals = _unit(after)
    size = f"{abs(extra) * factor:.{decimals}f}"
    text = f"{size}{NBSP}{unit}" if float(size) else days(abs(extra))
    return f"{text} {'longer' if extra > 0 else 'less'}"


def sentence(found: Projection, planned: tuple[Planned, ...], *, has_reuse: bool) -> str:
    """Summarise a schedule: whether two arms pay off, or what one arm costs.

    Where the arms are paid at different kinds of prices, equal price kinds come first.
    """
    kinds = kinds_of(planned)
    is_unlike = kinds is not None and not kinds.is_alike
    at_kinds = at_equal_kinds(found, planned) if is_unlike else []
    saved = found.scenario(has_reuse=has_reuse).saved_usd
    at_equal = (other.scenario(has_reuse=has_reuse).saved_usd for _, other in at_kinds)
    signs = {usd_saved.value > 0 for usd_saved in at_equal if usd_saved is not None}
    return render_text(
        "trials/_projection.txt#sentence",
        kinds=kinds if is_unlike else None,
        is_certain=signs == {saved is not None and saved.value > 0},
        at_kinds=[
            (common.kind, projection_text(other, planned, has_reuse=has_reuse))
            for common, other in at_kinds
        ],
        as_paid=projection_text(found, planned, has_reuse=has_reuse),
    )


def assumption_sentence(planned: tuple[Planned, ...]) -> str:
    """Name the arms whose pace is assumed; empty where it was measured on all of them."""
    simulated = [arm.label for arm in planned if arm.is_simulated]
    return render_text("trials/_projection.txt#assumed", simulated=simulated)


def engineers_sentence(asked: ScheduleRequest) -> str:
    """Write what the costs contain of engineers; empty without any."""
    usd_of_porting = asked.porting_days * asked.engineer_usd
    return render_text("trials/_projection.txt#engineers", asked=asked, porting_usd=usd_of_porting)


def reuse_sentence(found: Projection, planned: tuple[Planned, ...]) -> str:
    """Write what keeping compiled graphs saves the candidate, for the same tokens."""
    return render_text(
        "trials/_projection.txt#reuse",
        of={"found": found},
        arm=planned[-1],
        saved=found.reuse_saves[-1],
    )


@dataclass(frozen=True, slots=True)
class ScheduleColumn:
    """One arm of the table of costs; the baseline has no ``scenario``."""

    arm: ArmCost
    scenario: ReuseScenario | None
    is_other: bool


@dataclass(frozen=True, slots=True)
class ScheduleCosts:
    """What a schedule costs: the baseline, then the candidate with reuse and without.

    ``saved`` has a row for each kind of price that both arms could pay, empty for those paid,
    with the dollars saved in each scenario, and whether that is the one that was not chosen.
    """

    found: Projection
    columns: tuple[ScheduleColumn, ...]
    saved: tuple[tuple[str, tuple[tuple[Range | None, bool], ...]], ...]
    is_unlike: bool


def costs_of(
    found: Projection, *, has_reuse: bool, planned: tuple[Planned, ...] = ()
) -> ScheduleCosts:
    """Tabulate the cost of a schedule, with the baseline in the chosen scenario.

    If the ``planned`` arms pay different kinds of prices, savings at equal kinds come first.
    """
    chosen, kinds = found.scenario(has_reuse=has_reuse), kinds_of(planned)
    columns = [ScheduleColumn(arm, None, is_other=False) for arm in chosen.arms[:-1]]
    columns += [
        ScheduleColumn(scenario.arms[-1], scenario, is_other=scenario.has_reuse != has_reuse)
        for scenario in found.scenarios
    ]
    ways = [(common.kind, other) for common, other in at_equal_kinds(found, planned)]
    saved = tuple(
        (
            kind,
            tuple(
                (scenario.saved_usd, scenario.has_reuse != has_reuse) for scenario in way.scenarios
            ),
        )
        for kind, way in [*ways, ("", found)]
    )
    is_unlike = kinds is not None and not kinds.is_alike
    return ScheduleCosts(
        found, tuple(columns), saved if len(chosen.arms) > 1 else (), is_unlike=is_unlike
    )


def assumption_rows(planned: tuple[Planned, ...]) -> list[tuple[str, list[tuple[str, ...]]]]:
    """List the assumptions by name, each as text, basis and arm."""
    return [
        (
            NAMES[same[0].name],
            [
                (written(one), basis_written(one), arm.label)
                for one, arm in zip(same, planned, strict=True)
            ],
        )
        for same in zip(*(arm.assumptions for arm in planned), strict=True)
    ]


N_POINTS = 57


def as_json(
    found: Projection, planned: tuple[Planned, ...], *, reuses: Sequence[bool]
) -> dict[str, Any]:
    """Describe a schedule as one object, with the scenarios that are asked for."""
    scenarios = []
    for has_reuse in reuses:
        curves = None
        if len(planned) > 1:
            baseline, candidate = forecasts_of(found, planned, has_reuse=has_reuse)
            # The cost by day: of the candidate, and of the baseline for the same tokens.
            points = over_days(baseline, candidate, np.linspace(0, found.days, N_POINTS))
            curves = {
                "days": points.days.tolist(),
                "tokens": points.tokens.tolist(),
                "candidate": _curve(points.candidate),
                "baseline": _curve(points.baseline),
            }
        scenario = msgspec.to_builtins(found.scenario(has_reuse=has_reuse))
        scenarios.append(scenario | {"curves": curves})
    return {
        "days": found.days,
        "porting_usd": found.porting_usd,
        "waiting_usd_per_day": found.waiting_usd_per_day,
        "tokens": found.tokens,
        "arms": [
            {
                "label": each.label,
                "run": each.run,
                "instance_type": each.instance_type or None,
                "nodes": each.habits.n_nodes,
                # Machines expect ordinary spaces.
                "assumptions": [
                    msgspec.to_builtins(one) | {"basis": one.basis.replace(NBSP, " ")}
                    for one in each.assumptions
                ],
            }
            for each in planned
        ],
        "scenarios": scenarios,
        "reuse_saves": msgspec.to_builtins(found.reuse_saves),
    } | _price_kinds(found, planned, reuses=reuses)


def _price_kinds(
    found: Projection, planned: tuple[Planned, ...], *, reuses: Sequence[bool]
) -> dict[str, Any]:
    """Describe the kinds of prices of both arms, and what a schedule saves at equal kinds.

    Empty for one arm, and for figures from a file, which name no kind.
    """
    kinds = kinds_of(planned)
    if kinds is None:
        return {}
    described = {
        "baseline": kinds.baseline,
        "candidate": kinds.candidate,
        "is_alike": kinds.is_alike,
        "at_equal": [
            {
                "kind": common.kind,
                "baseline_usd_per_node_hour": common.baseline.usd,
                "candidate_usd_per_node_hour": common.candidate.usd,
                "scenarios": [
                    {
                        "has_reuse": has_reuse,
                        "saved_usd": msgspec.to_builtins(way.saved_usd),
                        "break_even": msgspec.to_builtins(way.break_even),
                    }
                    for has_reuse in reuses
                    if (way := other.scenario(has_reuse=has_reuse))
                ],
            }
            for common, other in at_equal_kinds(found, planned)
        ],
    }
    return {"price_kinds": described}


def _curve(curve: Curve) -> dict[str, list[float]]:
    return {"usd": curve.usd.tolist(), "low": curve.low.tolist(), "high": curve.high.tolist()}


@dataclass(frozen=True, slots=True)
class Schedule:
    asked: ScheduleRequest
    planned: tuple[Planned, ...]
    found: Projection
    as_of: datetime

    @property
    def sentence(self) -> str:
        """Write in one sentence whether moving to the candidate pays off."""
        return sentence(self.found, self.planned, has_reuse=self.asked.has_reuse)

    @property
    def title(self) -> str:
        """What it covers: over 14 days, or for 300 G tokens."""
        return render_text("trials/_projection.txt#covers", of={"found": self.found})

    @property
    def assumed_sentence(self) -> str:
        """Which arms have an assumed pace; empty where all were measured."""
        return assumption_sentence(self.planned)

    @property
    def engineers_sentence(self) -> str:
        return engineers_sentence(self.asked)

    @property
    def kinds(self) -> PriceKinds | None:
        """The kinds of prices of both arms; None where unknown."""
        return kinds_of(self.planned)

    @property
    def reuse_sentence(self) -> str:
        return reuse_sentence(self.found, self.planned)


def schedule_of(trial: Trial, asked: ScheduleRequest) -> Schedule | None:
    """Project a trial's schedule; None where its arms were not observed yet.

    Raises FieldError where an arm cannot be projected, or the candidate does not exist.
    """
    pair = stored_pair(trial, candidate=asked.candidate)
    if pair is None:
        return None
    planned, as_of = pair
    planned, projection = project_request(planned, asked)
    return Schedule(asked, planned, projection, as_of)
