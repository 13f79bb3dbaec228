"""Steps of a log: gathered from lines, and completed with durations, batch and tokens."""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from importers.logs.records import StepRecord
from telemetry.blocks import FloatArray, IntArray

# All but its number: the time first, then the duration.
COLUMNS = tuple(field.name for field in fields(StepRecord))[1:]
N = len(COLUMNS)
RATE = COLUMNS.index("seq_per_s")
KEPT_FIRST = {COLUMNS.index("at_s"), COLUMNS.index("elapsed_s")}
MAX_STEPS = 1_000_000
# A step that is logged again this much later was trained again after a restart. Clocks of ranks
# differ by less: one that falls by more was set back, or counts from a restart.
RETRAINED_S = 60.0
RETRAINED_STEPS = 5.0

EXACT_RATIO = 0.005
FAR_APART = 10
# A progress bar's clock has whole seconds: over a shorter time its smoothed rate is better.
LEAST_BAR_S = 5.0
# Clocks of whole seconds are read over a minute: within 2 % of it.
LEAST_WHOLE_S = 60.0
# Durations of a step that differ by more than this factor contradict each other.
CONTRADICTION = 1.5
LEAST_LINES = 4
# Engines of one log, as an actor and a critic, disagree on the rate of this share of the steps.
DISPUTED_RATIO = 0.1
# Over how many steps libraries average a rate: none, neuronx-distributed's default, all so far.
WINDOWS = (1, 10, MAX_STEPS)
LEAST_EXPLAINED = 3
Columns = dict[str, FloatArray]


class TooManyStepsError(ValueError):
    """A log has more than ``MAX_STEPS`` steps."""


class LineSteps:
    """The steps of one family of lines; memory grows with steps, not with lines.

    If several lines report a step, the newest figures and the first time count: it is nearest
    to the step's end.
    """

    def __init__(self) -> None:
        self._row_of: dict[int, int] = {}
        self._values = array("d")
        self.n_lines = 0
        self.n_retrained = 0
        self.n_disputed = 0

    def __len__(self) -> int:
        return len(self._row_of)

    def add(self, record: StepRecord) -> None:
        self.n_lines += 1
        new = [getattr(record, name) for name in COLUMNS]
        row = self._row_of.get(record.step)
        if row is None:
            if len(self._row_of) >= MAX_STEPS:
                raise TooManyStepsError(
                    f"FILE: has more than {MAX_STEPS:,} steps; split it, or thin it out"
                )
            self._row_of[record.step] = len(self._row_of)
            self._values.extend(new)
            return
        start = row * N
        # Another rank logs the same step within a few step times.
        later_s = record.at_s - self._values[start]
        step_s = self._values[start + 1]
        usual_s = 0.0 if math.isnan(step_s) else step_s
        is_retrained = later_s > max(RETRAINED_S, RETRAINED_STEPS * usual_s)
        rate, other = record.seq_per_s, self._values[start + RATE]
        self.n_disputed += not is_retrained and (
            rate > CONTRADICTION * other or other > CONTRADICTION * rate
        )
        self.n_retrained += is_retrained
        for i, value in enumerate(new):
            is_kept = (
                i in KEPT_FIRST and not is_retrained and not math.isnan(self._values[start + i])
            )
            if not math.isnan(value) and not is_kept:
                self._values[start + i] = value

    def columns(self) -> dict[str, FloatArray]:
        """Return ``step`` and each of COLUMNS, (n,) in order of step; NaN if not logged."""
        steps = np.fromiter(self._row_of, "i8", len(self._row_of))
        order = np.argsort(steps, kind="stable")
        values = np.array(self._values).reshape(-1, N)[order]
        columns = {"step": steps[order].astype("f8")} | {
            name: values[:, i] for i, name in enumerate(COLUMNS)
        }
        for name in ("loss", "grad_norm"):
            # The newest line of a step may say that its figure is no longer finite.
            columns[name] = np.where(columns[f"{name}_kind"] > 0, np.nan, columns[name])
        return columns


@dataclass(frozen=True, slots=True)
class NotFinite:
    """Where a figure was logged as NaN or infinite."""

    name: str  # loss or grad_norm
    value: str  # NaN, Infinity or -Infinity, of the last such step
    n_steps: int  # how many steps
    since: int  # the first step of those that last to the end of the log; of all, if it recovered
    is_last: bool  # whether the last step that logged the figure is one
    last_finite: float  # the last finite figure before, NaN if there is none
    finite_step: int  # its step, -1 if there is none


