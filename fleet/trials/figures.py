"""The figures of a trial: what its arms must have in common, what each took, how they compare.

They are stored as JSON in the trial's row, so field names must stay readable by later versions.
"""

import re
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from fleet.models import Run

# Counts of tokens per step that differ by less are taken for the same.
SAME_TOKENS_RATIO = 0.01
NOT_REPORTED = "not reported"


class MatchState(StrEnum):
    """Whether the arms have the same value."""

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
    ("model", "model", lambda run: run.model),
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


def match_pair(matches: Sequence[Match], one: int, other: int) -> list[Match]:
    """Compare two of the arms, given by position, regardless of the others."""
    pairs = [(match, (match.values[one], match.values[other])) for match in matches]
    return [
        _match(match.field, match.label, ["" if each == NOT_REPORTED else each for each in pair])
        for match, pair in pairs
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

    ``ratio`` is candidate over baseline less one, ``low`` to ``high`` its 95 % interval.
    ``word`` is better, worse, or cannot tell yet. ``n_more_steps`` of each arm would decide it;
    None: more steps would not.
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
    logarithm; ``n_steps`` of the shorter arm, of ``n_planned``.
    """

    ratio: float
    error_log: float
    n_steps: int
    n_planned: int


class ArmPrice(msgspec.Struct, frozen=True):
    """Price of all nodes of an arm from a time on, and its terms."""

    from_s: float
    usd_per_hour: float
    basis: str


class ArmFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm took, from its start to its newest step; None where unknown.

    ``ready_s`` is from the run's start to its first step, ``compile_s`` the part of it known to
    be compiling; ``warm_up_s`` the ``n_warm_up`` steps until it settled, which no measure counts.
    The ``usd_`` fields are the cost of these parts, and of pauses between steps.
    ``first_epoch_step_s`` is the mean step of the first pass over the data, of which
    ``first_epoch_ratio`` is done.

    ``usd_per_hour`` is the newest of ``prices``. ``n_lost`` steps were trained again after a
    failure; ``settled_s`` and ``settled_tokens`` are the seconds and tokens of the settled steps
    whose tokens are known.
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


class Candidate(msgspec.Struct, frozen=True):
    """One candidate against the baseline, measure by measure.

    Losses are compared after ``equal_tokens``. Once both arms have their planned steps the
    verdicts are decided and do not change any more. ``pace`` is None where the pace is unknown,
    and in figures of earlier versions.
    """

    label: str
    run: str
    comparisons: tuple[Comparison, ...]
    equal_tokens: float | None = None
    is_decided: bool = False
    pace: PaceEvidence | None = None

    def get(self, measure: str) -> Comparison | None:
        """Find the comparison by one measure; None where it cannot be made."""
        return next((each for each in self.comparisons if each.measure == measure), None)


class TrialFigures(msgspec.Struct, frozen=True):
    """All figures of a trial: what must match, the arms, and each candidate's comparisons."""

    matches: tuple[Match, ...] = ()
    arms: tuple[ArmFigures, ...] = ()
    candidates: tuple[Candidate, ...] = ()

    @property
    def baseline(self) -> ArmFigures | None:
        """The arm that the others are compared with; None where its run was removed."""
        return next((arm for arm in self.arms if arm.is_baseline), None)

    def arm(self, run: str) -> ArmFigures:
        """Find the arm of a run."""
        return next(arm for arm in self.arms if arm.run == run)


def dump_figures(figures: TrialFigures) -> dict[str, object]:
    """Convert figures to what a trial's row stores."""
    plain: dict[str, object] = msgspec.to_builtins(figures)
    return plain


def load_figures(plain: dict[str, object]) -> TrialFigures | None:
    """Read the figures that a row stores; None where there are none yet."""
    return msgspec.convert(plain, TrialFigures) if plain else None
