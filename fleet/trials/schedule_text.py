"""The text of a schedule: sentences, tables and JSON of what a long run costs on each arm."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import floor, log10
from typing import Any

import msgspec
import numpy as np

from fleet.formatting import ABSENT, MINUS, NBSP, duration, seconds, si, usd
from fleet.models import Trial
from fleet.trials.schedule import (
    ArmCost,
    BreakEvenPoint,
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
from telemetry.statistics.forecast import SECONDS_PER_DAY

HOURS_PER_DAY = 24.0
# Below this, the next smaller unit is easier to read.
FEW_DAYS, FEW_HOURS = 2.0, 2.0
CERTAIN_RATIO = 0.975
# Times that differ by less are taken for the same.
SAME_DAYS_RATIO = 0.01
ONE_MINUTE_S = 60.0

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


def _seconds(value: float) -> str:
    """Write a duration, with tenths of a second where it is short."""
    return duration(round(value)) if value >= ONE_MINUTE_S else seconds(value)


def rounded(value: float) -> float:
    """Round to three digits; a projection is not more precise than that."""
    return round(value, 2 - floor(log10(abs(value)))) if value else 0.0


def dollars(value: float) -> str:
    """Write dollars to three digits: $41,200."""
    return usd(rounded(value)) if value else "$0"


def dollars_span(span: Range) -> str:
    """Write dollars with their interval: $41,200 ($28,000 to $55,000)."""
    return f"{dollars(span.value)} ({ends(span, dollars)})"


def tokens_span(span: Range) -> str:
    return f"{si(span.value)} ({ends(span, si)})"


def days(value: float) -> str:
    """Write a length of time in a suitable unit: 3.1 days, 5.2 h, 20 min, 19 s."""
    if 0 < abs(value) * SECONDS_PER_DAY < ONE_MINUTE_S:
        return f"{value * SECONDS_PER_DAY:.0f}{NBSP}s"
    factor, unit, decimals = _unit(value)
    return f"{value * factor:.{decimals}f}{NBSP}{unit}"


def _unit(value: float) -> tuple[float, str, int]:
    """Choose a unit for a number of days: how many of it make a day, its name, its decimals."""
    if abs(value) >= FEW_DAYS:
        return 1.0, "days", 1
    is_hours = abs(value) * HOURS_PER_DAY >= FEW_HOURS
    return (HOURS_PER_DAY, "h", 1) if is_hours else (HOURS_PER_DAY * 60, "min", 0)


def days_span(span: Range) -> str:
    """Format a duration with its interval: 3.1 days (2.2 to 4.6)."""
    return f"{days(span.value)} ({days_ends(span)})"


def days_ends(span: Range) -> str:
    """Format the interval of a duration, in the unit of its value: 2.2 to 4.6."""
    factor, _, decimals = _unit(span.value)
    return ends(span, lambda value: f"{value * factor:.{decimals}f}")


def ends(span: Range, write: Callable[[float], str]) -> str:
    """Write an interval, which may be open at its high end."""
    if span.high is None:
        return f"{ABSENT if span.low is None else write(span.low)} or more"
    return f"{ABSENT if span.low is None else write(span.low)} to {write(span.high)}"


def written(assumption: Assumption) -> str:
    return WRITERS.get(assumption.name, _seconds)(assumption.value)


def ends_written(assumption: Assumption) -> str:
    """Write the interval of an assumption; empty where it has none."""
    if assumption.low is None or assumption.high is None:
        return ""
    write = WRITERS.get(assumption.name, _seconds)
    return f"{write(assumption.low)} to {write(assumption.high)}"


def basis_written(assumption: Assumption) -> str:
    """Format the interval and the source of an assumption."""
    return "; ".join(filter(None, (ends_written(assumption), assumption.basis)))


def length(value: float) -> str:
    """Write the length of a schedule: 14 days, 1 day."""
    return f"{value:g}{NBSP}{'day' if value == 1 else 'days'}"


def span_of(found: Projection) -> str:
    """Write what a schedule covers: over 14 days, or for 300G tokens."""
    if found.is_by_tokens:
        return f"for {si(found.tokens)} tokens ({days(found.days)})"
    return f"over {length(found.days)}"


def sentence(found: Projection, planned: tuple[Planned, ...], *, has_reuse: bool) -> str:
    """Summarise a schedule: whether two arms pay off, or what one arm costs.

    Where the arms are paid at different kinds of prices, equal price kinds come first.
    """
    kinds = kinds_of(planned)
    as_paid = _sentence(found, planned, has_reuse=has_reuse)
    if kinds is None or kinds.is_alike:
        return as_paid
    at_kinds = at_equal_kinds(found, planned)
    saved = found.scenario(has_reuse=has_reuse).saved_usd
    signs = {
        each.value > 0
        for _, other in at_kinds
        if (each := other.scenario(has_reuse=has_reuse).saved_usd) is not None
    }
    is_certain = signs == {saved is not None and saved.value > 0}
    parts = [] if is_certain else ["Cannot tell across price kinds."]
    parts += [
        f"At equal {common.kind.replace(' ', '-')} list prices "
        f"{_sentence(other, planned, has_reuse=has_reuse)}"
        for common, other in at_kinds
    ]
    if not at_kinds:
        parts.append("The catalogue lists no price kind for both.")
    return " ".join([*parts, f"As paid ({kinds.text}) {as_paid}"])


def assumption_sentence(planned: tuple[Planned, ...]) -> str:
    """Name the arms whose pace is assumed; empty where it was measured on all of them."""
    simulated = [each.label for each in planned if each.is_simulated]
    if not simulated:
        return ""
    return (
        f"{' and '.join(simulated)}: simulated. The pace follows from assumed constants of the "
        "step model. It is no measurement of real hardware."
    )


def engineers_sentence(asked: ScheduleRequest) -> str:
    """Write what the costs contain of engineers; empty without any."""
    parts = []
    if asked.porting_days:
        parts.append(
            f"{dollars(asked.porting_days * asked.engineer_usd)} for {asked.porting_days:g} "
            f"engineer-{'day' if asked.porting_days == 1 else 'days'} of porting"
        )
    if asked.waiting_engineers:
        people = "engineer who waits" if asked.waiting_engineers == 1 else "engineers who wait"
        parts.append(
            f"{dollars(asked.waiting_usd_per_day)} a day for {asked.waiting_engineers:g} {people}"
        )
    return f"The costs contain {' and '.join(parts)}." if parts else ""


def _sentence(found: Projection, planned: tuple[Planned, ...], *, has_reuse: bool) -> str:
    scenario = found.scenario(has_reuse=has_reuse)
    arm, even = scenario.arms[-1], scenario.break_even
    if even is None or scenario.saved_usd is None:
        if found.is_by_tokens:
            return (
                f"{si(found.tokens)} tokens on {arm.label} take "
                f"{days_span(arm.same_tokens_days)} and cost {dollars_span(arm.same_tokens_usd)}."
            )
        return (
            f"{length(found.days)} on {arm.label} cost {dollars(arm.same_days_usd)} "
            f"and train on {tokens_span(arm.same_days_tokens)} tokens."
        )
    parts = ["compile"] if planned[-1].habits.compile_s else []
    parts += ["porting"] if found.porting_usd else []
    investment = " and ".join(parts) or "start"
    text = (
        f"{_break_even(scenario, even, investment, found)}; "
        f"{_saved(scenario.saved_usd, span_of(found))}{_later(scenario)}."
    )
    if even.days is not None and even.chance_ratio < CERTAIN_RATIO:
        text = f"{text} In {100 * (1 - even.chance_ratio):.0f} of 100 cases it never does."
    return text


def _later(scenario: ReuseScenario) -> str:
    if scenario.extra_days is None:
        return ""
    baseline, candidate = scenario.arms
    before, after = baseline.same_tokens_days.value, candidate.same_tokens_days.value
    extra = scenario.extra_days.value
    if abs(extra) < SAME_DAYS_RATIO * before:
        return f" and takes about as long for the same tokens ({days(after)})"
    way = "longer" if extra > 0 else "less"
    factor, unit, decimals = _unit(after)
    size = f"{abs(extra) * factor:.{decimals}f}"
    written_size = f"{size}{NBSP}{unit}" if float(size) else days(abs(extra))
    return (
        f" and takes {written_size} {way} for the same tokens: {days(after)} instead of "
        f"{days(before)}"
    )


def _break_even(
    scenario: ReuseScenario, even: BreakEvenPoint, investment: str, found: Projection
) -> str:
    baseline, candidate = scenario.arms
    if even.days is None:
        text = f"{candidate.label} costs more for every token than {baseline.label}"
        if even.reason == Reason.AHEAD_AT_FIRST:
            return f"{text}, and is ahead at first only because it starts sooner"
        return f"{text}, so that it never earns back its {investment}"
    if even.reason == Reason.FROM_THE_START or even.days.value * SECONDS_PER_DAY < ONE_MINUTE_S:
        return f"{candidate.label} is ahead of {baseline.label} from its first step on"
    if even.days.value > found.days:
        within = days(found.days) if found.is_by_tokens else length(found.days)
        return (
            f"{candidate.label} does not earn back its {investment} within {within}, "
            f"that takes {days_span(even.days)}"
        )
    return f"{candidate.label} earns back its {investment} after {days_span(even.days)}"


def _saved(saved: Range, over: str) -> str:
    start = f"{over} it "
    if saved.low is None or saved.high is None:
        return f"{start}saves {dollars(saved.value)}"
    if saved.low < 0 < saved.high:
        way = "saves" if saved.value >= 0 else "costs"
        more = "" if saved.value >= 0 else " more"
        return (
            f"{start}{way} {dollars(abs(saved.value))}{more}, anything from {dollars(-saved.low)} "
            f"lost to {dollars(saved.high)} saved"
        )
    if saved.value < 0:
        turned = Range(-saved.value, -saved.high, -saved.low)
        return f"{start}costs {dollars(turned.value)} more ({ends(turned, dollars)})"
    return f"{start}saves {dollars_span(saved)}"


def reuse_sentence(found: Projection, planned: tuple[Planned, ...]) -> str:
    """Write what keeping compiled graphs saves the candidate, for the same tokens."""
    candidate = planned[-1]
    saved = found.reuse_saves[-1]
    if not candidate.habits.compile_s and not candidate.knows_compile:
        return (
            f"{candidate.label} does not report how long it compiles, so it is unknown what a "
            "compile cache saves it."
        )
    if not candidate.habits.compile_s:
        return f"{candidate.label} compiles nothing, so a compile cache saves it nothing."
    return (
        f"Keeping compiled graphs saves {candidate.label} {dollars_span(saved.usd)} and "
        f"{days_span(saved.days)} {span_of(found)}: every restart, and every unplanned "
        "recompile, finds them in the cache."
    )


def change_of(usd_saved: float) -> str:
    """Write dollars saved with their sign: +$41,200."""
    return f"{MINUS if usd_saved < 0 else '+'}{dollars(abs(usd_saved))}"


@dataclass(frozen=True, slots=True)
class ScheduleCell:
    """A figure as text, with a note: its interval, or where it comes from.

    ``of`` is its arm; ``is_other`` marks the scenario that was not chosen.
    """

    text: str
    note: str = ""
    of: str = ""
    is_other: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    name: str
    cells: tuple[ScheduleCell, ...]


@dataclass(frozen=True, slots=True)
class ScheduleColumn:
    label: str
    way: str
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class ScheduleCosts:
    """What a schedule costs: the baseline, then the candidate with reuse and without."""

    columns: tuple[ScheduleColumn, ...]
    rows: tuple[ScheduleRow, ...]


def costs_of(
    found: Projection, *, has_reuse: bool, planned: tuple[Planned, ...] = ()
) -> ScheduleCosts:
    """Tabulate the cost of a schedule, with the baseline in the chosen scenario.

    If the ``planned`` arms pay different kinds of prices, savings at equal kinds follow.
    """
    chosen = found.scenario(has_reuse=has_reuse)
    baseline = chosen.arms[0] if len(chosen.arms) > 1 else None
    columns = (
        [] if baseline is None else [ScheduleColumn(baseline.label, "baseline", is_chosen=True)]
    )
    columns += [
        ScheduleColumn(
            each.arms[-1].label,
            "graphs reused" if each.has_reuse else "without reuse",
            is_chosen=each.has_reuse == has_reuse,
        )
        for each in found.scenarios
    ]
    arms = [*([baseline] if baseline else []), *(each.arms[-1] for each in found.scenarios)]
    rows = [ScheduleRow(name, tuple(map(cell, arms))) for name, cell in _arm_rows(found)]
    if baseline is not None:
        first = ScheduleCell("")
        at_kinds = at_equal_kinds(found, planned)
        kinds = kinds_of(planned)
        rows += [
            ScheduleRow(
                f"saved on those tokens, {common.kind} list prices",
                (first, *(_cell(each.saved_usd, change_of) for each in other.scenarios)),
            )
            for common, other in at_kinds
        ]
        is_unlike = kinds is not None and not kinds.is_alike
        as_paid = ", as priced" if is_unlike else ""
        rows += [
            ScheduleRow(
                f"saved on those tokens{as_paid}",
                (first, *(_cell(each.saved_usd, change_of) for each in found.scenarios)),
            ),
            ScheduleRow(
                "longer than the baseline",
                (first, *(_cell(each.extra_days, days, days_ends) for each in found.scenarios)),
            ),
            ScheduleRow(
                f"break-even after{as_paid}",
                (
                    first,
                    *(
                        _cell(even.days, days, days_ends)
                        if (even := each.break_even) and even.days
                        else ScheduleCell("never", even.reason if even else "")
                        for each in found.scenarios
                    ),
                ),
            ),
        ]
    marked = (
        ScheduleRow(
            row.name,
            tuple(
                replace(cell, is_other=not column.is_chosen)
                for cell, column in zip(row.cells, columns, strict=True)
            ),
        )
        for row in rows
    )
    return ScheduleCosts(tuple(columns), tuple(marked))


def _arm_rows(found: Projection) -> list[tuple[str, Callable[[ArmCost], ScheduleCell]]]:
    return [
        (
            f"{days(found.days) if found.is_by_tokens else length(found.days)} cost",
            lambda arm: ScheduleCell(dollars(arm.same_days_usd)),
        ),
        ("tokens in them", lambda arm: _cell(arm.same_days_tokens, si)),
        (
            "$ per 1M tokens, start included",
            lambda arm: _cell(
                arm.usd_per_mtok, lambda value: usd(value) if value >= 1 else f"${value:.4f}"
            ),
        ),
        (f"{si(found.tokens)} tokens cost", lambda arm: _cell(arm.same_tokens_usd, dollars)),
        ("and take", lambda arm: _cell(arm.same_tokens_days, days, days_ends)),
        (
            "until the first step",
            lambda arm: ScheduleCell(
                days(arm.start_days), f"{dollars(arm.usd_at_first_step)} by then"
            ),
        ),
    ]


def _cell(
    span: Range | None,
    write: Callable[[float], str],
    write_ends: Callable[[Range], str] | None = None,
) -> ScheduleCell:
    if span is None:
        return ScheduleCell(ABSENT)
    return ScheduleCell(write(span.value), write_ends(span) if write_ends else ends(span, write))


def assumption_rows(planned: tuple[Planned, ...]) -> tuple[ScheduleRow, ...]:
    by_name = zip(*(each.assumptions for each in planned), strict=True)
    return tuple(
        ScheduleRow(
            NAMES[each[0].name],
            tuple(
                ScheduleCell(written(one), basis_written(one), arm.label)
                for one, arm in zip(each, planned, strict=True)
            ),
        )
        for each in by_name
    )


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
        return span_of(self.found)

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
    planned, found = project_request(planned, asked)
    return Schedule(asked, planned, found, as_of)
