"""Pagination by cursor, time windows, and If-Match."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Generic, TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest, QueryDict
from django.utils.http import parse_etags
from ninja import Field, Schema

from fleet.api.fields import EARLIEST, DocumentedSchema, OptionalTime, ResponseSchema, doc
from fleet.charts.windows import LONGEST_S
from fleet.models.problem import ProblemError
from telemetry.errors import LARGEST_KEY, whole_number
from telemetry.series import SeriesSource

T = TypeVar("T", bound=Model)
Row = TypeVar("Row", bound=ResponseSchema)
MAX_LIMIT = 200
Cursor = Annotated[
    str,
    Field(
        pattern=r"^(|[ab]\.[A-Za-z0-9._-]{1,80})$",
        description="From `next` or `prev` of a page; opaque. Default: the first page.",
    ),
]


class Paging(Schema):
    """The page of a list."""

    cursor: Cursor = ""
    limit: int = doc("Most rows.", 20, default=50, ge=1, le=MAX_LIMIT)

    @property
    def fields(self) -> dict[str, Any]:
        """The filter of the list, without cursor and limit."""
        return self.model_dump(exclude={"cursor", "limit"})


class PageLinks(DocumentedSchema):
    """The neighbouring pages of a page."""

    next: str | None = doc("Path of the next page; null on the last.")
    prev: str | None = doc("Path of the previous page; null on the first.")


class Page(PageLinks, Generic[Row]):
    """A page of a list."""

    items: list[Row] = doc("The rows of this page.")


class NewestFirst(Page[Row]):
    """A page of a list in the order of creation."""

    sorted_by: str = doc("Order: newest first.", default="-id")


def paginate(
    request: HttpRequest, rows: QuerySet[T], asked: Paging, *, by: str
) -> tuple[list[T], dict[str, Any]]:
    """Return one page of rows, ordered by a unique field (``-``: descending), and its links.

    A cursor is the letter a (after) or b (before) and the key of a row, so that new rows neither
    repeat nor hide others.
    """
    field, is_down = by.removeprefix("-"), by.startswith("-")
    letter, has_key, text = asked.cursor.partition(".")
    is_back = letter == "b"
    if has_key:
        key = text if field == "name" else cursor_number(text)
        beyond = "lt" if is_down is not is_back else "gt"
        rows = rows.filter(**{f"{field}__{beyond}": key})
    order = by if not is_back else (field if is_down else f"-{field}")
    listed = list(rows.order_by(order)[: asked.limit + 1])
    is_more = len(listed) > asked.limit
    page = listed[: asked.limit]
    if is_back:
        page.reverse()
    links = page_links(
        request,
        page,
        key=lambda row: getattr(row, field),
        has_next=is_back or is_more,
        has_prev=is_more if is_back else bool(has_key),
    )
    return page, links


def page_links(
    request: HttpRequest,
    page: Sequence[Any],
    *,
    key: Callable[[Any], object],
    has_next: bool,
    has_prev: bool,
    pinned: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return the fields of `PageLinks`; ``pinned`` parameters replace those of the request."""
    query = request.GET.copy()
    for name, value in (pinned or {}).items():
        query[name] = value

    def to(letter: str, row: Any) -> str:
        there: QueryDict = query.copy()
        there["cursor"] = f"{letter}.{key(row)}"
        return f"{request.path}?{there.urlencode()}"

    return {
        "next": to("a", page[-1]) if has_next and page else None,
        "prev": to("b", page[0]) if has_prev and page else None,
    }


def cursor_number(key: str) -> int:
    """Return a cursor's key as a number; 0, before every row, for anything else."""
    return whole_number(key, most=LARGEST_KEY) or 0


def check_unchanged(if_match: str | None, version: str) -> None:
    """Refuse with 412 unless If-Match is missing, ``*`` or the current version."""
    if if_match is None:
        return
    wanted = parse_etags(if_match)
    if wanted != ["*"] and f'"{version}"' not in wanted:
        detail = f'It has changed: its version is now "{version}". Read it again.'
        raise ProblemError(412, detail, field="If-Match", version=version)


DEFAULT_WINDOW = timedelta(minutes=15)


class WindowQuery(Schema):
    """A time window; one longer than 31 days starts 31 days before its end."""

    since: OptionalTime = doc(
        "Start of the window: RFC 3339 or Unix seconds. Default: 15 minutes "
        "before its end; at most 31 days before it.",
        "2026-11-21T14:30:00Z",
        default=None,
    )
    until: OptionalTime = doc(
        "End of the window, exclusive: RFC 3339 or Unix seconds. Default: now.",
        "2026-11-21T15:30:00Z",
        default=None,
    )

    def window(self, *, now: datetime) -> tuple[int, int]:
        """Return the window in Unix seconds; it is empty where it ends before its start."""
        end = min(self.until or now, now + timedelta(minutes=1))
        start = self.since or max(EARLIEST, end - DEFAULT_WINDOW)
        longest = max(EARLIEST, end - timedelta(seconds=LONGEST_S))
        start = min(max(start, longest), end)
        return int(start.astimezone(UTC).timestamp()), int(end.astimezone(UTC).timestamp())


class StretchOut(ResponseSchema, source=SeriesSource):
    """A part of a window with one storage tier and resolution."""

    since_s: int = doc("Start, in Unix seconds.")
    every_s = doc("Seconds between stored points; 0: every step.")
    tier: str = doc("hot, durable or long term.", "hot")
    why = doc("Why its data is missing; empty if it is not.")
