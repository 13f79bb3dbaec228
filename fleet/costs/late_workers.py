"""Workers that made the others of their run wait, over days, and what that has cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from fleet.models import Run
from telemetry.blocks import FloatArray
from telemetry.steps import PHASES
from telemetry.store.chunks import Chunk
from telemetry.store.history import worker_chunks
from telemetry.units import DAY_S, HOUR_S, MINUTE_S

WAIT = PHASES.index("wait_s")
# What may make a worker late, and what that is called.
REASONS = {"compute_s": "compute", "input_s": "input", "checkpoint_s": "checkpoint"}
# Later than the median worker by this share of the step, in the mean of a minute.
LATE_RATIO = 0.02


@dataclass(slots=True)
class LateWorker:
    """What one worker made its run wait for; ``late_s`` are minutes in which it was late."""

    name: str
    lost_s: float = 0.0
    usd: float = 0.0
    late_s: int = 0
    by_day: dict[int, float] = field(default_factory=dict)
    longer_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(REASONS, 0.0))

    @property
    def node(self) -> str:
        """Its node: its name up to the first slash."""
        return self.name.partition("/")[0]

    @property
    def reason(self) -> str:
        """The phase that took longer than the median worker's while it was late; empty: none."""
        phase = max(self.longer_s, key=self.longer_s.__getitem__)
        return REASONS[phase] if self.longer_s[phase] > 0 else ""


@dataclass(frozen=True, slots=True)
class LateWorkers:
    """``workers``, the most expensive first; ``trained_s`` is the time of all steps.

    ``timed_s`` is the part of it whose waits are known.
    """

    workers: Sequence[LateWorker]
    trained_s: float
    timed_s: float
    n_nodes: int

    @property
    def lost_s(self) -> float:
        return sum(worker.lost_s for worker in self.workers)

    @property
    def lost_ratio(self) -> float | None:
        return self.lost_s / self.timed_s if self.timed_s else None

    @property
    def usd(self) -> float:
        return sum(worker.usd for worker in self.workers)

    def node_hours(self, lost_s: float) -> float:
        return lost_s * self.n_nodes / HOUR_S


def late_workers(run: Run, *, start: datetime, end: datetime) -> LateWorkers:
    """Add up the durable minutes of a run; what is younger than the newest of them is missing."""
    first, last = int(start.timestamp()), int(end.timestamp())
    return added_up(run, worker_chunks(run.name, start_s=first, end_s=last))


def added_up(run: Run, chunks: Iterable[Chunk]) -> LateWorkers:
    """Divide the waits of each minute between the workers that caused them.

    A step waits for its last worker. Were no worker later than the median one, each step would
    be shorter by the wait of the median worker less that of the last. The part of it between the
    k-th and the next latest worker is caused by those k workers together, and divided evenly
    (their Shapley values). Waits are means of a minute: what changes from step to step adds less.
    """
    by_name: dict[str, LateWorker] = {}
    trained_s = timed_s = 0.0
    for chunk in chunks:
        each_s = step_seconds(chunk.means)
        step_s = each_s.sum(axis=1) / np.maximum((each_s > 0).sum(axis=1), 1) * chunk.n
        trained_s += float(step_s.sum())
        waits = chunk.means[:, :, WAIT]
        timed = np.isfinite(waits).sum(axis=1) > 1
        if not timed.any():
            continue
        timed_s += float(step_s[timed].sum())
        _take(run, by_name, chunk, timed)
    order = sorted(by_name.values(), key=lambda each: (-each.lost_s, each.name))
    return LateWorkers(order, trained_s, timed_s, run.n_nodes)


def step_seconds(means: FloatArray) -> FloatArray:
    """Return the seconds of a step: (n_minutes, n_workers); 0 for a worker without a report."""
    return np.asarray(np.where(np.isfinite(means), means, 0.0).sum(axis=2))


def _take(run: Run, found: dict[str, LateWorker], chunk: Chunk, timed: NDArray[np.bool_]) -> None:
    minutes, n, means = chunk.minutes[timed], chunk.n[timed], chunk.means[timed]
    waits = means[:, :, WAIT]
    lost_s = shares(waits) * n[:, None]
    late = np.nanmedian(waits, axis=1)[:, None] - waits > LATE_RATIO * step_seconds(means)
    # A phase that is not reported is part of the compute time.
    phases = np.where(np.isfinite(means), means, 0.0)
    usual = np.median(phases, axis=1)
    usd_per_s = run.rates.rates_at(minutes.astype(float))
    days = minutes // DAY_S * DAY_S
    for column, name in enumerate(chunk.workers):
        known = np.isfinite(waits[:, column])
        if not known.any():
            continue
        each = found.setdefault(name, LateWorker(name))
        lost = np.where(known, lost_s[:, column], 0.0)
        each.lost_s += float(lost.sum())
        each.usd += float((lost * usd_per_s).sum())
        each.late_s += MINUTE_S * int(late[:, column].sum())
        for day in np.unique(days).tolist():
            each.by_day[day] = each.by_day.get(day, 0.0) + float(lost[days == day].sum())
        for phase in REASONS:
            k = PHASES.index(phase)
            longer = (phases[:, column, k] - usual[:, k]) * n
            each.longer_s[phase] += float(longer[late[:, column]].sum())


def shares(waits: FloatArray) -> FloatArray:
    """Return the seconds by which each worker makes a step longer: (n_minutes, n_workers).

    >>> shares(np.array([[0.0, 0.2, 0.5, 0.5, 0.5]])).round(3)
    array([[0.35, 0.15, 0.  , 0.  , 0.  ]])
    """
    order = np.argsort(waits, axis=1)
    rising = np.take_along_axis(waits, order, axis=1)
    upto = np.fmin(rising, np.nanmedian(waits, axis=1)[:, None])
    gaps = np.nan_to_num(np.diff(upto, axis=1, append=upto[:, -1:]))
    parts = gaps / np.arange(1, waits.shape[1] + 1)
    # A worker shares the gaps above its own place.
    mine = np.cumsum(parts[:, ::-1], axis=1)[:, ::-1]
    shares_s = np.empty_like(waits)
    np.put_along_axis(shares_s, order, mine, axis=1)
    return np.where(np.isfinite(waits), shares_s, np.nan)