KINDS = ("", "NaN", "Infinity", "-Infinity")


def not_finite(columns: Mapping[str, FloatArray]) -> tuple[NotFinite, ...]:
    """Return what is known of figures that were logged and not finite."""
    values = []
    for name in ("loss", "grad_norm"):
        kind = columns[f"{name}_kind"]
        (logged,) = np.nonzero(np.isfinite(kind))
        bad = kind[logged] > 0
        if not bad.any():
            continue
        finite = np.flatnonzero(~bad)
        is_last = bool(bad[-1])
        first = int(finite[-1]) + 1 if is_last and len(finite) else int(np.argmax(bad))
        before = finite[finite < first]
        row = logged[before[-1]] if len(before) else -1
        values.append(
            NotFinite(
                name=name,
                value=KINDS[int(kind[logged[bad]][-1])],
                n_steps=int(bad.sum()),
                since=int(columns["step"][logged[first]]),
                is_last=is_last,
                last_finite=float(columns[name][row]) if row >= 0 else math.nan,
                finite_step=int(columns["step"][row]) if row >= 0 else -1,
            )
        )
    return tuple(values)


@dataclass(frozen=True, slots=True)
class LoggedSteps:
    """The steps of a log in order; all (n,), NaN if unknown."""

    step: IntArray  # numbers, rising; scripts may log every few steps only
    step_s: FloatArray  # seconds
    at_s: FloatArray  # Unix seconds at which the line was written, never falling
    tokens: FloatArray  # tokens trained in the step
    seq_per_s: FloatArray  # sequences per second, as logged or from the batch
    # loss, grad_norm, learning_rate: as logged
    loss: FloatArray
    grad_norm: FloatArray
    learning_rate: FloatArray
    global_batch: float  # sequences per step
    # Source of the durations: told (logged), batch, clock or bar; empty without durations
    how: str
    # The sources that contradict each other, the one that counts last, and what each gives for a
    # step, in seconds; empty if they agree
    clocks: tuple[tuple[str, float], ...] = ()
    # The batch that the log gives, if another one was given that counts; else NaN
    other_batch: float = math.nan
    # What contradict each other as tokens of a step, the one that counts first, and what each
    # gives; empty if they agree
    token_counts: tuple[tuple[str, float], ...] = ()
    # The first step at which the clock of the lines fell, and seconds; -1 and 0.0 if it never did
    fell: tuple[int, float] = (-1, 0.0)
    # Why a logged rate does not count: mean (averaged over earlier steps), disputed (several
    # engines log different ones for one step); empty if it counts
    rate_doubt: str = ""
    # Where loss and gradient norm were logged as NaN or infinite
    not_finite: tuple[NotFinite, ...] = ()

    def __len__(self) -> int:
        return len(self.step)

    @property
    def weight(self) -> IntArray:
        """How many steps each row covers: those since the previous row.

        Steps in a jump that is far larger than usual count if they fit into its time: a part of
        the log is missing. Otherwise they were not trained.
        """
        passed_s = np.diff(self.at_s, prepend=np.nan)
        fits = passed_s * CONTRADICTION >= np.diff(self.step, prepend=0) * self.step_s
        return np.where(fits, np.diff(self.step, prepend=0), _weight(self.step))

    @property
    def is_dated(self) -> bool:
        return bool(np.isfinite(self.at_s).any())


def _weight(step: IntArray) -> IntArray:
    usual = int(np.median(np.diff(step))) if len(step) > 1 else 1
    first = min(usual, max(1, int(step[0]))) if len(step) else 1
    between = np.diff(step, prepend=step[:1] - first)
    return np.where(between > FAR_APART * usual, usual, between)


