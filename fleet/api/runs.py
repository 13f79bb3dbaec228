"""Runs with their latest values, their steps, and similar runs."""

import math
from collections import Counter
from datetime import datetime
from typing import Literal

import numpy as np
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Path, Query, Router

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
    doc,
)
from fleet.api.nodes import set_retired
from fleet.api.paging import (
    Cursor,
    NewestFirst,
    Page,
    Paging,
    StretchOut,
    WindowQuery,
    cursor_number,
    page_links,
    paginate,
)
from fleet.costs.panel import round_to_cents
from fleet.costs.spending import Account, stored_account
from fleet.metrics.long_term import long_term_history
from fleet.models import Alert, Run, SimilarRunsResult
from fleet.runs.similar_runs import (
    SettingDifference,
    SimilarRun,
    measured_results,
    similar_runs_panel,
)
from fleet.runs.summaries import RunNow, runs_now
from telemetry.blocks import mean
from telemetry.steps import PHASES, StepBatch
from telemetry.store.history import run_history
from telemetry.store.hot import hot_store

router = Router(tags=["runs"])
MAX_STEPS = 1_000


class RunFigures(ResponseSchema, source=RunNow):
    """Averages over the last minute of steps, at least five; null if unknown."""

    step_s = doc("Mean step, in seconds.", 1.27)
    allreduce_share_ratio: float | None = doc(
        "Exposed gradient all-reduce over step time, 0 to 1.", 0.18
    )
    wait_ratio = doc("Share of waiting for peers, 0 to 1.")
    transfer_ratio = doc("Share of moving gradients, 0 to 1.")
    tokens_per_s = doc("Tokens trained per second.")
    mfu_ratio = doc("Model FLOPs over the peak of the chips, 0 to 1.", 0.41)
    usd_per_mtok = doc("US dollars per million tokens at this pace.")
    last_step = doc("Number of the last step.")
    last_step_at_s = doc("When it ended, in Unix seconds.")
    is_stale = doc("Whether steps have stopped arriving.")


class RunMoney(ResponseSchema, source=Account):
    """Cost of a run by category, updated every minute, up to its last settled step."""

    until = doc("Time up to which costs are counted, UTC.")
    usd: dict[str, float] | None = doc(
        "US dollars by category, to the cent; null without a price.",
        {"training": 812.5, "communication": 101.25, "compiling": 64.0, "idle": 3.0},
    )
    total_usd: float | None = doc("Their sum, to the cent.", 980.75)
    seconds: dict[str, float] = doc("Seconds by category.")
    settled_usd_per_mtok: float | None = doc(
        "US dollars per million tokens of the steps since the warm-up."
    )
    whole_usd_per_mtok: float | None = doc(
        "All costs per million tokens trained, each counted once."
    )
    usd_per_epoch: float | None = doc(
        "US dollars per epoch since the warm-up; null if its tokens are unknown."
    )


class RunOut(ResponseSchema, source=Run):
    """One training job."""

    id = doc("Number of the run.", 7)
    name: str = doc("Unique name, used in URLs.", "llama")
    team = doc("Its team; empty if unknown.", "LLM")
    purpose = doc("Description in one line.")
    model = doc("Name of the model.", "llama2-7b")
    instance_type = doc("Instance type.", "trn1.32xlarge")
    n_nodes = doc("Number of nodes.", 16)
    tp = doc("Tensor-parallel degree.", 8)
    pp = doc("Pipeline-parallel degree.", 1)
    cp: int | None = doc("Context-parallel degree; null if not reported.", 1)
    micro_batch: int | None = doc("Sequences computed at once; null if not reported.", 1)
    recompute: str | None = doc(
        "What the backward pass computes again: none, selective or full; null if not reported.",
        "selective",
    )
    seq_len = doc("Tokens per sequence.", 4096)
    global_batch = doc("Sequences per step.", 1024)
    precision = doc("Precision of multiplications.", "bf16")
    labels: dict[str, str] = doc(LABELS, {"slurm_job_id": "8213"})
    is_simulated = doc("Whether trnwatch simulates it.")
    state: str = doc("active, over or retired.", "active")
    retired_at = doc("Since when it is retired, UTC.")
    retired_by = doc("Who retired it or brought it back; empty: automatically, or neither.")
    phase = doc("pending, compiling, warming_up, training, finished or failed.", "training")
    phase_since = doc("When the phase began, UTC.")
    end_reason = doc(
        "Why it failed, as it or its log says; empty if unknown.",
        "NRT_EXEC_HW_ERR_HBM_UE on trn-03",
    )
    standstill: str = doc(
        "By its open alert: hangs, stopped (all workers are gone), refused (its reports are), or "
        "waiting (some workers have not arrived); else empty.",
        "",
    )
    stands_since: datetime | None = doc("Since when it makes no steps, UTC.")
    started_at = doc("When the run began, UTC.")
    finished_at = doc("When the run ended, UTC.")
    last_step = doc("Number of its last step in the database.")
    n_tokens = doc("Tokens trained, from the database.")
    usd_per_node_hour: float | None = doc(
        "US dollars per node and hour at its start; null if unknown."
    )
    price_basis = doc("Source of that price.", "on demand")
    usd_per_hour: float | None = doc("US dollars per hour of the whole run, now.")
    usd_so_far: float | None = doc("US dollars so far; null if unknown.")
    tokens_per_epoch = doc("Tokens of one epoch; null if unknown.")
    planned_tokens = doc("Tokens planned; null if unknown.")
    money: RunMoney | None = doc("Cost by category; null until it was calculated.")
    allreduce_limit_ratio = doc("All-reduce share above which an alert fires, 0 to 1.", 0.25)
    n_open_alerts: int = doc("Open alerts that affect the run.")
    now: RunFigures = doc("Averages over the last minute of steps.")
    url: str = doc("Path of its page.", "/runs/llama/")


