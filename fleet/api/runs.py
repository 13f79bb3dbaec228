"""A run as the API tells it."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Self

import numpy as np
from django.conf import settings
from django.db.models import Count, Q
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router

from fleet.api.auth import needs
from fleet.api.fields import OptionalTime, ResponseSchema, RunName, Text
from fleet.api.paging import (
    Cursor,
    PageLinks,
    Paging,
    WindowQuery,
    cursor_number,
    page_links,
    paginate,
)
from fleet.charts.figures import mean_of
from fleet.costs.panel import round_to_cents
from fleet.costs.spending import stored_account
from fleet.metrics.long_term import long_term_history
from fleet.models import Run, SimilarRunsResult
from fleet.runs.similar_runs import measured_results, similar_runs_panel
from fleet.runs.summaries import RunNow, runs_now
from telemetry.series import SeriesSource
from telemetry.steps import PHASES, StepBatch
from telemetry.store.history import run_history
from telemetry.store.hot import open_store


class RunFigures(ResponseSchema):
    """A run's last minute of steps, at least five, averaged; null where nobody tells."""

    step_s: float | None = Field(description="Mean step, in seconds.", examples=[1.27])
    allreduce_share_ratio: float | None = Field(
        description="Exposed gradient all-reduce over step time, 0 to 1.", examples=[0.18]
    )
    wait_ratio: float | None = Field(description="Of it, waiting for peers, 0 to 1.")
    transfer_ratio: float | None = Field(description="Of it, moving gradients, 0 to 1.")
    tokens_per_s: float | None = Field(description="Tokens trained per second.")
    mfu_ratio: float | None = Field(
        description="Model FLOPs over the peak of the chips, 0 to 1.", examples=[0.41]
    )
    usd_per_mtok: float | None = Field(description="US dollars per million tokens at this pace.")
    last_step: int | None = Field(description="Number of the last step.")
    last_step_at_s: float | None = Field(description="When it ended, in Unix seconds.")
    is_stale: bool = Field(description="Whether steps stopped coming.")

    @classmethod
    def of(cls, now: RunNow) -> Self:
        return cls(
            step_s=now.step_s,
            allreduce_share_ratio=now.share_ratio,
            wait_ratio=now.wait_ratio,
            transfer_ratio=now.transfer_ratio,
            tokens_per_s=now.tokens_per_s,
            mfu_ratio=now.mfu_ratio,
            usd_per_mtok=now.usd_per_mtok,
            last_step=now.last_step,
            last_step_at_s=now.last_step_at_s,
            is_stale=now.is_stale,
        )


class RunMoney(ResponseSchema):
    """What a run's dollars went into, as added up once a minute, to its last settled step."""

    until: datetime = Field(description="Up to when it was added up, UTC.")
    usd: dict[str, float] | None = Field(
        description="US dollars by what they went into, in cents; null without a price.",
        examples=[{"training": 812.5, "communication": 101.25, "compiling": 64.0, "idle": 3.0}],
    )
    total_usd: float | None = Field(description="Their sum, to the cent.", examples=[980.75])
    seconds: dict[str, float] = Field(description="Seconds by what they went into.")
    settled_usd_per_mtok: float | None = Field(
        description="US dollars per million tokens since the warm-up, of steps alone."
    )
    whole_usd_per_mtok: float | None = Field(
        description="US dollars per million tokens trained once, with all that was paid."
    )
    usd_per_epoch: float | None = Field(
        description="US dollars per epoch since the warm-up; null while its tokens are unknown."
    )

    @classmethod
    def of(cls, run: Run) -> Self | None:
        told = stored_account(run)
        if told is None:
            return None
        usd = None if told.usd is None else round_to_cents(told.usd)
        settled = told.usd_per_mtok
        trained = told.settled_tokens + told.warm_tokens
        per_epoch = run.tokens_per_epoch
        return cls(
            until=told.until,
            usd=usd,
            total_usd=None if usd is None else round(sum(usd.values()), 2),
            seconds={sort: round(value, 3) for sort, value in told.seconds.items()},
            settled_usd_per_mtok=settled,
            whole_usd_per_mtok=told.total_usd / trained * 1e6 if usd and trained else None,
            usd_per_epoch=settled * per_epoch / 1e6 if settled and per_epoch else None,
        )


