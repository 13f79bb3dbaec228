"""The measures and figures of a trial: what its arms share, what each took, how they compare.

Figures are stored as JSON in the trial's row, so field names must stay readable by later versions.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import numpy as np

from fleet.formatting import NBSP, si
from fleet.models import Run, Trial
from fleet.runs.imported import NOT_RECORDED
from fleet.runs.step_sums import COLUMNS
from fleet.trials.layout import ArmLayout
from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.statistics.bootstrap import Measure
from telemetry.statistics.verdicts import MARGIN_RATIO
from telemetry.units import TOKENS_PER_MTOK


@dataclass(frozen=True, slots=True)
class TrialMeasure:
    """A measure, its label, and the unit in which it is written.

    ``factor`` converts a ratio of sums to that unit.
    """

    name: str
    label: str
    measure: Measure
    unit: str
    factor: float = 1.0


RATIOS = (
    TrialMeasure(
        "usd_per_mtok",
        "$ per 1M tokens",
        Measure("usd", "tokens", is_better_low=True),
        "usd",
        TOKENS_PER_MTOK,
    ),
    TrialMeasure(
        "tokens_per_usd",
        "tokens per dollar",
        Measure("tokens", "usd", is_better_low=False),
        "count",
    ),
    TrialMeasure(
        "tokens_per_s",
        "tokens per second",
        Measure("tokens", "counted_s", is_better_low=False),
        "count",
    ),
    TrialMeasure(
        "time_to_train_s",
        "time to train",
        Measure("counted_s", "tokens", is_better_low=True, line="time_to_train_s"),
        "duration",
    ),
    TrialMeasure("step_s", "step time", Measure("step_s", "steps", is_better_low=True), "s"),
    TrialMeasure(
        "heavy_step_s",
        "step time, all-reduce-heavy",
        Measure("heavy_s", "heavy", is_better_low=True),
        "s",
    ),
    TrialMeasure(
        "allreduce_share_ratio",
        "all-reduce share",
        Measure("allreduce_s", "reported_s", is_better_low=True, is_share=True),
        "ratio",
    ),
)
MFU = TrialMeasure(
    "mfu_ratio", "MFU", Measure("tokens", "counted_s", is_better_low=False), "ratio"
)
USD_PER_EPOCH = TrialMeasure(
    "usd_per_epoch", "$ per epoch", Measure("usd", "tokens", is_better_low=True), "usd"
)
FIRST_EPOCH = TrialMeasure(
    "first_epoch_step_s",
    "step time, first epoch",
    Measure("step_s", "steps", is_better_low=True),
    "s",
)
LOSS = TrialMeasure(
    "loss", "loss at equal tokens", Measure("loss", "loss_steps", is_better_low=True), "plain"
)
# From cost to pace to what the pace is made of.
ORDER = (
    *("usd_per_mtok", "usd_per_epoch", "tokens_per_usd", "tokens_per_s", "time_to_train_s"),
    *("first_epoch_step_s", "step_s", "heavy_step_s", "allreduce_share_ratio", "mfu_ratio"),
    "loss",
)
BY_NAME = {
    figure.name: figure
    for figure in sorted(
        (*RATIOS, MFU, USD_PER_EPOCH, FIRST_EPOCH, LOSS), key=lambda each: ORDER.index(each.name)
    )
}
# Measures that are another one in other units, and share its verdict.
EQUIVALENT = {
    "tokens_per_usd": "usd_per_mtok",
    "usd_per_epoch": "usd_per_mtok",
    "mfu_ratio": "tokens_per_s",
}
# The verdict rests on the first of these that is known: cost, or the pace without a price.
DECIDING = ("usd_per_mtok", "tokens_per_s", "step_s")
# All other measures together have one chance of a wrong verdict.
N_SECONDARY = len(BY_NAME) - len(EQUIVALENT) - 1


def is_known(figure: TrialMeasure, sums: FloatArray) -> bool:
    """Whether settled steps have both sums of a measure."""
    total = dict(zip(COLUMNS, sums.sum(axis=0), strict=True))
    has_heavy = figure.name != "heavy_step_s" or total["allreduce_s"] > 0
    return bool(total[figure.measure.over] > 0 and total[figure.measure.under] > 0 and has_heavy)


def values_of(run: Run, sums: FloatArray) -> dict[str, float]:
    """Compute every known measure of an arm from its settled steps, each in its unit."""
    total = dict(zip(COLUMNS, sums.sum(axis=0), strict=True))
    values = {
        figure.name: float(
            total[figure.measure.over] / total[figure.measure.under] * figure.factor
        )
        for figure in RATIOS
        if not figure.measure.line and is_known(figure, sums)
    }
    if run.tokens_per_epoch and "usd_per_mtok" in values:
        per_token = values["usd_per_mtok"] / TOKENS_PER_MTOK
        values[USD_PER_EPOCH.name] = per_token * run.tokens_per_epoch
    mfu = run.mfu_ratio(values.get("tokens_per_s"))
    return values if mfu is None or not np.isfinite(mfu) else values | {MFU.name: mfu}


@dataclass(frozen=True, slots=True)
class VendorClaim:
    """Claimed tokens per dollar of a candidate over its baseline, less one."""

    low: float
    high: float
    text: str
    source: str
    date: str


# From AWS's announcement; its page on Trn2 instances says the same. The claim names P5e and P5en
# (H200). It is often quoted for p5 (H100) too, which it does not name.
TRAINIUM2 = VendorClaim(
    low=0.30,
    high=0.40,
    text=(
        "AWS claims \u201c30-40% better price performance than GPU-based EC2 P5e and P5en "
        "instances\u201d for Trn2"
    ),
    source="AWS News Blog, J. Barr, on the availability of EC2 Trn2 instances",
    date="2024-12-03",
)
NOT_NAMED = "it names P5e and P5en, not p5, and no benchmark."


def claim_for(baseline: str, candidate: str) -> VendorClaim | None:
    """Find the claim for a pair of instance types: there is one for trn2 against any p5."""
    is_covered = candidate.startswith("trn2") and baseline.startswith("p5")
    return TRAINIUM2 if is_covered and candidate in catalog.instances() else None


DEFINITIONS: Mapping[str, str] = {
    "usd_per_mtok": "cost of the settled steps, each second at the price of its time, over their "
    "tokens",
    "usd_per_epoch": "the same for the tokens of one pass over the data",
    "tokens_per_usd": "its inverse, price-performance, which AWS's claim is about",
    "tokens_per_s": "tokens of the settled steps over their seconds",
    "time_to_train_s": "time until the first step, warm-up, and the rest of the {planned} planned "
    "tokens at the settled pace, without failures and pauses",
    "first_epoch_step_s": "the mean step of the first pass over the data, its warm-up included",
    "step_s": "the mean settled step, checkpoints and evaluations included",
    "heavy_step_s": "the same for the quarter of each hour's steps with the largest all-reduce "
    "share",
    "allreduce_share_ratio": "exposed all-reduce wait and transfer, over step time",
    "mfu_ratio": "the model's FLOPs over the dense peak of all chips{peaks}",
    "loss": "the mean over the last twentieth of the tokens that both arms have trained on; "
    "steps trained again after a failure count once",
}
ONE_TIME_DEFINITIONS = {
    "compile time": "seconds in which any process compiled, before and during training",
    "until the first step": "from the run's start, compiling included",
}


def definitions(
    trial: Trial, runs: Iterable[Run], measures: Iterable[str]
) -> list[tuple[str, str]]:
    """List the labels of measures and of one-time costs, each with its definition."""
    peaks = {
        f"{run.n_nodes} \u00d7 {run.instance_type}: {si(peak)}FLOP/s".replace(" ", NBSP, 2)
        for run in runs
        if (peak := run.peak_flops)
    }
    values = {
        "planned": f"{trial.planned_tokens or 0:,}",
        "peaks": f" ({', '.join(sorted(peaks))})" if peaks else "",
    }
    defined = [(BY_NAME[name].label, DEFINITIONS[name].format(**values)) for name in measures]
    return [*defined, *ONE_TIME_DEFINITIONS.items()]


# Tokens per step that differ by less count as equal.
SAME_TOKENS_RATIO = 0.01
NOT_REPORTED = "not reported"


class MatchState(StrEnum):
    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "not reported"


class Match(msgspec.Struct, frozen=True, rename={"label": "words"}):
    """A field that must be the same, with the value of each arm, in the order of the arms."""

    field: str
    label: str
    values: tuple[str, ...]
    state: MatchState


FIELDS: tuple[tuple[str, str, Callable[[Run], str]], ...] = (
    ("model", "model", lambda run: "" if run.model == NOT_RECORDED else run.model),
    ("global_batch", "global batch", lambda run: f"{run.global_batch or ''}"),
    ("seq_len", "sequence length", lambda run: f"{run.seq_len or ''}"),
    ("precision", "precision", lambda run: run.precision),
    ("optimizer", "optimizer", lambda run: run.optimizer),
)
# Parts of an optimizer's name that say how it is computed, not which one it is.
OPTIMIZER_BACKENDS = frozenset(("torch", "fused", "xla", "hf", "npu", "apex"))


def match_runs(runs: Sequence[Run], tokens_per_step: Sequence[float | None]) -> tuple[Match, ...]:
    """Compare what the arms train, field by field.

    Parameters
    ----------
    runs : of the arms, the baseline first
    tokens_per_step : what each arm's steps trained on; None where unknown

    Notes
    -----
    Only the kind of optimizer is compared: ``adamw_torch`` is AdamW. Its settings and the
    learning rate schedule are not reported.
    """
    matches = [
        _match(field, label, [value_of(run) for run in runs]) for field, label, value_of in FIELDS
    ]
    counts = ["" if n is None else f"{n:,.0f}" for n in tokens_per_step]
    matches.append(_match("tokens_per_step", "tokens per step", counts))
    if any(run.tokens_per_epoch for run in runs):
        epochs = [f"{run.tokens_per_epoch:,}" if run.tokens_per_epoch else "" for run in runs]
        matches.append(_match("tokens_per_epoch", "tokens per epoch", epochs))
    return tuple(matches)


def _match(field: str, label: str, values: Sequence[str]) -> Match:
    known = {value for value in values if value}
    if field == "tokens_per_step":
        counts = [float(value.replace(",", "")) for value in known]
        is_same = bool(counts) and max(counts) - min(counts) <= SAME_TOKENS_RATIO * max(counts)
    else:
        is_same = len({optimizer_kind(v) if field == "optimizer" else v for v in values}) == 1
    if all(values):
        state = MatchState.SAME if is_same else MatchState.DIFFERS
    else:
        state = MatchState.DIFFERS if len(known) > 1 and not is_same else MatchState.UNKNOWN
    return Match(field, label, tuple(value or NOT_REPORTED for value in values), state)


def match_some(matches: Sequence[Match], places: Sequence[int]) -> list[Match]:
    """Compare some of the runs, given by position, regardless of the others."""
    chosen = [(match, [match.values[place] for place in places]) for match in matches]
    return [
        _match(
            match.field, match.label, ["" if value == NOT_REPORTED else value for value in values]
        )
        for match, values in chosen
    ]


def optimizer_kind(optimizer: str) -> str:
    """Reduce an optimizer's name to what all frameworks share: adamw for adamw_torch."""
    parts = re.split(r"[^a-z0-9]+", optimizer.casefold())
    return "".join(part for part in parts if part not in OPTIMIZER_BACKENDS)


