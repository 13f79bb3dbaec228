"""Steps of a run, and how finely history tells of them."""

from typing import Self

from ninja import Field

from fleet.api.v1.fields import Told
from fleet.api.v1.paging import Links
from telemetry.series import Stretch


class StepOut(Told):
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


class StretchOut(Told):
    """A part of a window that comes from one tier at one resolution."""

    since_s: int = Field(description="Where it begins, in Unix seconds.")
    every_s: int = Field(description="Seconds between points as kept; 0: every step.")
    tier: str = Field(description="hot, durable or long term.", examples=["hot"])
    why: str = Field(description="Why nothing is told of it; empty where it is.")

    @classmethod
    def of(cls, stretch: Stretch) -> Self:
        """Tell where a part of a window comes from."""
        return cls(
            since_s=stretch.since, every_s=stretch.every_s, tier=stretch.tier, why=stretch.why
        )


class StepPage(Links):
    """A page of a run's steps."""

    items: list[StepOut] = Field(description="The steps of this page.")
    sorted_by: str = Field(default="-step", description="The newest step comes first.")
    since_s: int = Field(description="Where the window begins, in Unix seconds.")
    until_s: int = Field(description="Where it ends, in Unix seconds, itself left out.")
    stretches: list[StretchOut] = Field(description="Which tier told of which part.")
