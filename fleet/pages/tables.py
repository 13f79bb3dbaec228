"""Tables of pages: their columns, how an address sorts them, and all their rows as CSV.

A page names the columns of a table once. Its heads, ``?sort=`` and ``?csv=`` follow from them:
``sort=step_s`` sorts by a column, ``sort=-step_s`` the largest first, ``csv=runs`` returns all
rows of the table of that name, in the same order.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import numpy as np
from django.db.models import F, Model, QuerySet, Value
from django.db.models.functions import NullIf
from django.http import HttpRequest, StreamingHttpResponse
from django.utils import timezone
from django.utils.http import urlencode
from numpy.typing import ArrayLike

from fleet.formatting import csv_text
from fleet.pages.streaming import stream
from telemetry.blocks import FloatArray, IntArray

# What belongs to one page of a list, or to no page.
TRANSIENT = ("page", "csv")
LONGEST_KEY = 40
# Rows that are read and written at a time.
ROWS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    ``value`` is what is sorted and written to CSV, by a function or the path of an attribute; its
    ``unit`` stands in the head of the CSV. ``style`` are classes of its head on the page; None: it
    is in the CSV only. ``order`` is its path in the database, for tables that it sorts.
    """

    key: str
    title: str
    value: Callable[[Any], object] | str
    unit: str = ""
    style: str | None = ""
    order: str = ""
    largest_first: bool = False

    @property
    def is_text(self) -> bool:
        return not self.unit and not self.largest_first

    def of(self, row: Any) -> object:
        return attrgetter(self.value)(row) if isinstance(self.value, str) else self.value(row)


def number(
    key: str,
    title: str,
    value: Callable[[Any], object] | str,
    unit: str = "",
    *,
    style: str | None = "num",
    order: str = "",
) -> Column:
    """Return a column of numbers: its head sorts the largest first."""
    return Column(key, title, value, unit, style, order, largest_first=True)


def moment(
    key: str,
    title: str,
    value: Callable[[Any], object] | str,
    *,
    style: str | None = "",
    order: str = "",
) -> Column:
    """Return a column of times: its head sorts the newest first."""
    return Column(key, title, value, "UTC", style, order, largest_first=True)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column: the query that sorts by it, or the other way round; empty: none."""

    title: str
    style: str
    query: str
    aria_sort: str


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a table; ``usual`` names the order of its rows without ``?sort=``.

    ``parameter`` is the one that sorts it: a page has one for each table. A table that the
    database sorts ``is_stored``: its columns without ``order`` cannot be sorted. ``anchor`` is
    where its heads lead to, ``#resolved``, if it is not at the top of its page.
    """

    name: str
    usual: str
    columns: tuple[Column, ...]
    parameter: str = "sort"
    is_stored: bool = False
    anchor: str = ""

    def by(
        self,
        query: Mapping[str, str],
        rows: Callable[["TableView"], Iterable[Any]],
        *,
        file: str = "",
    ) -> "TableView":
        """Return the table as an address asks for it; ``rows`` returns all of them for CSV."""
        sort = query.get(self.parameter, "")[:LONGEST_KEY]
        column = next((c for c in self.columns if c.key == sort.lstrip("-")), None)
        if column is not None and not self.sorts(column):
            column = None
        kept = {k: v for k, v in query.items() if v and k not in (self.parameter, *TRANSIENT)}
        return TableView(self, column, sort, kept, rows, file or self.name)

    def sorts(self, column: Column) -> bool:
        return column.style is not None and bool(column.order or not self.is_stored)