class RunOut(ResponseSchema):
    """One training job."""

    id: int = Field(description="Number of the run.", examples=[7])
    name: str = Field(description="Unique name, also in addresses.", examples=["llama"])
    team: str = Field(description="Whose it is; empty where nobody says.", examples=["LLM"])
    purpose: str = Field(description="One line for people.")
    model: str = Field(description="What is trained.", examples=["llama2-7b"])
    instance_type: str = Field(description="On what.", examples=["trn1.32xlarge"])
    n_nodes: int = Field(description="Number of nodes.", examples=[16])
    tp: int = Field(description="Tensor-parallel degree.", examples=[8])
    pp: int = Field(description="Pipeline-parallel degree.", examples=[1])
    seq_len: int = Field(description="Tokens per sequence.", examples=[4096])
    global_batch: int = Field(description="Sequences per step.", examples=[1024])
    precision: str = Field(description="Of the multiplications.", examples=["bf16"])
    is_simulated: bool = Field(description="Whether trnwatch simulates it.")
    state: str = Field(description="active, or over.", examples=["active"])
    phase: str = Field(
        description="pending, compiling, warming_up, training, finished or failed.",
        examples=["training"],
    )
    phase_since: datetime = Field(description="When the phase began, UTC.")
    started_at: datetime = Field(description="When the run began, UTC.")
    finished_at: datetime | None = Field(description="When it was over, UTC.")
    last_step: int = Field(description="Steps done, as the database knows it.")
    n_tokens: int = Field(description="Tokens trained, as the database knows it.")
    usd_per_node_hour: float | None = Field(
        description="US dollars per node and hour when it began; null where unknown."
    )
    price_basis: str = Field(description="Where that price comes from.", examples=["on demand"])
    usd_per_hour: float | None = Field(description="US dollars per hour of the whole run, now.")
    usd_so_far: float | None = Field(description="US dollars paid so far; null where unknown.")
    tokens_per_epoch: int | None = Field(description="Tokens of one epoch; null while unknown.")
    planned_tokens: int | None = Field(description="Tokens it is to train; null while unknown.")
    money: RunMoney | None = Field(
        description="What its dollars went into; null until it was added up."
    )
    allreduce_limit_ratio: float = Field(
        description="All-reduce share above which an alert fires, 0 to 1.", examples=[0.25]
    )
    n_open_alerts: int = Field(description="Alerts of the run that are not over.")
    now: RunFigures = Field(description="The last minute of steps.")
    url: str = Field(description="Path of its page.", examples=["/runs/llama/"])

    @classmethod
    def of(cls, now: RunNow, *, n_open_alerts: int) -> Self:
        run = now.run
        told = {name: getattr(run, name) for name in SAME_FIELDS}
        price, spent = run.usd_per_node_hour or None, run.usd_by(timezone.now())
        return cls(
            **told,
            state="active" if run.finished_at is None else "over",
            usd_per_node_hour=price,
            usd_per_hour=run.usd_per_hour or None,
            usd_so_far=None if math.isnan(spent) else round(spent, 2),
            money=RunMoney.of(run),
            n_open_alerts=n_open_alerts,
            now=RunFigures.of(now),
            url=run.get_absolute_url(),
        )


# What a run tells as its row has it.
SAME_FIELDS = sorted(
    {field.name for field in Run._meta.fields} & set(RunOut.model_fields) - {"usd_per_node_hour"}
)


class RunPage(PageLinks):
    """A page of runs."""

    items: list[RunOut] = Field(description="The runs of this page.")
    sorted_by: str = Field(default="-id", description="What was first heard of last comes first.")


class StepOut(ResponseSchema):
    """One step of a run, or the average of neighbours where so many are told as one."""

    step: int = Field(description="Number of the step (of neighbours: the last's).")
    ended_at_s: float = Field(description="When it was over, in Unix seconds.")
    n_steps: int | None = Field(
        description="How many steps the row is the average of; null where nobody counted.",
        examples=[1],
    )
    tokens: float | None = Field(description="Tokens trained in all of them together.")
    step_s: float | None = Field(description="How long it took, in seconds, mean over workers.")
    compute_s: float | None = Field(description="Of it a worker's own work, in seconds.")
    wait_s: float | None = Field(description="Waiting at the gradient collective, in seconds.")
    transfer_s: float | None = Field(description="Moving gradients, in seconds.")
    input_s: float | None = Field(description="Waiting for data, in seconds.")
    checkpoint_s: float | None = Field(description="Saving a checkpoint, in seconds.")
    other_s: float | None = Field(description="Anything else, in seconds.")


