"""What a trial has shown so far, as figures that are kept, told and drawn."""

import re
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from fleet.models import Run

# Arms whose steps differ by less train on as many tokens.
SAME_TOKENS_RATIO = 0.01
NOT_REPORTED = "not reported"


class MatchState(StrEnum):
    """How the arms' values stand to each other."""

    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "not reported"


class Match(msgspec.Struct, frozen=True):
    """One field that must be the same, and what each arm has, in the order of the arms."""

    field: str
    words: str
    values: tuple[str, ...]
    state: MatchState


FIELDS: tuple[tuple[str, str, Callable[[Run], str]], ...] = (
    ("model", "model", lambda run: run.model),
    ("global_batch", "global batch", lambda run: f"{run.global_batch or ''}"),
    ("seq_len", "sequence length", lambda run: f"{run.seq_len or ''}"),
    ("precision", "precision", lambda run: run.precision),
    ("optimizer", "optimizer", lambda run: run.optimizer),
)
# What frameworks add to an optimizer's name, which says how it is computed and not what it is.
HOW = frozenset(("torch", "fused", "xla", "hf", "npu", "apex"))


def matches(runs: Sequence[Run], tokens_per_step: Sequence[float | None]) -> tuple[Match, ...]:
    """Compare what the arms train, field by field.

    Parameters
    ----------
    runs : of the arms, the baseline first
    tokens_per_step : what each arm's steps really trained on; None where nobody counted

    Notes
    -----
    Of an optimizer only its kind is compared: ``adamw_torch`` is AdamW. Its settings, and the
    schedule of its learning rate, nobody reports.
    """
    told = [_told(field, words, [read(run) for run in runs]) for field, words, read in FIELDS]
    counts = ["" if n is None else f"{n:,.0f}" for n in tokens_per_step]
    told.append(_told("tokens_per_step", "tokens per step", counts))
    if any(run.tokens_per_epoch for run in runs):
        epochs = [f"{run.tokens_per_epoch:,}" if run.tokens_per_epoch else "" for run in runs]
        told.append(_told("tokens_per_epoch", "tokens per epoch", epochs))
    return tuple(told)


def _told(field: str, words: str, values: Sequence[str]) -> Match:
    """Compare what the arms say of one field."""
    if field == "tokens_per_step":
        known = [float(value.replace(",", "")) for value in values if value]
        is_alike = bool(known) and max(known) - min(known) <= SAME_TOKENS_RATIO * max(known)
    else:
        kinds = {kind_of(value) if field == "optimizer" else value for value in values}
        is_alike = len(kinds) == 1
    return _match(field, words, values, is_alike=is_alike)


def between(found: Sequence[Match], one: int, other: int) -> list[Match]:
    """Return how two of the arms, by their place, stand to each other, whatever others have."""
    pairs = [(match, (match.values[one], match.values[other])) for match in found]
    return [
        _told(match.field, match.words, ["" if each == NOT_REPORTED else each for each in pair])
        for match, pair in pairs
    ]


def kind_of(optimizer: str) -> str:
    """Return an optimizer's name as all frameworks could write it: adamw for adamw_torch."""
    parts = re.split(r"[^a-z0-9]+", optimizer.casefold())
    return "".join(part for part in parts if part not in HOW)


def _match(field: str, words: str, values: Sequence[str], *, is_alike: bool) -> Match:
    state = MatchState.SAME if is_alike else MatchState.DIFFERS
    if not all(values):
        known = {value for value in values if value}
        state = MatchState.DIFFERS if len(known) > 1 and not is_alike else MatchState.UNKNOWN
    return Match(field, words, tuple(value or NOT_REPORTED for value in values), state)


def mismatches(found: Sequence[Match]) -> list[Match]:
    """Return the fields in which the arms are known to differ."""
    return [match for match in found if match.state == MatchState.DIFFERS]


def unknowns(found: Sequence[Match]) -> list[Match]:
    """Return the fields that not every arm reports."""
    return [match for match in found if match.state == MatchState.UNKNOWN]


class Comparison(msgspec.Struct, frozen=True):
    """One measure of a candidate beside the baseline; None where nobody can tell.

    ``ratio`` is candidate over baseline less one, ``low`` to ``high`` its 95 % interval.
    ``word`` is better, worse, or cannot tell yet; ``n_more_steps`` would tell, None: none would.
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
    """What words at other prices than those paid rest on: tokens per second, as measured.

    ``ratio`` is candidate over baseline less one, ``error_log`` the standard error of its
    logarithm; ``n_steps`` of the shorter arm, of ``n_planned``.
    """

    ratio: float
    error_log: float
    n_steps: int
    n_planned: int


class ArmPrice(msgspec.Struct, frozen=True):
    """What all nodes of an arm cost by the hour from a moment on, and by which terms."""

    from_s: float
    usd_per_hour: float
    basis: str


class ArmFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm took, from its start to its newest step; None where nobody can tell.

    ``ready_s`` is from the run's start to its first step, ``compile_s`` what of it is known to
    be compiling; ``warm_up_s`` the ``n_warm_up`` steps until it settled, which no measure counts.
    The dollars are those of these parts, and of pauses between steps. ``first_epoch_step_s`` is
    the mean step of the first pass over the data, of which ``first_epoch_ratio`` is done.

    ``usd_per_hour`` is the last of ``prices``, each of which some of the time was paid by.
    ``n_lost`` steps were trained again after a failure; ``settled_s`` and ``settled_tokens`` are
    the seconds and tokens of the settled steps whose tokens are known.
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

    ``equal_tokens`` are those after which losses are compared. Once both arms have their planned
    steps the words are decided, and stand. ``pace`` is None where no pace is told, and in figures
    of earlier versions.
    """

    label: str
    run: str
    comparisons: tuple[Comparison, ...]
    equal_tokens: float | None = None
    is_decided: bool = False
    pace: PaceEvidence | None = None

    def of(self, measure: str) -> Comparison | None:
        """Return the comparison by one measure, None where it cannot be made."""
        return next((each for each in self.comparisons if each.measure == measure), None)


class TrialFigures(msgspec.Struct, frozen=True):
    """All that a trial shows: what must match, the arms, and each candidate's comparison."""

    matches: tuple[Match, ...]
    arms: tuple[ArmFigures, ...]
    candidates: tuple[Candidate, ...]


def kept(figures: TrialFigures) -> dict[str, object]:
    """Return figures as a trial's row keeps them."""
    plain: dict[str, object] = msgspec.to_builtins(figures)
    return plain


def read(plain: dict[str, object]) -> TrialFigures | None:
    """Return the figures that a row keeps; None where there are none yet."""
    return msgspec.convert(plain, TrialFigures) if plain else None
