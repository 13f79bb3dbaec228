"""What other settings would bring, in words that never say more than was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleet.like.measuring import measured_of
from fleet.models import LikeRuns, Run
from fleet.templatetags.units import count, percent

MINUS = "\u2212"
SIMULATED = (
    "Simulated: this follows from assumed constants of the step model. Nothing was measured on "
    "real hardware."
)
FLAGS_UNKNOWN = (
    "Flags that change the pace (-O, --model-type, --auto-cast, --logical-nc-config): what others "
    "would bring is unknown; no comparable run has tried any."
)


@dataclass(frozen=True, slots=True)
class Beside:
    """One like run: in what it differs, how its pace does, and on what that rests.

    ``word`` is faster, slower or alike, as the interval allows; assumed where a run is simulated.
    """

    run: str
    settings: str
    word: str
    figure: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Likes:
    """All that a run's page says of its settings and of others."""

    settings: Sequence[tuple[str, str]]
    headline: str
    beside: Sequence[Beside]
    predictions: Sequence[str]
    unknown: Sequence[str]
    worked_out_at: datetime | None


def likes_of(run: Run) -> Likes:
    """Put a run's settings, and what is known of others, in words."""
    kept: LikeRuns | None = getattr(run, "like_runs", None)
    told: Mapping[str, Any] = kept.told if kept else {}
    measured = measured_of(run, told)
    beside = [_beside(each) for each in measured]
    predictions = [_prediction(each) for each in told.get("predicted", ())]
    has_tried_flags = any(part["what"] == "flags" for each in measured for part in each["differ"])
    return Likes(
        settings=settings_of(run),
        headline=_headline(beside, predictions, is_known=kept is not None),
        beside=beside,
        predictions=predictions,
        unknown=[] if has_tried_flags or not run.compiler_flags else [FLAGS_UNKNOWN],
        worked_out_at=kept.worked_out_at if kept else None,
    )


def settings_of(run: Run) -> Sequence[tuple[str, str]]:
    """Return how a run is set, as names and values."""
    unsaid = "not told"
    return [
        ("Precision", run.precision or unsaid),
        ("Compiler flags", run.compiler_flags or unsaid),
        ("neuronx-cc", run.compiler_version or unsaid),
        ("Neuron SDK", run.sdk_version or unsaid),
    ]


def _beside(told: Mapping[str, Any]) -> Beside:
    ratio, low, high = told["ratio"], told["low"], told["high"]
    n_steps = min(told["n_steps"], told["my_n_steps"])
    steps = f"from {count(n_steps)} settled steps"
    settings = " and ".join(_setting(part) for part in told["differ"])
    if told["is_assumed"]:
        more = "more" if ratio >= 0 else "fewer"
        figure = f"{percent(abs(ratio), 0)} {more} tokens/s assumed"
        return Beside(told["run"], settings, "assumed", figure, SIMULATED)
    if low is None or high is None:
        evidence = f"{steps}: too few to say how surely"
        return Beside(told["run"], settings, "alike", f"{percent(ratio, 0)} apart", evidence)
    span = f"95 % interval {_signed(low)} to {_signed(high)}, {steps}"
    if len(told["differ"]) > 1:
        span += "; which of these settings did it, nobody has tried alone"
    if low > 0 or high < 0:
        word = "faster" if low > 0 else "slower"
        more = "more" if low > 0 else "fewer"
        figure = f"{percent(abs(ratio), 0)} {more} tokens/s"
        return Beside(told["run"], settings, word, figure, span)
    return Beside(told["run"], settings, "alike", "no difference that shows", span)


def _signed(ratio: float) -> str:
    return ("+" if ratio >= 0 else MINUS) + percent(abs(ratio), 1)


def _setting(part: Mapping[str, str]) -> str:
    name = "" if part["what"] in {"precision", "flags"} else f"{part['what']} "
    theirs = "without " + part["mine"] if part["theirs"] == "none" else part["theirs"]
    return f"{name}{theirs} (here {part['mine']})"


def _prediction(told: Mapping[str, Any]) -> str:
    return (
        f"{told['precision']}: {percent(told['ratio'], 0)} more tokens/s assumed. "
        "A prediction of the step model: no comparable run has tried it."
    )


def _headline(beside: Sequence[Beside], predictions: Sequence[str], *, is_known: bool) -> str:
    """Say what is likely left on the table, and how that is known."""
    if not is_known:
        return "Not compared yet: a run is, within minutes of its first steps."
    best = next((each for each in beside if each.word == "faster"), None)
    if best is not None:
        return f"Likely left on the table: {best.figure}, as {best.run} had with {best.settings}."
    if any(each.word != "assumed" for each in beside):
        return "No comparable run with other settings was faster."
    if beside:
        return "Nothing is measured on real hardware. Assumed, from simulated runs:"
    if predictions:
        return "Nothing is measured: no comparable run had other settings. Assumed:"
    return (
        "Nothing is known: no comparable run had other settings, and the step model assumes "
        "none to be faster."
    )