def complete_steps(
    gathered: LineSteps, *, global_batch: float, seq_len: float, total_batch: float = math.nan
) -> LoggedSteps:
    """Complete gathered steps with the figures that follow from those logged.

    Parameters
    ----------
    global_batch, seq_len : given by the user, NaN if not
    total_batch : sequences per step by the log's summary, which counts if nothing else is known

    Notes
    -----
    A step's duration is, in this order: as logged; batch ÷ sequences per second, or tokens ÷
    tokens per second; the difference of the bar's clock, or of the lines' times, over the steps
    between; the bar's smoothed rate. Rates that contradict a clock are dropped.
    """
    columns = gathered.columns()
    columns["at_s"], fell = forward(columns["at_s"], columns["step"])
    rate_doubt = "mean" if np.isfinite(columns["mean_seq_per_s"]).any() else ""
    if gathered.n_disputed > DISPUTED_RATIO * len(gathered):
        rate_doubt, columns["seq_per_s"] = "disputed", np.full(len(gathered), np.nan)
    logged_batch = _batch(columns)
    given_batch = np.full(len(gathered), global_batch)
    batch = logged_batch if math.isnan(global_batch) else given_batch
    if np.isnan(batch).all():
        batch = np.full(len(gathered), total_batch)
    by_rate = _divide(batch, columns["seq_per_s"])
    by_tokens = _divide(columns["tokens"], columns["tokens_per_s"])
    durations = {
        "told": _logged_s(columns),
        "batch": np.where(np.isnan(by_rate), by_tokens, by_rate),
        "bar": _seconds_per_step(
            columns["elapsed_s"],
            columns["step"],
            least_s=LEAST_BAR_S if _is_whole(columns["elapsed_s"]) else 0.0,
        ),
        "clock": _seconds_per_step(columns["at_s"], columns["step"]),
        "rate": columns["rate_s"],
    }
    clocks = _contradiction(columns, durations)
    if clocks and clocks[0][0] == "batch":
        durations["batch"] = np.full(len(gathered), np.nan)
        columns["seq_per_s"] = columns["tokens_per_s"] = durations["batch"]
    step_s, how = np.full(len(gathered), np.nan), ""
    for name, values in durations.items():
        missing = np.isnan(step_s)
        if (missing & np.isfinite(values)).any():
            how = how or ("bar" if name == "rate" else name)
            step_s = np.where(missing, values, step_s)
    if rate_doubt == "mean" and np.isnan(batch).all():
        batch = np.full(len(gathered), _explaining_batch(columns["mean_seq_per_s"], step_s))
    if np.isfinite(batch).any():
        rate_doubt = ""
    # Batch over measured time is the rate of now; a logged one may be an average.
    measured = _divide(batch, step_s)
    is_logged = np.isnan(measured) | np.isclose(measured, columns["seq_per_s"], rtol=1e-9)
    seq_per_s = np.where(is_logged, columns["seq_per_s"], measured)
    # Clocks of ranks differ, but times must not fall.
    known_s = columns["at_s"]
    is_known = np.isfinite(known_s)
    rising_s = np.full(len(known_s), np.nan)
    rising_s[is_known] = np.maximum.accumulate(known_s[is_known])
    counts = _token_counts(columns, step_s, batch, seq_len)
    return LoggedSteps(
        step=columns["step"].astype("i8"),
        step_s=step_s,
        at_s=rising_s,
        tokens=_tokens(counts),
        seq_per_s=seq_per_s,
        loss=columns["loss"],
        grad_norm=columns["grad_norm"],
        learning_rate=columns["learning_rate"],
        global_batch=_median(batch),
        how=how,
        clocks=clocks,
        other_batch=_other_batch(logged_batch, total_batch, global_batch),
        token_counts=_contradicting(counts),
        fell=fell,
        rate_doubt=rate_doubt,
        not_finite=not_finite(columns),
    )


def forward(clock_s: FloatArray, step: FloatArray) -> tuple[FloatArray, tuple[int, float]]:
    """Let a clock that falls go on at its usual pace, because time was not paid twice.

    Returns the clock, and the first step at which it fell with the seconds; -1 and 0.0 if it never
    did. Clocks fall at the end of summer time, after a restart that counts from zero, and where
    one file has two runs.
    """
    known = np.flatnonzero(np.isfinite(clock_s))
    passed_s, n_steps = np.diff(clock_s[known]), np.diff(step[known])
    falls = passed_s < -RETRAINED_S
    if not falls.any():
        return clock_s, (-1, 0.0)
    usual_s = _median((passed_s / n_steps)[passed_s > 0])
    missing_s = np.where(falls, np.nan_to_num(usual_s) * n_steps - passed_s, 0.0)
    going = clock_s.copy()
    going[known[1:]] += np.cumsum(missing_s)
    first = int(np.argmax(falls))
    return going, (int(step[known[first + 1]]), float(-passed_s[first]))