@dataclass(frozen=True, slots=True)
class TableView:
    """A table, sorted by a ``column``; None: in its usual order."""

    table: Table
    column: Column | None
    sort: str
    kept: dict[str, str]
    rows_of: Callable[["TableView"], Iterable[Any]]
    file: str

    @property
    def descends(self) -> bool:
        return self.sort.startswith("-")

    @property
    def order(self) -> str:
        """The order in words."""
        if self.column is None:
            return self.table.usual
        return f"by {self.column.title}, {'descending' if self.descends else 'ascending'}"

    @property
    def unknown(self) -> str:
        """What the address asks to sort by, if that is no column."""
        return self.sort if self.column is None else ""

    @property
    def heads(self) -> list[Head]:
        heads = []
        for column in self.table.columns:
            if column.style is None:
                continue
            is_other = column is not self.column
            descends = column.largest_first if is_other else not self.descends
            query = self._query(f"{'-' if descends else ''}{column.key}")
            aria = "" if is_other else "descending" if self.descends else "ascending"
            can_sort = self.table.sorts(column)
            heads.append(Head(column.title, column.style, query if can_sort else "", aria))
        return heads

    @property
    def usual_query(self) -> str:
        return self._query("")

    @property
    def csv_query(self) -> str:
        return "&".join(filter(None, (self._query(self.sort), f"csv={self.table.name}")))

    def _query(self, sort: str) -> str:
        return urlencode(self.kept | ({self.table.parameter: sort} if sort else {}))

    @property
    def rows(self) -> list[Any]:
        return list(self.rows_of(self))

    def sorted(self, rows: Iterable[Any]) -> list[Any]:
        """Sort rows that stand in the usual order; unknown values come last in any case."""
        column = self.column
        if column is None:
            return list(rows)
        keyed = [(_key(column.of(row)), row) for row in rows]
        known = [each for each in keyed if each[0] is not None]
        known.sort(key=lambda each: each[0], reverse=self.descends)
        return [row for _, row in chain(known, (each for each in keyed if each[0] is None))]

    def ordered(self, rows: "QuerySet[Any, Any]") -> "QuerySet[Any, Any]":
        """Sort rows in the database; equal ones stay in their usual order."""
        if self.column is None or not self.column.order:
            return rows
        path, usual = self.column.order, rows.query.order_by or rows.model._meta.ordering
        if rows.query.combinator:
            # A union is ordered by the names of its columns, none of which is empty.
            return rows.order_by(f"{'-' if self.descends else ''}{path}", *usual)
        # An empty text is unknown, too.
        key = NullIf(path, Value("")) if self.column.is_text else F(path)
        by = key.desc(nulls_last=True) if self.descends else key.asc(nulls_last=True)
        return rows.order_by(by, *usual)

    def places(self, values: ArrayLike) -> IntArray:
        """Return the order of some values, NaN and empty texts last: (n,)."""
        column = np.asarray(values)
        numbers: FloatArray
        if column.dtype.kind in "OU":
            names, place = np.unique(column.astype(str), return_inverse=True)
            numbers = np.where(names[place] == "", np.nan, place) if len(names) else np.zeros(0)
        else:
            numbers = column.astype(float)
        return np.argsort(-numbers if self.descends else numbers, kind="stable")

    def response(self, request: HttpRequest) -> StreamingHttpResponse:
        """Stream all rows as CSV; the first of them are read before anything is sent."""
        columns = [column for column in self.table.columns if column.title]
        heads = [f"{c.title} ({c.unit})" if c.unit else c.title for c in columns]
        rows = iter(self.rows_of(self))
        pieces = _pieces(heads, columns, rows)
        first = next(pieces)
        name = f"trnwatch-{self.file}-{timezone.now():%Y-%m-%d}.csv"
        return stream(
            request,
            chain([first], pieces),
            "text/csv; charset=utf-8",
            headers={
                "Content-Disposition": f'attachment; filename="{name}"',
                "Cache-Control": "no-store",
            },
            reads_database=True,
        )


def _pieces(heads: list[str], columns: list[Column], rows: Iterator[Any]) -> Iterator[bytes]:
    cells: list[list[object]] = [list(heads)]
    while some := list(islice(rows, ROWS_AT_ONCE)):
        cells += [[column.of(row) for column in columns] for row in some]
        yield csv_text(cells).encode()
        cells = []
    if cells:
        yield csv_text(cells).encode()


def _key(value: object) -> Any:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    return str(value).casefold() if isinstance(value, str | Model) else value


def in_chunks(
    rows: "QuerySet[Any, Any]", convert: Callable[[list[Any]], Iterable[Any]]
) -> Iterator[Any]:
    """Read rows for CSV some at a time, each lot as what a page shows of it."""
    read = rows.iterator(chunk_size=ROWS_AT_ONCE)
    while some := list(islice(read, ROWS_AT_ONCE)):
        yield from convert(some)
