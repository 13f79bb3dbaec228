"""Render a whole page, or only the partial that htmx replaces."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, cast

from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.utils.http import urlencode
from django_htmx.middleware import HtmxDetails

from fleet.pages.frozen import past_window
from fleet.pages.tables import TableView

LONGEST = 100
NO_FILTERS = frozenset({"sort", "at"})
WEEK_DAYS = 7


@dataclass(frozen=True, slots=True)
class Filter:
    """A list filter with the parameters of an address as text fields; for dataclasses.

    An empty field matches everything. ``sort`` is how the list is sorted: `fleet.pages.tables`;
    ``at`` is the time that it is asked for, so that every link within the list keeps it.
    """

    sort: str = ""
    at: str = ""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        return cls(**{name: query.get(name, "").strip()[:LONGEST] for name in cls.names()})

    @property
    def given(self) -> dict[str, str]:
        """Its parameters that are not empty."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def query(self) -> str:
        return urlencode(self.given)

    @property
    def words(self) -> str:
        """Return the filter as text: state firing, run llama."""
        return ", ".join(
            f"{name} {text}" for name, text in self.given.items() if name not in NO_FILTERS
        )


def with_page(query: str, number: int) -> str:
    """Return a filter's query with the page number; the first page is left out."""
    return "&".join(filter(None, (query, f"page={number}" if number > 1 else "")))


def period_days(request: HttpRequest, choices: Collection[int]) -> int:
    """Return the days that the address asks for; a week, unless they are one of ``choices``."""
    asked = {str(choice): choice for choice in choices}
    return asked.get(request.GET.get("days", ""), WEEK_DAYS)


class HtmxRequest(HttpRequest):
    """A request that has passed django-htmx's middleware."""

    htmx: HtmxDetails


def render_page(
    request: HtmxRequest,
    template: str,
    context: Mapping[str, Any],
    *,
    partials: Collection[str] = (),
    status: int | None = None,
) -> HttpResponse:
    """Render ``template``, or only the partial whose element htmx wants to replace.

    A partial, the element it fills and the entry in ``partials`` share one name. Without a
    ``status`` it is 422 where a form of the context has errors. ``?csv=`` names a table of the
    context whose rows are the answer. Where the address asks for a past time, templates know it
    as ``past``: a page that is not ``frozen`` says that it shows the present.
    """
    if asked := request.GET.get("csv"):
        tables = (each for each in context.values() if type(each) is TableView)
        if table := next((each for each in tables if each.table.name == asked), None):
            # It is streamed; views only pass it on.
            return cast("HttpResponse", table.response(request))
    if status is None:
        # Unlike isinstance, this does not compute a lazy value.
        forms = [each for each in context.values() if issubclass(type(each), BaseForm)]
        status = 422 if any(form.errors for form in forms) else 200
    target = request.htmx.target
    name = f"{template}#{target}" if target in partials else template
    past = past_window(request.GET.dict(), now=timezone.now())
    response = render(request, name, {"past": past, **context}, status=status)
    patch_vary_headers(response, ["HX-Request", "HX-Target"])
    return response
