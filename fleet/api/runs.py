"""Runs with their latest values, their steps, and similar runs."""

import math
from collections import Counter
from datetime import datetime
from typing import Literal

import numpy as np
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router

from fleet.api.auth import needs
from fleet.api.fields import (
    LABELS,
    LabelFilter,
    NullableText,
    OptionalTime,
    ResponseSchema,
    RunName,
    Text,
    conflict_on,
)
from fleet.api.nodes import set_retired
from fleet.api.paging import (
    Cursor,
    PageLinks,
    Paging,
    StretchOut,
    WindowQuery,
    cursor_number,
    page_links,
    paginate,
)
from fleet.charts.figures import mean_of
from fleet.costs.panel import round_to_cents
from fleet.costs.spending import stored_account
from fleet.metrics.long_term import long_term_history
from fleet.models import Alert, Run, SimilarRunsResult
from fleet.runs.similar_runs import measured_results, similar_runs_panel
from fleet.runs.summaries import RunNow, runs_now
from telemetry.steps import PHASES, StepBatch
from telemetry.store.history import run_history
from telemetry.store.hot import hot_store

router = Router(tags=["runs"])
MAX_STEPS = 1_000


class RunFigures(ResponseSchema):
    """Averages over the last minute of steps, at least five; null if unknown."""

    step_s: float | None = Field(description="Mean step, in seconds.", examples=[1.27])
    allreduce_share_ratio: float | None = Field(
        description="Exposed gradient all-reduce over step time, 0 to 1.", examples=[0.18]
    )
    wait_ratio: float | None = Field(description="Share of waiting for peers, 0 to 1.")
    transfer_ratio: float | None = Field(description="Share of moving gradients, 0 to 1.")
    tokens_per_s: float | None = Field(description="Tokens trained per second.")
    mfu_ratio: float | None = Field(
        description="Model FLOPs over the peak of the chips, 0 to 1.", examples=[0.41]
    )
    usd_per_mtok: float | None = Field(description="US dollars per million tokens at this pace.")
    last_step: int | None = Field(description="Number of the last step.")
    last_step_at_s: float | None = Field(description="When it ended, in Unix seconds.")
    is_stale: bool = Field(description="Whether steps have stopped arriving.")


class RunMoney(ResponseSchema):
    """Cost of a run by category, updated every minute, up to its last settled step."""

    until: datetime = Field(description="Time up to which costs are counted, UTC.")
    usd: dict[str, float] | None = Field(
        description="US dollars by category, to the cent; null without a price.",
        examples=[{"training": 812.5, "communication": 101.25, "compiling": 64.0, "idle": 3.0}],
    )
    total_usd: float | None = Field(description="Their sum, to the cent.", examples=[980.75])
    seconds: dict[str, float] = Field(description="Seconds by category.")
    settled_usd_per_mtok: float | None = Field(
        description="US dollars per million tokens of the steps since the warm-up."
    )
    whole_usd_per_mtok: float | None = Field(
        description="All costs per million tokens trained, each counted once."
    )
    usd_per_epoch: float | None = Field(
        description="US dollars per epoch since the warm-up; null if its tokens are unknown."
    )