def _logged_s(columns: Columns) -> FloatArray:
    """Return the logged duration of a step, the mean of the steps since the line before.

    Where a line has that of its own step only, as one with an evaluation in it, the steps between
    took the usual time.
    """
    n = np.maximum(1, _weight(columns["step"].astype("i8")))
    own_s = columns["own_s"]
    known = (columns["step_s"], _accumulated_s(columns), (own_s + (n - 1) * _median(own_s)) / n)
    step_s = known[0]
    for way in known[1:]:
        step_s = np.where(np.isnan(step_s), way, step_s)
    return step_s


def _accumulated_s(columns: Columns) -> FloatArray:
    """Return the duration of steps of which only that of one of their batches is logged."""
    known = np.isfinite(columns["iteration"])
    step, iteration = columns["step"][known], columns["iteration"][known]
    per_step = 1.0
    if known.sum() > 1:
        per_step = float(np.median(np.diff(iteration) / np.diff(step)))
    elif known.any() and step[0] > 0:
        per_step = round(float(iteration[0] / step[0]))
    return columns["iteration_s"] * max(1.0, per_step)


def _explaining_batch(rate: FloatArray, step_s: FloatArray) -> float:
    """Return the batch that explains averaged rates by the steps' durations; NaN if none does."""
    known = np.isfinite(rate) & np.isfinite(step_s)
    if known.sum() < LEAST_EXPLAINED:
        return math.nan
    total_s = np.concatenate(([0.0], np.cumsum(step_s[known])))
    end = np.arange(1, len(total_s))
    for window in WINDOWS:
        start = np.maximum(end - window, 0)
        batch = rate[known] * (total_s[end] - total_s[start]) / (end - start)
        usual = float(np.median(batch))
        if np.ptp(batch) <= 2 * EXACT_RATIO * usual:
            return max(1.0, round(usual))
    return math.nan


def _contradiction(
    columns: Columns, durations: Mapping[str, FloatArray]
) -> tuple[tuple[str, float], ...]:
    """Compare the trainer's own figure with what the clocks measured.

    Both the usual and the mean duration by a clock must be far from it: pauses change the one,
    lines that are written in batches the other.
    """
    claimed = next((name for name in ("told", "batch") if np.isfinite(durations[name]).any()), "")
    for name, clock_s in (("bar", columns["elapsed_s"]), ("clock", columns["at_s"])):
        measured = [_median(_seconds_per_step(clock_s, columns["step"]))]
        is_timed = np.isfinite(clock_s)
        passed_s, n_steps = np.diff(clock_s[is_timed]), np.diff(columns["step"][is_timed])
        # A clock that begins again is left out of the mean.
        if (goes_on := passed_s >= 0).any():
            measured += [float(passed_s[goes_on].sum() / n_steps[goes_on].sum())]
        measured += [_median(durations["rate"])] if name == "bar" else []
        known = np.array([value for value in measured if math.isfinite(value)])
        n_least = 1 if name == "bar" else LEAST_LINES
        if claimed and len(known) and np.isfinite(clock_s).sum() >= n_least:
            step_s = _median(durations[claimed])
            if (known > CONTRADICTION * step_s).all() or (known * CONTRADICTION < step_s).all():
                order = ((claimed, step_s), (name, float(known[-1])))
                return order if claimed == "batch" else order[::-1]
            return ()
    return ()


def _batch(columns: Columns) -> FloatArray:
    """Return sequences per step: as logged, or from the count of consumed ones."""
    known, each = np.isfinite(columns["consumed"]), np.nan
    if known.sum() > 1:
        step, consumed = columns["step"][known], columns["consumed"][known]
        each = float(np.median(np.diff(consumed) / np.diff(step)))
        is_whole = each >= 1 and abs(each - round(each)) <= EXACT_RATIO * each
        each = round(each) if is_whole else np.nan
    return np.where(np.isnan(columns["global_batch"]), each, columns["global_batch"])