class StretchOut(ResponseSchema):
    """A part of a window that comes from one tier at one resolution."""

    since_s: int = Field(description="Where it begins, in Unix seconds.")
    every_s: int = Field(description="Seconds between points as kept; 0: every step.")
    tier: str = Field(description="hot, durable or long term.", examples=["hot"])
    why: str = Field(description="Why nothing is told of it; empty where it is.")

    @classmethod
    def of(cls, stretch: SeriesSource) -> Self:
        return cls(
            since_s=stretch.since, every_s=stretch.every_s, tier=stretch.tier, why=stretch.why
        )


class StepPage(PageLinks):
    """A page of a run's steps."""

    items: list[StepOut] = Field(description="The steps of this page.")
    sorted_by: str = Field(default="-step", description="The newest step comes first.")
    since_s: int = Field(description="Where the window begins, in Unix seconds.")
    until_s: int = Field(description="Where it ends, in Unix seconds, itself left out.")
    stretches: list[StretchOut] = Field(description="Which tier told of which part.")


class DifferenceOut(ResponseSchema):
    """One setting that the other run has otherwise."""

    what: str = Field(
        description="precision, flags, neuronx-cc or Neuron SDK.", examples=["precision"]
    )
    mine: str = Field(description="Of this run; of flags: those that only it has, or none.")
    theirs: str = Field(description="Of the other.", examples=["fp8"])


class LikeOut(ResponseSchema):
    """A run that trained the same model and batch on as many of the same nodes."""

    run: str = Field(description="Name of the other run.", examples=["llama-fp8"])
    differ: list[DifferenceOut] = Field(description="In what it differs.")
    ratio: float = Field(
        description="Its tokens per second over this run's, less one.", examples=[0.21]
    )
    is_assumed: bool = Field(
        description="Whether either run is simulated: then nothing was measured on real hardware."
    )
    low: float | None = Field(
        description="Lower end of the 95 % interval; null: too few steps, or assumed."
    )
    high: float | None = Field(description="Upper end.")
    tokens_per_s: float = Field(description="Its tokens per second, settled.")
    my_tokens_per_s: float = Field(description="This run's.")
    n_steps: int = Field(description="Its settled steps that this rests on.")
    my_n_steps: int = Field(description="This run's.")

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        plain = {name: told[name] for name in cls.model_fields if name != "differ"}
        differ = [
            DifferenceOut(what=part["what"], mine=part["mine"], theirs=part["theirs"])
            for part in told["differ"]
        ]
        return cls(**plain, differ=differ)


class PredictionOut(ResponseSchema):
    """What the step model gives for a precision that no similar run has used."""

    precision: str = Field(description="The precision.", examples=["fp8"])
    ratio: float = Field(description="Tokens per second over this run's, less one: assumed.")
    tokens_per_s: float = Field(description="Tokens per second, assumed.")


class SimilarRunsOut(ResponseSchema):
    """A run's settings against those of similar runs, updated every ten minutes."""

    run: str = Field(description="Name of the run.", examples=["llama"])
    precision: str | None = Field(description="Of the multiplications; null: not told.")
    compiler_flags: str | None = Field(description="As neuronx-cc gets them; null: not told.")
    compiler_version: str | None = Field(description="Of neuronx-cc; null: not told.")
    sdk_version: str | None = Field(description="Of the Neuron SDK; null: not told.")
    headline: str = Field(description="The likely gain of other settings, as text.")
    measured: list[LikeOut] = Field(description="Similar runs, the most certain gain first.")
    predicted: list[PredictionOut] = Field(description="Precisions that no similar run has used.")
    unknown: list[str] = Field(description="What is unknown, as text.")
    worked_out_at: datetime | None = Field(description="When, UTC; null: not yet.")

    @classmethod
    def of(cls, run: Run) -> Self:
        """Describe a run, selected with its similar runs."""
        panel, stored = similar_runs_panel(run), getattr(run, "similar_runs", None)
        comparison = stored.comparison if isinstance(stored, SimilarRunsResult) else {}
        predicted = [
            PredictionOut(**{name: each[name] for name in PredictionOut.model_fields})
            for each in comparison.get("predicted", ())
        ]
        return cls(
            run=run.name,
            **{name: getattr(run, name) or None for name in SETTINGS},
            headline=panel.headline,
            measured=[LikeOut.of(each) for each in measured_results(run, comparison)],
            predicted=predicted,
            unknown=list(panel.unknown),
            worked_out_at=panel.updated_at,
        )


