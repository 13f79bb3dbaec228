"""What all nodes of the fleet measure now, by signal, to compare them with their peers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import numpy as np

from fleet.charts.deviations import (
    OF_HARDWARE,
    OF_STEPS,
    SIGNALS,
    Outlier,
    Signal,
    deviations_by_role,
    furthest,
    level_of,
    outlier_of,
    strengths,
)
from fleet.models import Run
from fleet.runs.devices import stages
from fleet.runs.node_columns import NodeColumns, Roster
from telemetry.blocks import FloatArray, IntArray, mean
from telemetry.steps import StepBatch
from telemetry.store.history import parts_at, worker_minutes
from telemetry.store.hot import HotStore
from telemetry.store.packing import decode, unpack
from telemetry.store.reading import Packed
from telemetry.units import MINUTE_S

# Levels are of so many moments over half a minute. Of many nodes fewer are read, less often: it
# takes 0.1 s of CPU for 4,000 nodes.
MOMENTS, EVERY_S = 10, 3
MANY_NODES, FEW_MOMENTS, REFRESH_S = 512, 3, 5
# Steps are current for so many of them, and for a minute; none is longer.
STALE_STEPS, LONGEST_STEP_S = 3, 900.0


@dataclass(frozen=True, eq=False)
class Readings:
    """By signal (n_nodes, n_parts) of a roster: the ``newest`` values, and their recent ``level``.

    NaN where unknown, and where a node has fewer parts.
    """

    newest: Mapping[str, FloatArray]
    level: Mapping[str, FloatArray]
    step_s: Mapping[str, float]  # of each run, by name
    is_kept: bool = False  # one rounded value each, of a minute
    # What came of them: readings of many nodes are used for several seconds.
    compared: dict[tuple[object, ...], "Compared"] = field(default_factory=dict)


_READ: WeakKeyDictionary[HotStore, tuple[Roster, int, Readings]] = WeakKeyDictionary()


def fleet_readings(
    hot: HotStore,
    columns: NodeColumns,
    runs: Sequence[str],
    *,
    now_s: float,
    run: int | None = None,
) -> Readings:
    """Read the last half minute of all nodes, or of those of a ``run``, by its key.

    ``runs`` are the names of those whose steps are read.
    """
    newest, roster = hot.newest(), columns.roster
    tick, is_many = max(newest.values(), default=0), len(roster.names) > MANY_NODES
    read = _READ.get(hot)
    if is_many and read and read[0] is roster and tick - read[1] < REFRESH_S:
        return read[2]
    if run is not None:
        shards = {roster.shards[row] for row in np.flatnonzero(roster.run == run).tolist()}
        newest = {shard: at for shard, at in newest.items() if shard in shards}
    ages_s = range(0, EVERY_S * (FEW_MOMENTS if is_many else MOMENTS), EVERY_S)
    wanted = {(shard, at - s) for shard, at in newest.items() for s in ages_s}
    # Exporters of one node are scraped at different times.
    scrapes = (each for each in hot.scrapes().values() if each.shard in newest)
    wanted |= {(each.shard, at) for each in scrapes for at in each.ticks}
    latest: dict[str, FloatArray] = {}
    levels: dict[str, FloatArray] = {}
    for packed in hot.held([(shard, at, at) for shard, at in sorted(wanted)]).values():
        _add_hardware(latest, levels, roster, packed)
    steps = current_steps(hot, runs, now_s=now_s)
    for batch in steps.values():
        _add_steps(latest, levels, roster, batch)
    for values in (*latest.values(), *levels.values()):
        values[~columns.is_up] = np.nan
    step_s = {name: float(mean(batch.step_s, 0)) for name, batch in steps.items()}
    readings = Readings(latest, levels, step_s)
    if run is None:
        _READ[hot] = roster, tick, readings
    return readings


def current_steps(hot: HotStore, runs: Sequence[str], *, now_s: float) -> dict[str, StepBatch]:
    """Return the newest steps of runs, by name, with all workers; none of a run that stands."""
    steps = {}
    for run, state in hot.step_states(runs).items():
        ended_s = state.ended_s
        if now_s - ended_s > LONGEST_STEP_S:
            continue
        since_s = ended_s - EVERY_S * MOMENTS
        batch = hot.recent_steps(run, since_s=since_s, at_least=FEW_MOMENTS, state=state)
        holds_s = max(MINUTE_S, STALE_STEPS * float(mean(batch.step_s, 0)))
        if len(batch) and now_s - ended_s <= holds_s:
            steps[run] = batch
    return steps


def past_readings(
    hot: HotStore, columns: NodeColumns, runs: Sequence[str], *, at_s: int, signal: str = ""
) -> Readings:
    """Read the half minute before a past second, or what is kept of its minute.

    ``runs`` are the names of those whose steps are read. Of the minutes of many nodes only the
    utilization and the ``signal`` are read.
    """
    roster, shards = columns.roster, sorted(set(columns.roster.shards))
    is_many = len(roster.names) > MANY_NODES
    latest: dict[str, FloatArray] = {}
    levels: dict[str, FloatArray] = {}
    if at_s > max(hot.newest().values(), default=0) - hot.keep_s:
        ages_s = range(0, EVERY_S * (FEW_MOMENTS if is_many else MOMENTS), EVERY_S)
        wanted = [(shard, at_s - age_s, at_s - age_s) for shard in shards for age_s in ages_s]
        for packed in hot.held(sorted(wanted)).values():
            _add_hardware(latest, levels, roster, packed)
    is_kept = not levels
    if is_kept:
        latest = levels
        for rows, codes in columns.codes.values():
            _put(levels, SIGNALS["utilization"], roster, rows, decode(codes, "ratio"))
        asked = {signal} if is_many else SIGNALS.keys()
        for each in OF_HARDWARE:
            if each.name in asked and each.name not in levels:
                for nodes, values in parts_at(hot, each.metric, shards, at=at_s):
                    rows = np.array([roster.row_of.get(name, -1) for name in nodes], int)
                    _put(levels, each, roster, rows, values)
    step_s = {}
    for run in runs:
        batch = worker_minutes(hot, run, start_s=at_s - MINUTE_S, end_s=at_s)
        if len(batch):
            _add_steps(latest, levels, roster, batch)
            step_s[run] = float(mean(batch.step_s, 0))
    for kept in (*latest.values(), *levels.values()):
        kept[~columns.is_up] = np.nan
    return Readings(latest, levels, step_s, is_kept)


def _add_hardware(
    latest: dict[str, FloatArray],
    levels: dict[str, FloatArray],
    roster: Roster,
    packed: Sequence[Packed],
) -> None:
    """Add the blocks of a shard, oldest first; nearly always all have one layout."""
    for layout in dict.fromkeys(each[1] for each in packed):
        blobs = [blob for _, own, blob in packed if own == layout]
        rows = roster.rows(layout.nodes, layout.digest)
        for signal in OF_HARDWARE:
            place = layout.column(signal.metric)
            codes = unpack(blobs, layout, signal.metric)
            if place is None or codes is None:
                continue
            values = decode(codes, layout.columns[place].packing)
            for second in values:
                _put(latest, signal, roster, rows, second)
            _put(levels, signal, roster, rows, level_of(signal, values))


def _add_steps(
    latest: dict[str, FloatArray],
    levels: dict[str, FloatArray],
    roster: Roster,
    batch: StepBatch,
) -> None:
    """Add the mean of the newest steps of every worker of a run; a worker is of one node."""
    of_node = (roster.row_of.get(name.partition("/")[0], -1) for name in batch.workers)
    rows = np.array([*of_node], int)
    seen: Counter[int] = Counter()
    places = []
    for row in rows.tolist():
        places.append(seen[row])
        seen[row] += 1
    is_known = rows >= 0
    of_run = np.unique(rows[is_known])
    for signal in OF_STEPS:
        values = np.full((len(roster.names), max(places, default=0) + 1), np.nan)
        of_workers = level_of(signal, batch.phases[signal.metric])
        values[rows[is_known], np.array(places, int)[is_known]] = of_workers[is_known]
        for kept in (latest, levels):
            _put(kept, signal, roster, of_run, values[of_run])


def _put(
    kept: dict[str, FloatArray], signal: Signal, roster: Roster, rows: IntArray, values: FloatArray
) -> None:
    """Put known values (len(rows), n_parts) at rows of the roster; rows below 0 are lost."""
    whole = kept.get(signal.name, np.zeros((len(roster.names), 0), "f4"))
    if whole.shape[1] < (n := values.shape[1]):
        whole = np.pad(whole, ((0, 0), (0, n - whole.shape[1])), constant_values=np.nan)
    is_known = rows >= 0
    at, new = rows[is_known], values[is_known]
    whole[at, :n] = np.where(np.isfinite(new), new, whole[at, :n])
    kept[signal.name] = whole


@dataclass(frozen=True, slots=True)
class Compared:
    """The nodes of a run next to each other, in one signal: (n_nodes, n_parts) each."""

    signal: Signal
    values: FloatArray
    strength: FloatArray
    outlier: Outlier | None

    @property
    def most(self) -> float:
        """Return the value of a full byte."""
        known = self.values[np.isfinite(self.values)]
        return 1.0 if self.signal.unit == "ratio" else float(known.max(initial=0.0)) or 1.0

    @property
    def furthest(self) -> FloatArray:
        """Return the strength of the part of each node that is furthest from its peers."""
        if not self.strength.shape[1]:
            return np.full(len(self.strength), np.nan)
        size = np.where(np.isfinite(self.strength), np.abs(self.strength), -1.0)
        at = size.argmax(axis=1)
        return np.asarray(self.strength[np.arange(len(at)), at])

    @property
    def harm(self) -> FloatArray:
        """Return how far the worst part of each node is on the side that costs steps, 0 to 1."""
        harm = self.signal.harm(np.nan_to_num(self.strength))
        return np.asarray(harm.max(axis=1, initial=0.0))


def compare(
    columns: NodeColumns,
    readings: Readings,
    members: IntArray,
    run: Run | None,
    *,
    signals: tuple[Signal, ...],
) -> Compared:
    """Compare the nodes of a run, in the signal in which one stands out most, else in the last."""
    key = (run and run.pk, members.tobytes(), signals)
    if key not in readings.compared:
        readings.compared[key] = _compare(columns, readings, members, run, signals)
    return readings.compared[key]


def _compare(
    columns: NodeColumns,
    readings: Readings,
    members: IntArray,
    run: Run | None,
    signals: Sequence[Signal],
) -> Compared:
    roster = columns.roster
    if readings.is_kept:
        signals = [replace(signal, rounding=1.0) for signal in signals]
    role = np.zeros(len(members), int)
    if run is not None:
        of_rank = stages(run.n_nodes, run.pp)
        role = of_rank[np.minimum(roster.rank[members], len(of_rank) - 1)]
    # Nodes of different types do not measure the same.
    types = np.unique(roster.types[members].astype(str), return_inverse=True)[1]
    role = role * (int(types.max(initial=0)) + 1) + types
    names = [roster.names[row] for row in members.tolist()]
    step_s = readings.step_s.get(run.name, 0.0) if run else 0.0
    nothing = np.full((len(members), 0), np.nan)
    levels = {s.name: readings.level[s.name][members] for s in signals if s.name in readings.level}
    outlier = furthest(
        outlier_of(signal, names, levels[signal.name], role, step_s=step_s)
        for signal in signals
        if signal.name in levels
    )
    signal = outlier.signal if outlier else signals[-1]
    level = levels.get(signal.name, nothing)
    n_parts = int(np.isfinite(level).any(axis=0).sum())
    level = level[:, :n_parts]
    z, _ = deviations_by_role(
        signal, level.reshape(1, -1), np.repeat(role, n_parts), step_s=step_s
    )
    values = readings.newest[signal.name][members, :n_parts] if n_parts else nothing
    return Compared(signal, values, strengths(z).reshape(level.shape), outlier)
