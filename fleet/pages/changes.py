"""The change log: who changed the configuration, read from the rows that record it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

from django.core.paginator import Paginator
from django.db.models import CharField, F, QuerySet, Value
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from fleet.access.roles import has_role
from fleet.formatting import counted, usd
from fleet.models import (
    Annotation,
    Budget,
    ConfigurationChange,
    Node,
    Run,
    SampleRequest,
    SilenceEvent,
    TeamPrice,
    Token,
    Trial,
)
from fleet.pages.render import Filter, HtmxRequest, render_page
from fleet.pages.tables import Column, Table, moment

PER_PAGE = 50
# Annotations that training jobs write by themselves.
AUTOMATIC = (Annotation.Kind.CHECKPOINT, Annotation.Kind.COMPILE)
# Listed under their own kinds, not as annotations.
LISTED_APART = (*AUTOMATIC, Annotation.Kind.LIMIT)


CHANGES = Table(
    "changes",
    "newest first",
    (
        moment("at", "Time", "at", order="log_at"),
        Column("by", "Person", "by", "", "wide", "log_by"),
        Column("kind", "Kind", "kind", style="wide"),
        Column("text", "Change", "text"),
    ),
    is_stored=True,
)


@dataclass(frozen=True, slots=True)
class ChangeFilter(Filter):
    kind: str = ""
    who: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows that record changes of one kind: when, by which person, and how to describe one.

    ``role`` is the lowest role that may see them, that of the page with the rows.
    """

    kind: str
    rows: Callable[[], QuerySet[Any]]
    text: Callable[[Any], str]
    url: Callable[[Any], str]
    at: str = "at"
    by: str = "by"
    role: str = "viewer"

    def keys(self, name: str, who: str) -> QuerySet[Any, Any]:
        """Return time, person, source and key of the rows, alike for every source."""
        rows = self.rows().filter(**{self.by: who} if who else {}).exclude(**{self.at: None})
        source = Value(name, output_field=CharField())
        alike = {"log_at": F(self.at), "log_by": F(self.by), "log_of": source, "log_pk": F("pk")}
        keyed: QuerySet[Any, Any] = rows.order_by().annotate(**alike).values_list(*alike)
        return keyed

    def people(self) -> Iterable[str]:
        return self.rows().order_by().values_list(self.by, flat=True).distinct()


@dataclass(frozen=True, slots=True)
class Change:
    at: datetime
    by: str
    kind: str
    text: str
    url: str


def _annotation_url(row: Annotation) -> str:
    about = row.run or row.node
    return about.get_absolute_url() if about else ""


def _annotation_text(row: Annotation) -> str:
    about = f" on {row.run or row.node}" if row.run or row.node else ""
    return f"{row.get_kind_display().lower()}{about}: {row.text}"


def _silence_text(row: SilenceEvent) -> str:
    text = f": {row.text}" if row.text else ""
    return f"silence {row.get_kind_display().lower()}, {row.silence.matchers}{text}"


def _budget(row: Budget) -> str:
    return f"budget of {usd(row.usd)} for {row.team or row.run or 'the fleet'}"


def _price_text(row: TeamPrice) -> str:
    price = f"{usd(row.usd_per_node_hour)} per node-hour of {row.instance_type}"
    return f"price set: {price}, {row.get_basis_display()}, for {row.team or 'every team'}"


def _page(name: str) -> Callable[[Any], str]:
    return lambda _: reverse(name)


def _own(row: Any) -> str:
    return str(row.get_absolute_url())


def _token_text(row: Token) -> str:
    return f"token {row.name} of scope {row.scope}"