def mismatches(matches: Sequence[Match]) -> list[Match]:
    """Keep the fields in which the arms are known to differ."""
    return [match for match in matches if match.state == MatchState.DIFFERS]


def unknowns(matches: Sequence[Match]) -> list[Match]:
    """Keep the fields that at least one arm does not report."""
    return [match for match in matches if match.state == MatchState.UNKNOWN]


class Comparison(msgspec.Struct, frozen=True):
    """One measure of a candidate against the baseline; None where unknown.

    ``ratio`` is candidate over baseline less one, ``low`` to ``high`` its 95 % interval. Values
    of several runs are geometric means. ``word`` is better, worse, equivalent, or cannot tell yet.
    ``n_more_steps`` of each run would decide it; None: more steps would not.
    """

    measure: str
    baseline: float
    candidate: float
    ratio: float
    low: float | None
    high: float | None
    word: str
    n_more_steps: int | None


class PaceEvidence(msgspec.Struct, frozen=True):
    """Measured tokens per second, from which verdicts at other prices are derived.

    ``ratio`` is candidate over baseline less one, ``error_log`` the standard error of its
    logarithm, of ``freedom`` degrees (None: so many that it is normal), ``run_error_log`` the part
    of it between runs; ``n_steps`` of the shortest run, of ``n_planned``.
    """

    ratio: float
    error_log: float
    n_steps: int
    n_planned: int
    freedom: float | None = None
    run_error_log: float = 0.0