class RunPage(NewestFirst[RunOut]):
    """A page of runs."""


class StepOut(ResponseSchema):
    """One step of a run, or the average of several neighbouring steps."""

    step: int = doc("Number of the step; of several: of the last one.")
    ended_at_s: float = doc("When it ended, in Unix seconds.")
    n_steps: int | None = doc("Number of steps in this average; null if unknown.", 1)
    tokens: float | None = doc("Tokens trained in all these steps.")
    step_s: float | None = doc("Duration in seconds, mean over workers.")
    compute_s: float | None = doc("Computing, in seconds.")
    wait_s: float | None = doc("Waiting at the gradient collective, in seconds.")
    transfer_s: float | None = doc("Moving gradients, in seconds.")
    input_s: float | None = doc("Waiting for data, in seconds.")
    checkpoint_s: float | None = doc("Saving a checkpoint, in seconds.")
    other_s: float | None = doc("Anything else, in seconds.")
    other_comm_s: float | None = doc(
        "Communication that exchanges no gradients, part of the above, in seconds; null if no "
        "source distinguishes it."
    )


class StepPage(Page[StepOut]):
    """A page of a run's steps."""

    sorted_by: str = doc("Order: newest first.", default="-step")
    since_s: int = doc("Start of the window, in Unix seconds.")
    until_s: int = doc("End of the window, exclusive, in Unix seconds.")
    stretches: list[StretchOut] = doc("Tier and resolution of each part.")


class DifferenceOut(ResponseSchema, source=SettingDifference):
    """One setting that differs."""

    what = doc("precision, flags, neuronx-cc or Neuron SDK.", "precision")
    mine = doc("Value of this run; flags: those that only it has, or none.")
    theirs = doc("Value of the other run.", "fp8")


class LikeOut(ResponseSchema, source=SimilarRun):
    """A run with the same model, batch, instance type and number of nodes."""

    run = doc("Name of the other run.", "llama-fp8")
    differ: list[DifferenceOut] = doc("Settings that differ.")
    ratio: float = doc("Its tokens per second over this run's, minus one.", 0.21)
    is_assumed: bool = doc("Whether either run is simulated.")
    low: float | None = doc("Lower end of the 95 % interval; null: too few steps, or simulated.")
    high: float | None = doc("Upper end.")
    tokens_per_s: float = doc("Its settled tokens per second.")
    my_tokens_per_s: float = doc("Settled tokens per second of this run.")
    n_steps: int = doc("Its settled steps in the comparison.")
    my_n_steps: int = doc("Settled steps of this run in the comparison.")


class PredictionOut(ResponseSchema):
    """Prediction of the step model for a precision that no similar run has used."""

    precision: str = doc("The precision.", "fp8")
    ratio: float = doc("Predicted tokens per second over this run's, minus one.")
    tokens_per_s: float = doc("Predicted tokens per second.")
    spread_ratio: float | None = doc(
        "9 of 10 predictions of published runs are within it; null: unknown.", default=None
    )
    basis: str = doc(
        "published, or assumed: what the chip's constants rest on; empty: unknown.", default=""
    )


class SimilarRunsOut(ResponseSchema):
    """A run's settings against those of similar runs, updated every ten minutes."""

    run: str = doc("Name of the run.", "llama")
    precision: NullableText = doc("Precision of multiplications.")
    compiler_flags: NullableText = doc("Flags of neuronx-cc.")
    compiler_version: NullableText = doc("Version of neuronx-cc.")
    sdk_version: NullableText = doc("Version of the Neuron SDK.")
    headline: str = doc("The likely gain of other settings, as text.")
    measured: list[LikeOut] = doc("Similar runs, the most certain gain first.")
    predicted: list[PredictionOut] = doc("Precisions that no similar run has used.")
    unknown: list[str] = doc("What is unknown, as text.")
    worked_out_at: datetime | None = doc("When updated, UTC; null: not yet.")


class RunFilter(Paging):
    """Filter of runs."""

    state: Literal["", "active", "over", "retired"] = doc(
        "active; over: ended; retired. Default: all but the retired.", default=""
    )
    phase: Literal["", "pending", "compiling", "warming_up", "training", "finished", "failed"] = (
        doc("Phase of the run.", default="")
    )
    team: Text = doc("Team, exact match.", "LLM", default="")
    label: LabelFilter = ""
    since: OptionalTime = doc("Started at or after: RFC 3339 or Unix seconds.", default=None)
    until: OptionalTime = doc("Started before.", default=None)


class StepFilter(WindowQuery):
    """Window of steps, and page."""

    cursor: Cursor = ""
    limit: int = doc("Most steps.", default=100, ge=1, le=MAX_STEPS)


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
    return RunMoney.from_object(
        account,
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
        stretches=[
            StretchOut.from_object(stretch, since_s=stretch.since) for stretch in stretches
        ],
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
    columns = {
        "step": steps.step,
        "ended_at_s": np.round(steps.ended_at_s, 3),
        "tokens": steps.all_tokens,
        "step_s": steps.step_s,
        **{phase: mean(steps.phases[phase], 1) for phase in PHASES},
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