def _other_batch(logged: FloatArray, total: float, given: float) -> float:
    """Return the log's batch if it is not the one that was given; NaN if it is, or is unknown.

    That of a summary follows from rounded rates.
    """
    known, ratio = _median(logged), EXACT_RATIO
    if math.isnan(known):
        known, ratio = total, CONTRADICTION - 1
    return known if abs(known - given) > ratio * min(known, given) else math.nan


def _token_counts(
    columns: Columns, step_s: FloatArray, batch: FloatArray, seq_len: float
) -> dict[str, FloatArray]:
    """Return tokens per step by each source, the first known of which counts."""
    return {
        "told": columns["tokens"],
        "rate": columns["tokens_per_s"] * step_s,
        "batch": batch * seq_len,
        "sequences": columns["seq_per_s"] * step_s * seq_len,
        "growth": _growth(columns),
    }


def _tokens(counts: Mapping[str, FloatArray]) -> FloatArray:
    tokens, *others = counts.values()
    for way in others:
        tokens = np.where(np.isnan(tokens), way, tokens)
    return np.asarray(tokens)


def _contradicting(counts: Mapping[str, FloatArray]) -> tuple[tuple[str, float], ...]:
    """Return the source of tokens that counts and the first that contradicts it, if any."""
    usual = [(name, _median(values)) for name, values in counts.items()]
    first, *others = [each for each in usual if math.isfinite(each[1])] or [("", math.nan)]
    for other in others:
        if max(first[1], other[1]) > CONTRADICTION * min(first[1], other[1]):
            return (first, other)
    return ()


def _growth(columns: Columns) -> FloatArray:
    """Return tokens per step by the count of consumed ones, the median for the first row."""
    known = np.isfinite(columns["consumed_tokens"])
    each = np.full(len(known), np.nan)
    if known.sum() > 1:
        step, consumed = columns["step"][known], columns["consumed_tokens"][known]
        grown = np.diff(consumed) / np.diff(step)
        each[known] = np.append(np.median(grown), grown)
    # A count that begins again is no growth.
    return np.where(each > 0, each, np.nan)


def _divide(amount: FloatArray, per: FloatArray) -> FloatArray:
    """Divide; NaN where the divisor is not positive."""
    empty = np.full(len(per), np.nan)
    return np.asarray(np.divide(amount, per, out=empty, where=per > 0))


def _seconds_per_step(
    clock_s: FloatArray, step: FloatArray, *, least_s: float = 0.0
) -> FloatArray:
    """Return seconds per step since the previous row with a time; NaN if too few passed.

    A clock of whole seconds is read over ``LEAST_WHOLE_S``, if the log is that long or its rows
    are a few seconds apart: the mean of the later half of the rows in it against that of the
    earlier, because the seconds that were cut off cancel out in means.
    """
    known = np.flatnonzero(np.isfinite(clock_s))
    each = np.full(len(step), np.nan)
    if len(known) > 1:
        at_s, numbers = clock_s[known], step[known]
        last = np.arange(1, len(known))
        before, half = last - 1, np.ones(len(last), "i8")
        is_long = at_s[-1] - at_s[0] >= LEAST_WHOLE_S or np.median(np.diff(at_s)) < LEAST_BAR_S
        if is_long and _is_whole(at_s) and (np.diff(at_s) >= 0).all():
            earliest = np.searchsorted(at_s, at_s[1:] - LEAST_WHOLE_S, side="right") - 1
            before = np.minimum(before, np.maximum(earliest, 0))
            half = (last - before + 1) // 2
        passed_s = _mean_between(at_s, before, last, half)
        is_enough = (passed_s > 0) & (at_s[1:] - at_s[before] >= least_s)
        n_steps = _mean_between(numbers, before, last, half)
        each[known[1:]] = np.where(is_enough, passed_s / n_steps, np.nan)
    return each


def _mean_between(values: FloatArray, first: IntArray, last: IntArray, n: IntArray) -> FloatArray:
    """Return the mean of the ``n`` values up to ``last`` less that of the ``n`` from ``first``."""
    total = np.concatenate(([0.0], np.cumsum(values - values[0])))
    later, earlier = total[last + 1] - total[last + 1 - n], total[first + n] - total[first]
    return np.asarray((later - earlier) / n)


def _is_whole(values: FloatArray) -> bool:
    known = values[np.isfinite(values)]
    return bool((known == np.floor(known)).all())


def _median(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else np.nan