SOURCES: Mapping[str, Source] = {
    "notification": Source(
        "notifications",
        lambda: ConfigurationChange.objects.filter(kind=ConfigurationChange.Kind.NOTIFICATIONS),
        lambda row: str(row.text),
        _page("notification-list"),
    ),
    "silence": Source(
        "silences",
        lambda: SilenceEvent.objects.select_related("silence"),
        _silence_text,
        lambda row: str(row.silence.get_absolute_url()),
    ),
    "annotation": Source(
        "annotations",
        lambda: Annotation.objects.exclude(kind__in=LISTED_APART).select_related("run", "node"),
        _annotation_text,
        _annotation_url,
    ),
    "limit": Source(
        "limits",
        lambda: Annotation.objects.filter(kind=Annotation.Kind.LIMIT).select_related(
            "run", "node"
        ),
        lambda row: f"{row.run}: {row.text}",
        _annotation_url,
    ),
    "trial": Source(
        "trials",
        Trial.objects.all,
        lambda row: f"trial {row.name} created",
        _own,
        at="created_at",
        by="created_by",
    ),
    "node": Source(
        "retirements",
        lambda: Node.objects.exclude(retired_by=""),
        lambda row: f"node {row.name} retired",
        _own,
        at="retired_at",
        by="retired_by",
    ),
    "run": Source(
        "retirements",
        lambda: Run.objects.exclude(retired_by="").defer("plan", "clock"),
        lambda row: f"run {row.name} retired",
        _own,
        at="retired_at",
        by="retired_by",
    ),
    "sample": Source(
        "samples",
        lambda: SampleRequest.objects.select_related("node").defer("answer"),
        lambda row: f"sample of node {row.node.name} requested",
        _own,
        at="requested_at",
        by="requested_by",
    ),
    "price": Source(
        "prices",
        TeamPrice.objects.all,
        _price_text,
        _page("price-list"),
        at="set_at",
        by="set_by",
        role="lead",
    ),
    "budget": Source(
        "budgets",
        lambda: Budget.objects.select_related("run"),
        lambda row: f"{_budget(row)} set",
        _page("budget-list"),
        at="set_at",
        by="set_by",
        role="lead",
    ),
    "budget-end": Source(
        "budgets",
        lambda: Budget.objects.select_related("run"),
        lambda row: f"{_budget(row)} withdrawn",
        _page("budget-list"),
        at="ended_at",
        by="ended_by",
        role="lead",
    ),
    "person": Source(
        "people",
        lambda: ConfigurationChange.objects.filter(kind=ConfigurationChange.Kind.PEOPLE),
        lambda row: str(row.text),
        _page("people-list"),
        role="admin",
    ),
    "token": Source(
        "tokens",
        Token.objects.all,
        lambda row: f"{_token_text(row)} created",
        _page("token-list"),
        at="created_at",
        by="created_by",
        role="admin",
    ),
    "token-end": Source(
        "tokens",
        Token.objects.all,
        lambda row: f"{_token_text(row)} revoked",
        _page("token-list"),
        at="revoked_at",
        by="revoked_by",
        role="admin",
    ),
}
# Who did what no person did.
UNNAMED = {"tokens": "command line", "people": "command line"}


def keys_of(sources: Mapping[str, Source], who: str = "") -> QuerySet[Any, Any]:
    every = [source.keys(name, who) for name, source in sources.items()]
    return reduce(lambda one, other: one.union(other, all=True), every)


def changes_of(keys: Iterable[tuple[datetime, str, str, int]]) -> list[Change]:
    """Read the rows of some keys, in their order; one query for each source."""
    keys, wanted = list(keys), defaultdict(set)
    for _, _, name, pk in keys:
        wanted[name].add(pk)
    rows = {name: SOURCES[name].rows().in_bulk(pks) for name, pks in wanted.items()}
    changes = []
    for at, by, name, pk in keys:
        source = SOURCES[name]
        if row := rows[name].get(pk):
            named = by or UNNAMED.get(source.kind, "trnwatch")
            changes.append(Change(at, named, source.kind, source.text(row), source.url(row)))
    return changes


@require_safe
def change_list(request: HtmxRequest) -> HttpResponse:
    """List the changes of the configuration, the newest first."""
    keep = ChangeFilter.of(request.GET.dict())
    shown = {name: each for name, each in SOURCES.items() if has_role(request.user, each.role)}
    kinds = list(dict.fromkeys(each.kind for each in shown.values()))
    kind = keep.kind if keep.kind in kinds else ""
    wanted = {name: each for name, each in shown.items() if kind in ("", each.kind)}
    keys = keys_of(wanted, keep.who).order_by("-log_at", "-log_pk")
    table = CHANGES.by(keep.given, lambda t: changes_of(t.ordered(keys)))
    page = Paginator(table.ordered(keys), PER_PAGE).get_page(request.GET.get("page", "1"))
    people = sorted({name for each in shown.values() for name in each.people() if name})
    context = {
        "keep": keep,
        "table": table,
        "kinds": kinds,
        "people": people,
        "page": page,
        "changes": changes_of(page.object_list),
        "total": counted(page.paginator.count, "change"),
    }
    return render_page(request, "pages/change_list.html", context)