class RunOut(ResponseSchema):
    """One training job."""

    id: int = Field(description="Number of the run.", examples=[7])
    name: str = Field(description="Unique name, used in URLs.", examples=["llama"])
    team: str = Field(description="Its team; empty if unknown.", examples=["LLM"])
    purpose: str = Field(description="Description in one line.")
    model: str = Field(description="Name of the model.", examples=["llama2-7b"])
    instance_type: str = Field(description="Instance type.", examples=["trn1.32xlarge"])
    n_nodes: int = Field(description="Number of nodes.", examples=[16])
    tp: int = Field(description="Tensor-parallel degree.", examples=[8])
    pp: int = Field(description="Pipeline-parallel degree.", examples=[1])
    cp: int | None = Field(
        description="Context-parallel degree; null if not reported.", examples=[1]
    )
    micro_batch: int | None = Field(
        description="Sequences computed at once; null if not reported.", examples=[1]
    )
    recompute: str | None = Field(
        description="What the backward pass computes again: none, selective or full; "
        "null if not reported.",
        examples=["selective"],
    )
    seq_len: int = Field(description="Tokens per sequence.", examples=[4096])
    global_batch: int = Field(description="Sequences per step.", examples=[1024])
    precision: str = Field(description="Precision of multiplications.", examples=["bf16"])
    labels: dict[str, str] = Field(description=LABELS, examples=[{"slurm_job_id": "8213"}])
    is_simulated: bool = Field(description="Whether trnwatch simulates it.")
    state: str = Field(description="active, over or retired.", examples=["active"])
    retired_at: datetime | None = Field(description="Since when it is retired, UTC.")
    retired_by: str = Field(
        description="Who retired it or brought it back; empty: automatically, or neither."
    )
    phase: str = Field(
        description="pending, compiling, warming_up, training, finished or failed.",
        examples=["training"],
    )
    phase_since: datetime = Field(description="When the phase began, UTC.")
    end_reason: str = Field(
        description="Why it failed, as it or its log says; empty if unknown.",
        examples=["NRT_EXEC_HW_ERR_HBM_UE on trn-03"],
    )
    standstill: str = Field(
        description="By its open alert: hangs, stopped (all workers are gone), or waiting (some "
        "have not arrived); else empty.",
        examples=[""],
    )
    stands_since: datetime | None = Field(description="Since when it makes no steps, UTC.")
    started_at: datetime = Field(description="When the run began, UTC.")
    finished_at: datetime | None = Field(description="When the run ended, UTC.")
    last_step: int = Field(description="Number of its last step in the database.")
    n_tokens: int = Field(description="Tokens trained, from the database.")
    usd_per_node_hour: float | None = Field(
        description="US dollars per node and hour at its start; null if unknown."
    )
    price_basis: str = Field(description="Source of that price.", examples=["on demand"])
    usd_per_hour: float | None = Field(description="US dollars per hour of the whole run, now.")
    usd_so_far: float | None = Field(description="US dollars so far; null if unknown.")
    tokens_per_epoch: int | None = Field(description="Tokens of one epoch; null if unknown.")
    planned_tokens: int | None = Field(description="Tokens planned; null if unknown.")
    money: RunMoney | None = Field(description="Cost by category; null until it was calculated.")
    allreduce_limit_ratio: float = Field(
        description="All-reduce share above which an alert fires, 0 to 1.", examples=[0.25]
    )
    n_open_alerts: int = Field(description="Open alerts that affect the run.")
    now: RunFigures = Field(description="Averages over the last minute of steps.")
    url: str = Field(description="Path of its page.", examples=["/runs/llama/"])


class RunPage(PageLinks):
    """A page of runs."""

    items: list[RunOut] = Field(description="The runs of this page.")
    sorted_by: str = Field(default="-id", description="Order: newest first.")


class StepOut(ResponseSchema):
    """One step of a run, or the average of several neighbouring steps."""

    step: int = Field(description="Number of the step; of several: of the last one.")
    ended_at_s: float = Field(description="When it ended, in Unix seconds.")
    n_steps: int | None = Field(
        description="Number of steps in this average; null if unknown.", examples=[1]
    )
    tokens: float | None = Field(description="Tokens trained in all these steps.")
    step_s: float | None = Field(description="Duration in seconds, mean over workers.")
    compute_s: float | None = Field(description="Computing, in seconds.")
    wait_s: float | None = Field(description="Waiting at the gradient collective, in seconds.")
    transfer_s: float | None = Field(description="Moving gradients, in seconds.")
    input_s: float | None = Field(description="Waiting for data, in seconds.")
    checkpoint_s: float | None = Field(description="Saving a checkpoint, in seconds.")
    other_s: float | None = Field(description="Anything else, in seconds.")
    other_comm_s: float | None = Field(
        description="Communication that exchanges no gradients, part of the above, in seconds; "
        "null if no source distinguishes it."
    )


class StepPage(PageLinks):
    """A page of a run's steps."""

    items: list[StepOut] = Field(description="The steps of this page.")
    sorted_by: str = Field(default="-step", description="Order: newest first.")
    since_s: int = Field(description="Start of the window, in Unix seconds.")
    until_s: int = Field(description="End of the window, exclusive, in Unix seconds.")
    stretches: list[StretchOut] = Field(description="Tier and resolution of each part.")


class DifferenceOut(ResponseSchema):
    """One setting that differs."""

    what: str = Field(
        description="precision, flags, neuronx-cc or Neuron SDK.", examples=["precision"]
    )
    mine: str = Field(description="Value of this run; flags: those that only it has, or none.")
    theirs: str = Field(description="Value of the other run.", examples=["fp8"])


class LikeOut(ResponseSchema):
    """A run with the same model, batch, instance type and number of nodes."""

    run: str = Field(description="Name of the other run.", examples=["llama-fp8"])
    differ: list[DifferenceOut] = Field(description="Settings that differ.")
    ratio: float = Field(
        description="Its tokens per second over this run's, minus one.", examples=[0.21]
    )
    is_assumed: bool = Field(description="Whether either run is simulated.")
    low: float | None = Field(
        description="Lower end of the 95 % interval; null: too few steps, or simulated."
    )
    high: float | None = Field(description="Upper end.")
    tokens_per_s: float = Field(description="Its settled tokens per second.")
    my_tokens_per_s: float = Field(description="Settled tokens per second of this run.")
    n_steps: int = Field(description="Its settled steps in the comparison.")
    my_n_steps: int = Field(description="Settled steps of this run in the comparison.")