SETTINGS = ("precision", "compiler_flags", "compiler_version", "sdk_version")


router = Router(tags=["runs"])
MAX_STEPS = 1_000


class RunFilter(Paging):
    """Which runs to list."""

    state: Literal["", "active", "over"] = Field("", description="Whether they are over.")
    phase: Literal["", "pending", "compiling", "warming_up", "training", "finished", "failed"] = (
        Field("", description="Where in their life they are.")
    )
    team: Text = Field("", description="Whose they are, exactly.", examples=["LLM"])
    since: OptionalTime = Field(
        None, description="Started then or later: RFC 3339, or Unix seconds."
    )
    until: OptionalTime = Field(None, description="Started before then.")


class StepFilter(WindowQuery):
    """Which steps to list."""

    cursor: Cursor = ""
    limit: int = Field(100, ge=1, le=MAX_STEPS, description="How many steps at most.")


def _serialize(runs: list[Run]) -> list[RunOut]:
    counted = Run.objects.filter(pk__in=[run.pk for run in runs]).values_list("pk")
    n_open = dict(counted.annotate(n=Count("alerts", filter=Q(alerts__resolved_at=None))))
    now = runs_now(open_store(settings.REDIS_URL), runs, now_s=timezone.now().timestamp())
    return [RunOut.of(each, n_open_alerts=n_open[each.run.pk]) for each in now]


@router.get("", response=RunPage, **needs("read"), summary="List runs")
def run_list(request: HttpRequest, query: Query[RunFilter]) -> RunPage:
    """List runs, the one first heard of last first, each with the last minute of its steps."""
    rows, links = paginate(request, Run.objects.filter_by(**query.fields), query, by="-pk")
    return RunPage(items=_serialize(rows), next=links.next, prev=links.prev)


@router.get("/{name}", response=RunOut, **needs("read"), summary="One run")
def run_one(request: HttpRequest, name: Path[RunName]) -> RunOut:
    """One run, with the last minute of its steps."""
    return _serialize([get_object_or_404(Run, name=name)])[0]


@router.get("/{name}/steps", response=StepPage, **needs("read"), summary="A run's steps")
def run_steps(request: HttpRequest, name: Path[RunName], query: Query[StepFilter]) -> StepPage:
    """List steps that ended in a window, the newest first, each the mean over its workers.

    In windows with more than 2,000 steps that the hot tier has no more, a row is several
    neighbours: `n_steps` says how many, seconds are their average and `tokens` those of all of
    them, so that tokens add up over the window. `stretches` says how finely each part is kept.
    """
    run = get_object_or_404(Run, name=name)
    start, end = query.window(now=timezone.now())
    steps, stretches = run_history(
        open_store(settings.REDIS_URL),
        run.name,
        start_s=start,
        end_s=end,
        long_term=long_term_history(),
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
        next=links.next,
        prev=links.prev,
        since_s=start,
        until_s=end,
        stretches=[StretchOut.of(each) for each in stretches],
    )


def _page(steps: StepBatch, query: StepFilter) -> tuple[StepBatch, bool, bool]:
    """Return the steps of a page, rising, and whether there are older and newer ones."""
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


@router.get("/{name}/like", response=SimilarRunsOut, **needs("read"), summary="Similar runs")
def run_like(request: HttpRequest, name: Path[RunName]) -> SimilarRunsOut:
    """Compare the settings of a run with others, measured on similar runs or predicted."""
    runs = Run.objects.select_related("similar_runs").defer("plan", "clock", "spending")
    return SimilarRunsOut.of(get_object_or_404(runs, name=name))
