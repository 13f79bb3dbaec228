"""Like runs as the API tells them: other settings, and what those brought or would bring."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

from ninja import Field

from fleet.api.v1.fields import Told
from fleet.like.measuring import measured_of
from fleet.like.words import likes_of
from fleet.models import LikeRuns, Run


class DifferenceOut(Told):
    """One setting that the other run has otherwise."""

    what: str = Field(
        description="precision, flags, neuronx-cc or Neuron SDK.", examples=["precision"]
    )
    mine: str = Field(description="Of this run; of flags: those that only it has, or none.")
    theirs: str = Field(description="Of the other.", examples=["fp8"])


class LikeOut(Told):
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
        """Tell what was measured of another run."""
        plain = {name: told[name] for name in cls.model_fields if name != "differ"}
        differ = [
            DifferenceOut(what=part["what"], mine=part["mine"], theirs=part["theirs"])
            for part in told["differ"]
        ]
        return cls(**plain, differ=differ)


class PredictionOut(Told):
    """What the step model gives for a precision that no like run has tried."""

    precision: str = Field(description="The precision.", examples=["fp8"])
    ratio: float = Field(description="Tokens per second over this run's, less one: assumed.")
    tokens_per_s: float = Field(description="Tokens per second, assumed.")


class RunLike(Told):
    """A run's settings beside those of its like, as worked out every ten minutes."""

    run: str = Field(description="Name of the run.", examples=["llama"])
    precision: str | None = Field(description="Of the multiplications; null: not told.")
    compiler_flags: str | None = Field(description="As neuronx-cc gets them; null: not told.")
    compiler_version: str | None = Field(description="Of neuronx-cc; null: not told.")
    sdk_version: str | None = Field(description="Of the Neuron SDK; null: not told.")
    headline: str = Field(description="What is likely left on the table, in words.")
    measured: list[LikeOut] = Field(description="Like runs, the surest gain first.")
    predicted: list[PredictionOut] = Field(description="Precisions that nobody has tried.")
    unknown: list[str] = Field(description="What nobody can tell, in words.")
    worked_out_at: datetime | None = Field(description="When, UTC; null: not yet.")

    @classmethod
    def of(cls, run: Run) -> Self:
        """Tell a run, asked for with its like runs."""
        said, kept = likes_of(run), getattr(run, "like_runs", None)
        told = kept.told if isinstance(kept, LikeRuns) else {}
        predicted = [
            PredictionOut(**{name: each[name] for name in PredictionOut.model_fields})
            for each in told.get("predicted", ())
        ]
        return cls(
            run=run.name,
            **{name: getattr(run, name) or None for name in SETTINGS},
            headline=said.headline,
            measured=[LikeOut.of(each) for each in measured_of(run, told)],
            predicted=predicted,
            unknown=list(said.unknown),
            worked_out_at=said.worked_out_at,
        )


SETTINGS = ("precision", "compiler_flags", "compiler_version", "sdk_version")