class PredictionOut(ResponseSchema):
    """Prediction of the step model for a precision that no similar run has used."""

    precision: str = Field(description="The precision.", examples=["fp8"])
    ratio: float = Field(description="Predicted tokens per second over this run's, minus one.")
    tokens_per_s: float = Field(description="Predicted tokens per second.")
    spread_ratio: float | None = Field(
        None, description="9 of 10 predictions of published runs are within it; null: unknown."
    )
    basis: str = Field(
        "", description="published, or assumed: what the chip's constants rest on; empty: unknown."
    )


class SimilarRunsOut(ResponseSchema):
    """A run's settings against those of similar runs, updated every ten minutes."""

    run: str = Field(description="Name of the run.", examples=["llama"])
    precision: NullableText = Field(description="Precision of multiplications.")
    compiler_flags: NullableText = Field(description="Flags of neuronx-cc.")
    compiler_version: NullableText = Field(description="Version of neuronx-cc.")
    sdk_version: NullableText = Field(description="Version of the Neuron SDK.")
    headline: str = Field(description="The likely gain of other settings, as text.")
    measured: list[LikeOut] = Field(description="Similar runs, the most certain gain first.")
    predicted: list[PredictionOut] = Field(description="Precisions that no similar run has used.")
    unknown: list[str] = Field(description="What is unknown, as text.")
    worked_out_at: datetime | None = Field(description="When updated, UTC; null: not yet.")


class RunFilter(Paging):
    """Filter of runs."""

    state: Literal["", "active", "over", "retired"] = Field(
        "", description="active; over: ended; retired. Default: all but the retired."
    )
    phase: Literal["", "pending", "compiling", "warming_up", "training", "finished", "failed"] = (
        Field("", description="Phase of the run.")
    )
    team: Text = Field("", description="Team, exact match.", examples=["LLM"])
    label: LabelFilter = ""
    since: OptionalTime = Field(None, description="Started at or after: RFC 3339 or Unix seconds.")
    until: OptionalTime = Field(None, description="Started before.")


class StepFilter(WindowQuery):
    """Window of steps, and page."""

    cursor: Cursor = ""
    limit: int = Field(100, ge=1, le=MAX_STEPS, description="Most steps.")


@router.get("", response=RunPage, **needs("read"), summary="List runs")
def run_list(request: HttpRequest, query: Query[RunFilter]) -> RunPage:
    """List runs, newest first, each with averages over its last minute of steps."""
    rows, links = paginate(request, Run.objects.filter_by(**query.fields), query, by="-pk")
    return RunPage(items=_serialize(rows), **links)


@router.get("/{name}", response=RunOut, **needs("read"), summary="One run")
def run_one(request: HttpRequest, name: Path[RunName]) -> RunOut:
    """Get one run with averages over its last minute of steps."""
    return _serialize([get_object_or_404(Run, name=name)])[0]


@router.post("/{name}/retire", response=RunOut, **needs("act"), summary="Retire a run")
@conflict_on("run")
def run_retire(request: HttpRequest, name: Path[RunName]) -> RunOut:
    """Retire a run that will not report again; 409 if it reported in the last two minutes.

    Its history stays; an active run ends with its last report; the next one brings it back.
    """
    set_retired(request, get_object_or_404(Run, name=name), is_retired=True)
    return run_one(request, name)


@router.post("/{name}/unretire", response=RunOut, **needs("act"), summary="Bring a run back")
def run_unretire(request: HttpRequest, name: Path[RunName]) -> RunOut:
    """Show a retired run in lists again."""
    set_retired(request, get_object_or_404(Run, name=name), is_retired=False)
    return run_one(request, name)


def _serialize(runs: list[Run]) -> list[RunOut]:
    open_alerts = Alert.objects.open().exclude(run=None, parts=[]).select_related("run")
    of_runs = open_alerts.defer("run__plan", "run__clock")
    n_open = Counter(name for alert in of_runs for name in alert.runs)
    now = runs_now(hot_store(), runs, now_s=timezone.now().timestamp(), alerts=of_runs)
    return [_run(each, n_open_alerts=n_open[each.run.name]) for each in now]


