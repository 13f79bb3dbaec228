"""All steps of a run since training began, in bounded memory: sums over adjacent steps."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, groupby
from operator import itemgetter

import numpy as np
from django.db.models import QuerySet, Sum

from fleet.models import Run
from telemetry.blocks import FloatArray
from telemetry.statistics.tariff import Tariff
from telemetry.statistics.verdicts import is_lost, settled_from
from telemetry.steps import PHASES
from telemetry.store.chunks import (
    ENDED,
    FIRST_PHASE,
    LOSS,
    N_COLUMNS,
    STEP,
    TOKENS,
    chunk_of,
    decode_steps,
)
from telemetry.store.models import RunChunk
from telemetry.store.reading import Source
from telemetry.units import HOUR_S, MINUTE_S

# Above this number, neighbouring steps are summed; a block bootstrap allows it.
MOST_ROWS = 4_000
HEAVY_RATIO = 0.25
# Warm-up ends within the first steps.
HEAD_STEPS = 2_000
COLUMNS = (
    *("steps", "step_s", "counted_s", "tokens", "usd"),
    *("reported_s", "allreduce_s", "heavy", "heavy_s", "loss", "loss_steps"),
    *("paid_usd", "unique_tokens", "lost", "earlier_tokens"),
)
WAIT, TRANSFER = (FIRST_PHASE + PHASES.index(phase) for phase in ("wait_s", "transfer_s"))


@dataclass(frozen=True, slots=True)
class ArmSteps:
    """Sums over the steps of a run.

    ``sums`` (n_rows, 15) holds COLUMNS: number of steps, their seconds; seconds, tokens and
    dollars of those with known tokens; seconds and exposed all-reduce seconds of those that
    report it; number and seconds of the all-reduce-heavy ones; sum and number of losses; dollars
    of all steps, NaN without a price; tokens of steps that no later start repeated (only these
    count losses), number of repeated steps, and tokens of the steps before the first stored one,
    in the first row. The first ``n_warm_rows`` are the warm-up. Times are Unix seconds.
    ``first_step`` is the first stored step; ``has_beginning`` is False if training began earlier.
    """

    sums: FloatArray
    n_warm_rows: int = 0
    first_step_s: float = float("nan")
    first_began_s: float = float("nan")
    first_step: int = 0
    last_step: int = 0
    has_beginning: bool = True

    def __len__(self) -> int:
        return int(self.sums[:, 0].sum())


def steps_of(hot: Source, run: Run, *, until: datetime) -> ArmSteps:
    """Sum a run's steps that ended before a time, from durable and hot tier.

    Summing neighbouring steps does not change ratios of sums. All-reduce-heavy are, in each hour,
    the quarter of the steps whose all-reduce share was largest. A log may have every tenth step
    only: a stored step counts those since the one before.
    """
    until_s = until.timestamp()
    kept = RunChunk.objects.filter(run=run.name, start__lt=until_s)
    n_kept = kept.aggregate(n=Sum("n_steps"))["n"] or 0
    recent = _recent(hot, run.name, kept.order_by("-start").values_list("start", "length_s"))
    n_in_row = -(-(n_kept + len(recent)) // MOST_ROWS) or 1
    head = np.zeros((0, N_COLUMNS))
    for hour in _hours(kept.order_by("start"), recent):
        head = np.concatenate([head, _counting(hour, until_s)])[:HEAD_STEPS]
        if len(head) == HEAD_STEPS:
            break
    settled = float(head[settled_from(_step_s(head)), STEP]) if len(head) else 0.0
    # The first row covers as many steps as others usually do.
    usual = float(np.median(np.diff(head[:, STEP]))) if len(head) > 1 else 1.0
    starts = starts_of(run, until_s)
    keys: list[FloatArray] = [np.zeros(0)]
    parts: list[FloatArray] = [np.zeros((0, len(COLUMNS)))]
    ends: list[FloatArray] = []
    n_first = n_rows = 0.0
    for hour in _hours(kept.order_by("start"), recent):
        rows = _counting(hour, until_s)
        if len(rows):
            if not ends:
                n_first = min(usual, max(1.0, rows[0, STEP]))
            weight = covered_steps(rows, *ends[1:], n_first=n_first)
            ends = [ends[0] if ends else rows[0], rows[-1]]
            place = n_rows + np.arange(len(rows))
            n_rows += len(rows)
            key = np.where(rows[:, STEP] < settled, -1.0, place // n_in_row)
            lost = is_lost(rows[:, STEP], starts)
            key, sums = _summed(key, _columns(rows, run.rates, lost, weight))
            keys.append(key)
            parts.append(sums)
    key, sums = _summed(np.concatenate(keys), np.concatenate(parts))
    if not ends:
        return ArmSteps(sums)
    first, last = ends
    first_s = float(_step_s(first[None])[0])
    n_earlier = max(0.0, first[STEP] - n_first)
    columns = dict(zip(COLUMNS, sums.sum(axis=0), strict=True))
    sums[0, COLUMNS.index("earlier_tokens")] = n_earlier * columns["tokens"] / columns["steps"]
    return ArmSteps(
        sums,
        n_warm_rows=int((key < 0).sum()),
        first_step_s=first_s,
        first_began_s=float(first[ENDED]) - n_first * first_s,
        first_step=int(first[STEP]),
        last_step=int(last[STEP]),
        # The first row of a log may have no duration, and so is not stored.
        has_beginning=bool(n_earlier <= n_first),
    )


def covered_steps(
    rows: FloatArray, before: FloatArray | None = None, *, n_first: float
) -> FloatArray:
    """Count the steps that each row covers, (n_rows,): those since the row before.

    They are not more than its duration fits into the time since then, because numbers also jump
    where steps were never trained.

    Parameters
    ----------
    before : the row before the first one; None: it covers ``n_first`` steps
    """
    step_s = _step_s(rows)
    first = before if before is not None else rows[0] - np.eye(N_COLUMNS)[STEP] * n_first
    number, ended_s = np.vstack([first, rows])[:, [STEP, ENDED]].T
    fitting = np.rint(np.diff(ended_s) / np.where(step_s > 0, step_s, np.inf))
    weight = np.clip(fitting, 1.0, np.maximum(1.0, np.diff(number)))
    if before is None:
        weight[0] = n_first
    return np.asarray(weight)


def starts_of(run: Run, until_s: float) -> list[tuple[float, float]]:
    """List a run's starts before a time: first step, and our step count less the job's."""
    starts = (start for start in run.starts or () if start["began_s"] < until_s)
    return [(start["first_step"], start["shift"]) for start in starts]


def _counting(rows: FloatArray, until_s: float) -> FloatArray:
    """Keep steps with a duration that ended before a time."""
    return rows[(rows[:, ENDED] < until_s) & np.isfinite(_step_s(rows))]


def _recent(hot: Source, run: str, newest_first: Iterable[tuple[int, int]]) -> FloatArray:
    """Read the steps that the durable tier may not have yet.

    Its newest minute may have been stored before it was over: some steps come twice.
    """
    done = max((start + length_s for start, length_s in newest_first), default=0)
    batch = hot.steps(run, since_s=float(done - MINUTE_S))
    return chunk_of(batch).steps if len(batch) else np.zeros((0, N_COLUMNS))


def _hours(kept: QuerySet[RunChunk], recent: FloatArray) -> Iterator[FloatArray]:
    """Yield the rows hour by hour, each step once, in order."""
    rows = kept.values_list("start", "steps").iterator(chunk_size=24)
    pieces = ((start // HOUR_S, decode_steps(bytes(data))) for start, data in rows)
    hour_of = recent[:, ENDED] // HOUR_S
    fresh = ((int(hour), recent[hour_of == hour]) for hour in np.unique(hour_of))
    for _, group in groupby(chain(pieces, fresh), key=itemgetter(0)):
        joined = np.concatenate([piece for _, piece in group])
        yield joined[np.unique(joined[:, STEP], return_index=True)[1]]


def _step_s(rows: FloatArray) -> FloatArray:
    """Seconds of each step, (n_steps,); NaN where nothing is reported."""
    phases = rows[:, FIRST_PHASE:LOSS]
    known = np.isfinite(phases)
    return np.where(known.any(axis=1), np.where(known, phases, 0.0).sum(axis=1), np.nan)


def _columns(rows: FloatArray, rates: Tariff, lost: FloatArray, weight: FloatArray) -> FloatArray:
    """Compute COLUMNS of each row, (n_rows, 15); every row must have a duration."""
    step_s, tokens = weight * _step_s(rows), weight * rows[:, TOKENS]
    usd = rates.each_usd(rows[:, ENDED] - step_s, rows[:, ENDED])
    allreduce_s = weight * (rows[:, WAIT] + rows[:, TRANSFER])
    is_counted, has_share = np.isfinite(tokens), np.isfinite(allreduce_s) & (step_s > 0)
    share = np.where(has_share, allreduce_s, 0.0) / np.where(has_share, step_s, 1.0)
    n_heavy = int(HEAVY_RATIO * has_share.sum())
    heavy = np.zeros(len(rows))
    order = np.argsort(np.where(has_share, share, -1.0), kind="stable")
    heavy[order[len(rows) - n_heavy :]] = 1.0
    counted_s = np.where(is_counted, step_s, 0.0)
    has_loss = np.isfinite(rows[:, LOSS]) & (lost == 0)
    return np.stack(
        [
            weight,
            step_s,
            counted_s,
            np.where(is_counted, tokens, 0.0),
            np.where(is_counted, usd, 0.0),
            np.where(has_share, step_s, 0.0),
            np.where(has_share, allreduce_s, 0.0),
            heavy * weight,
            heavy * step_s,
            np.where(has_loss, weight * rows[:, LOSS], 0.0),
            has_loss * weight,
            usd,
            np.where(is_counted & (lost == 0), tokens, 0.0),
            lost * weight,
            np.zeros(len(rows)),
        ],
        axis=1,
    )


def _summed(keys: FloatArray, columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sum neighbouring rows of the same key."""
    if not len(keys):
        return keys, columns
    first = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    return keys[first], np.add.reduceat(columns, first, axis=0)
