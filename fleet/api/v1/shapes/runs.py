"""A run as the API tells it."""

from datetime import datetime
from typing import Self

from ninja import Field

from fleet.api.v1.fields import Told
from fleet.api.v1.paging import Links
from fleet.models import Run
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
    usd_per_hour: float | None = Field(description="US dollars per hour of the whole run.")
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
        price = run.usd_per_node_hour or None
        return cls(
            **told,
            state="active" if run.finished_at is None else "over",
            usd_per_node_hour=price,
            usd_per_hour=None if price is None else run.usd_per_hour,
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
