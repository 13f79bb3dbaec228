"""One arm of a schedule: from what it was seen to do to dollars and tokens over time."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from telemetry.blocks import FloatArray

HOURS_PER_DAY: Final = 24.0
SECONDS_PER_HOUR: Final = 3_600.0
SECONDS_PER_DAY: Final = 86_400.0
# Beyond e to this nothing is ever finished; infinities would be no help in saying so.
MOST_EXPONENT: Final = 50.0

Amount = float | FloatArray


@dataclass(frozen=True, slots=True)
class Habits:
    """What one arm does; figures may be (n_draws,) arrays of what they could be.

    Parameters
    ----------
    n_nodes : how many nodes it runs on
    usd_per_hour : dollars for all of them
    tokens_per_s : pace of settled steps, without checkpoints
    checkpoint_s_per_hour : seconds of each hour of training that go into checkpoints
    checkpoint_every_s : seconds of training between two of them
    compile_s : seconds to compile all graphs with an empty cache
    load_s : seconds from a start to the first step, besides compiling
    warm_up_s : seconds that warming up takes beyond what its steps take once settled
    failures_per_node_day : failures that stop the run, per node and day of training
    recompiles_per_day : recompiles that nobody planned, per day of training
    unlucky_ratio : how much more of an interval than its half a failure loses, -0.5 to 0.5
    """

    n_nodes: int
    usd_per_hour: Amount
    tokens_per_s: Amount
    checkpoint_s_per_hour: Amount
    checkpoint_every_s: Amount
    compile_s: Amount
    load_s: Amount
    warm_up_s: Amount
    failures_per_node_day: Amount
    recompiles_per_day: Amount
    unlucky_ratio: Amount = 0.0


@dataclass(frozen=True, slots=True)
class Course:
    """Where an arm goes, as straight lines: dollars from the start, tokens from the first step.

    Every figure is one number, or (n_draws,).
    """

    fixed_usd: Amount
    usd_per_day: Amount
    start_days: Amount
    tokens_per_day: Amount

    def usd_by(self, days: Amount) -> Amount:
        """Return the dollars spent so many days after the start."""
        return self.fixed_usd + self.usd_per_day * days

    def tokens_by(self, days: Amount) -> Amount:
        """Return the tokens trained on so many days after the start."""
        return np.maximum(days - self.start_days, 0.0) * self.tokens_per_day

    def days_for(self, tokens: Amount) -> Amount:
        """Return the days that training on so many tokens takes, the start included."""
        return self.start_days + tokens / self.tokens_per_day

    def usd_for(self, tokens: Amount) -> Amount:
        """Return the dollars that training on so many tokens takes, the start included."""
        return self.usd_by(self.days_for(tokens))

    @property
    def usd_per_token(self) -> Amount:
        """Dollars for one more token, once it trains."""
        return self.usd_per_day / self.tokens_per_day

    @property
    def usd_at_first_step(self) -> Amount:
        """Dollars spent before the first token."""
        return self.usd_by(self.start_days)


def course(habits: Habits, *, has_reuse: bool, porting_usd: float = 0.0) -> Course:
    """Return where an arm goes, with or without its compiled graphs being kept.

    Parameters
    ----------
    habits : of the arm
    has_reuse : whether every start after the first finds its graphs in the cache
    porting_usd : what was paid for moving the model there

    Notes
    -----
    The start takes ``compile_s + load_s + warm_up_s``: the graphs are compiled once in any case.
    From then on a day of training takes `stretch` days, and yields
    ``tokens_per_s * 86400 * (1 - checkpoint_s_per_hour / 3600)`` tokens.

    Examples
    --------
    One node at $24 an hour and 1,000 tokens/s saves for 36 s of each hour, every hour; it starts
    in 2.4 h, of which 1.4 h compiling, and fails once a day. With reuse a day of training takes
    25.55 h:

    >>> one = Habits(1, 24.0, 1000.0, 36.0, 3600.0, 5040.0, 3600.0, 0.0, 1.0, 0.0)
    >>> kept = course(one, has_reuse=True)
    >>> round(kept.start_days, 6), kept.usd_per_day
    (0.1, 576.0)
    >>> round(float(stretch(one, has_reuse=True)) * 24, 2)
    25.55
    """
    training_ratio = 1 - habits.checkpoint_s_per_hour / SECONDS_PER_HOUR
    a_day = habits.tokens_per_s * SECONDS_PER_DAY * training_ratio
    return Course(
        fixed_usd=porting_usd,
        usd_per_day=habits.usd_per_hour * HOURS_PER_DAY,
        start_days=(habits.compile_s + habits.load_s + habits.warm_up_s) / SECONDS_PER_DAY,
        tokens_per_day=a_day / stretch(habits, has_reuse=has_reuse),
    )


def stretch(habits: Habits, *, has_reuse: bool) -> Amount:
    """Return how many days a day of training takes, failures and recompiles included: 1 or more.

    Notes
    -----
    Failures come by chance, ``f`` a second, at any time: in steps, in checkpoints, and while the
    run starts again, which then begins anew. Each costs a restart of ``r`` seconds (``load_s +
    warm_up_s``, without reuse ``compile_s`` too) and all since the last checkpoint. Without reuse
    recompiles make the ``t`` seconds from one checkpoint to the next longer, ``t' = t (1 +
    recompiles_per_day compile_s / 86400)``. To get through them takes, on average,

        exp(f r) (exp(f t') - 1) / f

    seconds (Daly, equation 20). While failures are rare that is ``t' (1 + f (r + t' / 2))``: a
    restart and half an interval for each (Young 1974), which a failure within three intervals
    makes 2 % too little, and one in each of them 13 %. Where luck has it, failures lose more
    than half an interval: ``unlucky_ratio`` of it each, to first order.

    References
    ----------
    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
    Future Generation Computer Systems 22 (2006), 303-312.
    J. W. Young, "A First Order Approximation to the Optimum Checkpoint Interval",
    Communications of the ACM 17 (1974), 530-531.
    """
    failures_per_s = habits.failures_per_node_day * habits.n_nodes / SECONDS_PER_DAY
    restart_s = habits.load_s + habits.warm_up_s + (0.0 if has_reuse else habits.compile_s)
    recompiling_s = 0.0 if has_reuse else habits.recompiles_per_day * habits.compile_s
    longer = 1 + recompiling_s / SECONDS_PER_DAY
    restart = np.minimum(failures_per_s * restart_s, MOST_EXPONENT)
    lost = np.minimum(failures_per_s * habits.checkpoint_every_s * longer, MOST_EXPONENT)
    return longer * np.exp(restart + lost * habits.unlucky_ratio) * _growth(lost)


def _growth(exponent: Amount) -> FloatArray:
    """Return ``(exp(x) - 1) / x``, which is 1 at nothing."""
    x = np.asarray(exponent, dtype=float)
    some = np.where(x > 0, x, 1.0)
    return np.where(x > 0, np.expm1(some) / some, 1.0)