class ArmPrice(msgspec.Struct, frozen=True):
    """Price of all nodes of an arm from a time on, and its terms."""

    from_s: float
    usd_per_hour: float
    basis: str


class ArmFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one run took, from its start to its newest step; None where unknown.

    It is an arm, or a further run of the arm whose run is ``replicate_of``.
    ``pace_change_ratio`` is by how much the pace of its settled steps drifted or jumped, None if
    it did not.

    ``ready_s`` is from the run's start to its first step, ``compile_s`` the part of it known to
    be compiling; ``warm_up_s`` the ``n_warm_up`` steps until it settled, which no measure counts.
    The ``usd_`` fields are the cost of these parts, and of pauses between steps.
    ``first_epoch_step_s`` is the mean step of the first pass over the data, of which
    ``first_epoch_ratio`` is done.

    ``usd_per_hour`` is the newest of ``prices``. ``n_lost`` steps were trained again after a
    failure; ``settled_s`` and ``settled_tokens`` are the seconds and tokens of the settled steps
    whose tokens are known. ``losses`` are tokens and the mean loss of the steps before them.
    ``layout`` is None in figures of earlier versions. ``end_reason`` is why its job failed.
    ``bad_loss`` is the loss that is not finite at the end of its log, since ``bad_loss_step``.
    ``has_beginning`` is False if training began before ``first_step``, the first stored one.
    """

    label: str
    run: str
    instance_type: str
    n_nodes: int
    is_baseline: bool
    n_steps: int
    n_settled: int
    tokens_per_step: float | None
    compile_s: float | None
    ready_s: float | None
    first_step_s: float | None
    warm_up_s: float
    n_warm_up: int
    usd_per_hour: float | None
    usd_ready: float | None
    usd_warm_up: float | None
    usd_settled: float | None
    usd_between: float | None
    usd: float | None
    last_step: int
    values: dict[str, float]
    first_epoch_step_s: float | None = None
    first_epoch_ratio: float | None = None
    time_to_train_s: float | None = None
    n_tokens: float | None = None
    price_basis: str = ""
    prices: tuple[ArmPrice, ...] = ()
    n_lost: int = 0
    settled_s: float | None = None
    settled_tokens: float | None = None
    is_simulated: bool = False
    replicate_of: str = ""
    pace_change_ratio: float | None = None
    losses: tuple[tuple[float, float], ...] = ()
    layout: ArmLayout | None = None
    end_reason: str = ""
    bad_loss: str = ""
    bad_loss_step: int | None = None
    first_step: int = 0
    has_beginning: bool = True


class Candidate(msgspec.Struct, frozen=True):
    """One candidate against the baseline, measure by measure.

    Losses are compared after ``equal_tokens``. Once both arms have their planned steps the
    verdicts are decided and do not change any more. ``pace`` is None where the pace is unknown,
    and in figures of earlier versions. ``n_runs`` are those of baseline and candidate; with so few
    that the variation between runs is assumed, all verdicts are provisional. Arms that differ by
    less than ``margin_ratio`` are equivalent.
    """

    label: str
    run: str
    comparisons: tuple[Comparison, ...]
    equal_tokens: float | None = None
    is_decided: bool = False
    pace: PaceEvidence | None = None
    n_runs: tuple[int, int] = (1, 1)
    is_provisional: bool = True
    margin_ratio: float = MARGIN_RATIO

    def get(self, measure: str) -> Comparison | None:
        """Find the comparison by one measure; None where it cannot be made."""
        return next(
            (comparison for comparison in self.comparisons if comparison.measure == measure), None
        )


class TrialFigures(msgspec.Struct, frozen=True):
    matches: tuple[Match, ...] = ()
    arms: tuple[ArmFigures, ...] = ()
    candidates: tuple[Candidate, ...] = ()

    @property
    def baseline(self) -> ArmFigures | None:
        """The arm that the others are compared with; None where its run was deleted."""
        return next((arm for arm in self.arms if arm.is_baseline), None)

    def arm(self, run: str) -> ArmFigures:
        return next(arm for arm in self.arms if arm.run == run)

    def runs_of(self, run: str) -> list[ArmFigures]:
        """List the runs of an arm, given by its first one."""
        return [arm for arm in self.arms if run in (arm.run, arm.replicate_of)]


def dump_figures(figures: TrialFigures) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(figures)
    return plain


def load_figures(plain: dict[str, object]) -> TrialFigures | None:
    """Read the figures that a row stores; None where there are none yet."""
    return msgspec.convert(plain, TrialFigures) if plain else None
