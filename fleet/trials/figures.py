"""What a trial has shown so far, as figures that are kept, told and drawn."""

import msgspec

from fleet.trials.matching import Match


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


class Price(msgspec.Struct, frozen=True):
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
    prices: tuple[Price, ...] = ()
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


class Figures(msgspec.Struct, frozen=True):
    """All that a trial shows: what must match, the arms, and each candidate's comparison."""

    matches: tuple[Match, ...]
    arms: tuple[ArmFigures, ...]
    candidates: tuple[Candidate, ...]


def kept(figures: Figures) -> dict[str, object]:
    """Return figures as a trial's row keeps them."""
    plain: dict[str, object] = msgspec.to_builtins(figures)
    return plain


def read(plain: dict[str, object]) -> Figures | None:
    """Return the figures that a row keeps; None where there are none yet."""
    return msgspec.convert(plain, Figures) if plain else None
