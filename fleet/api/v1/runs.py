"""Runs: which there are, how they train now, and their steps one by one."""

from typing import Literal

import numpy as np
from django.conf import settings
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router

from fleet.api.v1.access import needs
from fleet.api.v1.fields import Moment, RunName, Text
from fleet.api.v1.paging import Cursor, Paging, linked, number_of, paged
from fleet.api.v1.shapes.runs import RunOut, RunPage
from fleet.api.v1.shapes.steps import StepOut, StepPage, StretchOut
from fleet.api.v1.windows import Stretching
from fleet.charts.figures import mean_of
from fleet.long_term import long_term_history
from fleet.models import Run
from fleet.summaries import runs_now
from telemetry.steps import PHASES, StepBatch
from telemetry.store.history import run_history
from telemetry.store.hot import open_store

router = Router(tags=["runs"])
MOST_STEPS = 1_000


class RunFilter(Paging):
    """Which runs to list."""

    state: Literal["", "active", "over"] = Field("", description="Whether they are over.")
    phase: Literal["", "pending", "compiling", "warming_up", "training", "finished", "failed"] = (
        Field("", description="Where in their life they are.")
    )
    team: Text = Field("", description="Whose they are, exactly.", examples=["LLM"])
    since: Moment = Field(None, description="Started then or later: RFC 3339, or Unix seconds.")
    until: Moment = Field(None, description="Started before then.")

    def keep(self, runs: QuerySet[Run]) -> QuerySet[Run]:
        """Keep the runs asked for."""
        if self.state:
            runs = runs.filter(finished_at__isnull=self.state == "active")
        if self.phase:
            runs = runs.filter(phase=self.phase)
        if self.team:
            runs = runs.filter(team=self.team)
        if self.since:
            runs = runs.filter(started_at__gte=self.since)
        if self.until:
            runs = runs.filter(started_at__lt=self.until)
        return runs


class StepFilter(Stretching):
    """Which steps to list."""

    cursor: Cursor = ""
    limit: int = Field(100, ge=1, le=MOST_STEPS, description="How many steps at most.")


def _told(runs: list[Run]) -> list[RunOut]:
    counted = Run.objects.filter(pk__in=[run.pk for run in runs]).values_list("pk")
    n_open = dict(counted.annotate(n=Count("alerts", filter=Q(alerts__resolved_at=None))))
    now = runs_now(open_store(settings.REDIS_URL), runs, now_s=timezone.now().timestamp())
    return [RunOut.of(each, n_open_alerts=n_open[each.run.pk]) for each in now]


@router.get("", response=RunPage, openapi_extra=needs("read"), summary="List runs")
def run_list(request: HttpRequest, asked: Query[RunFilter]) -> RunPage:
    """List runs, the one first heard of last first, each with the last minute of its steps."""
    rows, links = paged(request, asked.keep(Run.objects.all()), asked, by="-pk")
    return RunPage(items=_told(rows), next=links.next, prev=links.prev)


@router.get("/{name}", response=RunOut, openapi_extra=needs("read"), summary="One run")
def run_one(request: HttpRequest, name: Path[RunName]) -> RunOut:
    """One run, with the last minute of its steps."""
    return _told([get_object_or_404(Run, name=name)])[0]


@router.get(
    "/{name}/steps", response=StepPage, openapi_extra=needs("read"), summary="A run's steps"
)
def run_steps(request: HttpRequest, name: Path[RunName], asked: Query[StepFilter]) -> StepPage:
    """List steps that ended in a window, the newest first, each the mean over its workers.

    In windows with more than 2,000 steps that the hot tier has no more, a row is several
    neighbours: `n_steps` says how many, seconds are their average and `tokens` those of all of
    them, so that tokens add up over the window. `stretches` says how finely each part is kept.
    """
    run = get_object_or_404(Run, name=name)
    start, end = asked.window(now=timezone.now())
    steps, stretches = run_history(
        open_store(settings.REDIS_URL),
        run.name,
        start_s=start,
        end_s=end,
        long_term=long_term_history(),
    )
    page, has_next, has_prev = _page(steps, asked)
    items = _rows(page)
    links = linked(
        request,
        items,
        key=lambda item: item.step,
        has_next=has_next,
        has_prev=has_prev,
        pinned={"since": str(start), "until": str(end)},
    )
    return StepPage(
        items=items,
        next=links.next,
        prev=links.prev,
        since_s=start,
        until_s=end,
        stretches=[StretchOut.of(each) for each in stretches],
    )


def _page(steps: StepBatch, asked: StepFilter) -> tuple[StepBatch, bool, bool]:
    """Return the steps of a page, rising, and whether there are older and newer ones."""
    letter, _, key = asked.cursor.partition(".")
    n = len(steps)
    if letter == "b":
        first = int(np.searchsorted(steps.step, number_of(key), "right"))
        last = min(n, first + asked.limit)
    else:
        last = int(np.searchsorted(steps.step, number_of(key))) if letter else n
        first = max(0, last - asked.limit)
    return steps[first:last], first > 0, last < n


def _rows(steps: StepBatch) -> list[StepOut]:
    """Tell steps, the newest first."""
    columns = {
        "step": steps.step,
        "ended_at_s": np.round(steps.ended_at_s, 3),
        "tokens": steps.all_tokens,
        "step_s": steps.step_s,
        **{phase: mean_of(steps.phases[phase]) for phase in PHASES},
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    counts = [int(n) if np.isfinite(n) else None for n in steps.n_merged]
    told = [
        StepOut(n_steps=n, **dict(zip(columns, row, strict=True)))
        for n, row in zip(counts, rows, strict=True)
    ]
    return told[::-1]
