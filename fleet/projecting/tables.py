"""A schedule as tables: what it costs on each arm, and what it is reckoned with."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from fleet.projecting.planned import Planned
from fleet.projecting.projecting import (
    ArmCost,
    Even,
    Projection,
    Scenario,
    Span,
    at_equal_kinds,
    kinds_of,
)
from fleet.projecting.words import (
    NAMES,
    basis_written,
    change_of,
    days,
    days_ends,
    dollars,
    ends,
    length,
    written,
)
from fleet.templatetags.units import ABSENT, si, usd


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure as people read it, and below it its interval or where it comes from.

    ``of`` is its arm; ``is_other`` where it belongs to the way that was not asked about.
    """

    text: str
    note: str = ""
    of: str = ""
    is_other: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column: an arm under one way to go."""

    label: str
    way: str
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Costs:
    """What a schedule costs: the baseline, then the candidate with reuse and without."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def costs_of(found: Projection, *, has_reuse: bool, planned: tuple[Planned, ...] = ()) -> Costs:
    """Return what a schedule costs, the baseline under the way that is asked about.

    With ``planned`` arms that are paid on unlike terms, savings at equal price kinds as well.
    """
    chosen = found.scenario(has_reuse=has_reuse)
    baseline = chosen.arms[0] if len(chosen.arms) > 1 else None
    columns = [] if baseline is None else [Column(baseline.label, "baseline", is_chosen=True)]
    columns += [
        Column(
            each.arms[-1].label,
            "graphs reused" if each.has_reuse else "without reuse",
            is_chosen=each.has_reuse == has_reuse,
        )
        for each in found.scenarios
    ]
    arms = [*([baseline] if baseline else []), *(each.arms[-1] for each in found.scenarios)]
    rows = [Row(name, tuple(map(cell, arms))) for name, cell in _of_arms(found)]
    if baseline is not None:
        at_kinds = at_equal_kinds(found, planned)
        kinds = kinds_of(planned)
        rows += [
            Row(
                f"saved on those tokens, {common.kind} list prices",
                (Cell(""), *(_saved(each.saved_usd) for each in other.scenarios)),
            )
            for common, other in at_kinds
        ]
        is_unlike = kinds is not None and not kinds.is_alike
        rows += _against(found.scenarios, as_paid=", as paid" if is_unlike else "")
    marked = (
        Row(
            row.name,
            tuple(
                replace(cell, is_other=not column.is_chosen)
                for cell, column in zip(row.cells, columns, strict=True)
            ),
        )
        for row in rows
    )
    return Costs(tuple(columns), tuple(marked))


def _of_arms(found: Projection) -> list[tuple[str, Callable[[ArmCost], Cell]]]:
    return [
        (
            f"{days(found.days) if found.is_by_tokens else length(found.days)} cost",
            lambda arm: Cell(dollars(arm.same_days_usd)),
        ),
        ("tokens in them", lambda arm: _cell(arm.same_days_tokens, si)),
        ("$ per 1M tokens, start included", lambda arm: _cell(arm.usd_per_mtok, _cents)),
        (f"{si(found.tokens)} tokens cost", lambda arm: _cell(arm.same_tokens_usd, dollars)),
        ("and take", lambda arm: _time(arm.same_tokens_days)),
        (
            "until the first step",
            lambda arm: Cell(days(arm.start_days), f"{dollars(arm.usd_at_first_step)} by then"),
        ),
    ]


def _against(scenarios: tuple[Scenario, ...], *, as_paid: str) -> list[Row]:
    """Return what the candidate saves, how much longer it takes, and when the saving begins."""
    first = Cell("")
    saved = (first, *(_saved(each.saved_usd) for each in scenarios))
    return [
        Row(f"saved on those tokens{as_paid}", saved),
        Row("longer than the baseline", (first, *(_later(each.extra_days) for each in scenarios))),
        Row(f"earned back after{as_paid}", (first, *(_even(e.break_even) for e in scenarios))),
    ]


def _later(span: Span | None) -> Cell:
    return Cell(ABSENT) if span is None else Cell(days(span.value), days_ends(span))


def _cents(value: float) -> str:
    return usd(value) if value >= 1 else f"${value:.4f}"


def _cell(span: Span | None, write: Callable[[float], str]) -> Cell:
    return Cell(ABSENT) if span is None else Cell(write(span.value), ends(span, write))


def _time(span: Span) -> Cell:
    return Cell(days(span.value), days_ends(span))


def _saved(span: Span | None) -> Cell:
    return Cell(ABSENT) if span is None else Cell(change_of(span.value), ends(span, change_of))


def _even(even: Even | None) -> Cell:
    if even is None or even.days is None:
        return Cell("never", even.reason if even else "")
    return Cell(days(even.days.value), days_ends(even.days))


def assumed(planned: tuple[Planned, ...]) -> tuple[Row, ...]:
    """Return every figure that is reckoned with, a cell for each arm."""
    by_name = zip(*(each.assumptions for each in planned), strict=True)
    return tuple(
        Row(
            NAMES[each[0].name],
            tuple(
                Cell(written(one), basis_written(one), arm.label)
                for one, arm in zip(each, planned, strict=True)
            ),
        )
        for each in by_name
    )