def _run(now: RunNow, *, n_open_alerts: int) -> RunOut:
    run = now.run
    spent = run.usd_by(timezone.now())
    recipe = run.recipe or {}
    return RunOut.from_object(
        run,
        **{name: recipe.get(name) for name in ("cp", "micro_batch", "recompute")},
        standstill=now.standstill,
        stands_since=now.stands_since,
        state="retired" if run.retired_at else "over" if run.finished_at else "active",
        usd_per_node_hour=run.usd_per_node_hour or None,
        usd_per_hour=run.usd_per_hour or None,
        usd_so_far=None if math.isnan(spent) else round(spent, 2),
        money=_money(run),
        n_open_alerts=n_open_alerts,
        now=RunFigures.from_object(now, allreduce_share_ratio=now.share_ratio),
        url=run.get_absolute_url(),
    )


def _money(run: Run) -> RunMoney | None:
    account = stored_account(run)
    if account is None:
        return None
    usd = None if account.usd is None else round_to_cents(account.usd)
    settled = account.usd_per_mtok
    trained = account.settled_tokens + account.warm_tokens
    per_epoch = run.tokens_per_epoch
    return RunMoney(
        until=account.until,
        usd=usd,
        total_usd=None if usd is None else round(sum(usd.values()), 2),
        seconds={sort: round(value, 3) for sort, value in account.seconds.items()},
        settled_usd_per_mtok=settled,
        whole_usd_per_mtok=account.total_usd / trained * 1e6 if usd and trained else None,
        usd_per_epoch=settled * per_epoch / 1e6 if settled and per_epoch else None,
    )


@router.get("/{name}/steps", response=StepPage, **needs("read"), summary="A run's steps")
def run_steps(request: HttpRequest, name: Path[RunName], query: Query[StepFilter]) -> StepPage:
    """List steps that ended in a window, newest first, as means over workers.

    In windows with more than 2,000 steps that are no longer in the hot tier, an item is the
    average of `n_steps` neighbours, and `tokens` is their sum. `stretches` gives the resolution
    of each part.
    """
    run = get_object_or_404(Run, name=name)
    start, end = query.window(now=timezone.now())
    steps, stretches = run_history(
        hot_store(), run.name, start_s=start, end_s=end, long_term=long_term_history()
    )
    page, has_next, has_prev = _page(steps, query)
    items = _rows(page)
    links = page_links(
        request,
        items,
        key=lambda item: item.step,
        has_next=has_next,
        has_prev=has_prev,
        pinned={"since": str(start), "until": str(end)},
    )
    return StepPage(
        items=items,
        **links,
        since_s=start,
        until_s=end,
        stretches=[StretchOut.from_object(each, since_s=each.since) for each in stretches],
    )


def _page(steps: StepBatch, query: StepFilter) -> tuple[StepBatch, bool, bool]:
    """Return the steps of a page, ascending, and whether there are older and newer ones."""
    letter, _, key = query.cursor.partition(".")
    n = len(steps)
    if letter == "b":
        first = int(np.searchsorted(steps.step, cursor_number(key), "right"))
        last = min(n, first + query.limit)
    else:
        last = int(np.searchsorted(steps.step, cursor_number(key))) if letter else n
        first = max(0, last - query.limit)
    return steps[first:last], first > 0, last < n


def _rows(steps: StepBatch) -> list[StepOut]:
    """Return steps, newest first."""
    columns = {
        "step": steps.step,
        "ended_at_s": np.round(steps.ended_at_s, 3),
        "tokens": steps.all_tokens,
        "step_s": steps.step_s,
        **{phase: mean_of(steps.phases[phase]) for phase in PHASES},
        "other_comm_s": steps.other_comm_s,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    counts = [int(n) if np.isfinite(n) else None for n in steps.n_merged]
    items = [
        StepOut(n_steps=n, **dict(zip(columns, row, strict=True)))
        for n, row in zip(counts, rows, strict=True)
    ]
    return items[::-1]


@router.get("/{name}/like", response=SimilarRunsOut, **needs("read"), summary="Similar runs")
def run_like(request: HttpRequest, name: Path[RunName]) -> SimilarRunsOut:
    """Compare other settings with those of a run, measured on similar runs or predicted."""
    runs = Run.objects.select_related("similar_runs").defer("plan", "clock", "spending")
    run = get_object_or_404(runs, name=name)
    panel, stored = similar_runs_panel(run), getattr(run, "similar_runs", None)
    comparison = stored.comparison if isinstance(stored, SimilarRunsResult) else {}
    return SimilarRunsOut.from_object(
        run,
        run=run.name,
        headline=panel.headline,
        measured=measured_results(run, comparison),
        predicted=comparison.get("predicted", []),
        unknown=list(panel.unknown),
        worked_out_at=panel.updated_at,
    )
