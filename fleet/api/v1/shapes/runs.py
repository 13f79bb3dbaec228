"""A run as the API tells it."""

import math
from datetime import datetime
from typing import Self

from django.utils import timezone
from ninja import Field

from fleet.api.v1.fields import Told
from fleet.api.v1.paging import Links
from fleet.models import Run
from fleet.money.panel import in_cents
from fleet.money.spending import as_kept
from fleet.summaries import RunNow


class RunFigures(Told):
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
        """Tell the present of a run."""
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


class RunMoney(Told):
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
        """Tell a run's money; None where it was not added up yet."""
        told = as_kept(run)
        if told is None:
            return None
        usd = None if told.usd is None else in_cents(told.usd)
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


class RunOut(Told):
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
        """Tell a run."""
        run = now.run
        told = {name: getattr(run, name) for name in PLAIN}
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
PLAIN = sorted(
    {field.name for field in Run._meta.fields} & set(RunOut.model_fields) - {"usd_per_node_hour"}
)


class RunPage(Links):
    """A page of runs."""

    items: list[RunOut] = Field(description="The runs of this page.")
    sorted_by: str = Field(default="-id", description="What was first heard of last comes first.")
