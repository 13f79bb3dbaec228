"""All nodes in use, in columns: what they are, whether they report, how busy they are; the fleet.

Pages of a fleet of many thousand nodes count and choose in columns; only what is listed becomes
objects (`fleet.runs.summaries.nodes_now`).
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from django.db.models import Count, F, Max, Min, Q, Sum
from numpy.typing import NDArray

from fleet.models import Alert, Node, Run
from fleet.models.annotation import moment_of
from fleet.runs.state import is_starting, own_pause_s, reporting_nodes, watching_s
from fleet.runs.summaries import JOB_STALE_S, STALE_AFTER_S, RunNow, usd_per_mtok
from telemetry.blocks import METRICS, FloatArray, IntArray, highest, sum_known
from telemetry.store.history import parts_at
from telemetry.store.hot import HotStore
from telemetry.store.packing import (
    ABSENT_RATIO,
    RATIO_STEPS,
    Codes,
    decode,
    encode,
    unpack,
)
from telemetry.store.reading import names_in

BoolArray = NDArray[np.bool_]

LATE_AFTER_S = 3.0
CORES = "core_utilization_ratio"
BY_RUN_AND_RANK = (F("run__name").asc(nulls_last=True), "rank", "name")
COLUMNS = ("pk", "name", "shard", "run_id", "run__name", "rank", "source", "instance_type")
SIZES = ("n_cores", "n_devices")
ROWS_REMEMBERED = 65_536
# How figures of a node follow from metrics of its parts, as in `summaries.latest_figures`.
FIGURES: Mapping[str, tuple[tuple[str, ...], Callable[[FloatArray, int], FloatArray]]] = {
    "hbm_bytes_per_s": (("hbm_bandwidth_bytes_per_s",), sum_known),
    "efa_latency_max_s": (("efa_latency_s",), highest),
    "ecc_uncorrected": (("mem_ecc_uncorrected", "sram_ecc_uncorrected"), sum_known),
}


@dataclass(frozen=True, eq=False)
class Roster:
    """The nodes that are not retired, by run and rank; those without a run come last.

    Columns are (n_nodes,); ``run`` is the key of its run, 0 without one.
    """

    key: IntArray
    names: tuple[str, ...]
    shards: tuple[str, ...]
    run: IntArray
    rank: IntArray
    is_by_job: BoolArray
    types: NDArray[np.object_]
    n_cores: IntArray
    n_devices: IntArray
    run_names: Mapping[int, str]
    _rows: dict[object, IntArray] = field(default_factory=dict)

    @cached_property
    def row_of(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.names)}

    def rows(self, names: Sequence[str], key: object) -> IntArray:
        """Return the row of each name, -1 if unknown; remembered by a ``key`` of the names."""
        rows = self._rows.get(key)
        if rows is None:
            if len(self._rows) > ROWS_REMEMBERED:
                self._rows.clear()
            rows = self._rows[key] = np.array([self.row_of.get(n, -1) for n in names], int)
        return rows


def read_roster() -> Roster:
    """Return the nodes in use; they are read again where they have changed.

    Sums over the rows show a change: a node's key never gets another name, nor a run's.
    """
    present = Node.objects.unretired().order_by()
    sums = present.aggregate(
        *(Count("pk"), Sum("pk"), Sum("n_cores"), Sum("n_devices")),
        *(Min("name"), Max("name"), Min("run__name"), Max("run__name")),
        *(Min("instance_type"), Max("instance_type"), Min("shard"), Max("shard")),
        ranks=Sum(F("pk") * F("rank")),
        squares=Sum(F("pk") % 1009 * F("rank") * F("rank")),
        runs=Sum(F("pk") % 1009 * F("run_id")),
        by_job=Sum("pk", filter=Q(source=Node.Source.STEPS)),
        cores=Sum(F("pk") % 1009 * F("n_cores")),
    )
    return _read(tuple(sums.values()))


@lru_cache(maxsize=1)
def _read(sums: tuple[object, ...]) -> Roster:
    """Read all nodes, once as long as the sums over their rows stay the same."""
    nodes = Node.objects.unretired().order_by(*BY_RUN_AND_RANK)
    rows = list(nodes.values_list(*COLUMNS, *SIZES))
    keys, names, shards, runs, run_names, ranks, sources, types, n_cores, n_devices = (
        zip(*rows, strict=True) if rows else [()] * (len(COLUMNS) + len(SIZES))
    )
    return Roster(
        np.array(keys, int),
        names,
        shards,
        np.array([run or 0 for run in runs], int),
        np.array(ranks, int),
        np.array([source == Node.Source.STEPS for source in sources], bool),
        np.array(types, object),
        np.array(n_cores, int),
        np.array(n_devices, int),
        {run: name for run, name in dict(zip(runs, run_names, strict=True)).items() if run},
    )


@dataclass(frozen=True, eq=False)
class NodeColumns:
    """What is known now of each node of a roster.

    ``seen_s`` is NaN without a report in the last week. A node ``is_over`` whose run has ended.
    ``utilization`` is the mean of a node's cores, NaN if it is not up or reports none.
    """

    roster: Roster
    seen_s: FloatArray
    is_up: BoolArray
    is_over: BoolArray
    is_awaited: BoolArray
    # Awaited because the store of its readings, one of several, does not answer.
    is_unknown: BoolArray
    is_in_pause: bool
    utilization: FloatArray
    tick: int | None
    # The stored bytes of cores (n, n_cores), by their number, and the rows of these nodes.
    codes: Mapping[int, tuple[IntArray, Codes]]

    @cached_property
    def is_silent(self) -> BoolArray:
        return ~(self.is_up | self.is_awaited | self.is_over)

    @cached_property
    def is_shown(self) -> BoolArray:
        """Nodes that should report, or do."""
        return self.is_up | ~self.is_over

    def state(self, row: int) -> str:
        """Return why a node has no figures: waiting, unknown, silent; empty where it is up."""
        if self.is_awaited[row]:
            return "unknown" if self.is_in_pause or self.is_unknown[row] else "waiting"
        return "" if self.is_up[row] else "silent"

    def cores(self, rows: IntArray) -> dict[int, bytes]:
        """Return the utilization of each core of some nodes that are up: a byte each, by row.

        0 to 254 mean idle to busy, and 255 no reading.
        """
        found: dict[int, bytes] = {}
        wanted = rows[self.is_up[rows]]
        for of_rows, codes in self.codes.values():
            for at in np.flatnonzero(np.isin(of_rows, wanted)):
                found[int(of_rows[at])] = codes[at].tobytes()
        return found


def node_columns(hot: HotStore, *, now_s: float, with_cores: bool = True) -> NodeColumns:
    """Read the state of all nodes in use; ``with_cores`` also how busy they are."""
    roster = read_roster()
    n_nodes = len(roster.names)
    active = np.array(Run.objects.active().order_by().values_list("pk", flat=True), int)
    is_over = (roster.run > 0) & ~np.isin(roster.run, active)
    seen_s = _seen(hot, roster)
    stale_s = np.where(roster.is_by_job, JOB_STALE_S, STALE_AFTER_S)
    for name, quiet_s in hot.quiet_s().items():
        row = roster.row_of.get(name)
        if row is not None and not roster.is_by_job[row]:
            stale_s[row] = max(STALE_AFTER_S, quiet_s)
    is_up = (now_s - seen_s <= stale_s) & ~(roster.is_by_job & is_over)
    watched_s = watching_s(hot, now_s=now_s)
    is_new = np.full(n_nodes, is_starting(watched_s, was_heard=True))
    if is_starting(watched_s, was_heard=False) and not is_new.any():
        is_new = ~(np.isfinite(seen_s) | _was_ever_heard(roster))
    is_unknown = _is_unknown(hot, roster) & ~is_up & ~is_over
    utilization, tick = np.full(n_nodes, np.nan), None
    codes: dict[int, tuple[IntArray, Codes]] = {}
    if with_cores:
        codes, tick = _codes(hot, roster)
        _note_means(utilization, codes)
        utilization[~is_up] = np.nan
    return NodeColumns(
        roster,
        seen_s,
        is_up,
        is_over,
        (is_new & ~is_up & ~is_over) | is_unknown,
        is_unknown,
        own_pause_s(hot, now_s=now_s) is not None,
        utilization,
        tick,
        codes,
    )


def node_columns_at(hot: HotStore, *, at_s: int, runs: Collection[int]) -> NodeColumns:
    """Return how busy nodes were at a second in the past, by what is stored of it.

    ``runs`` are the keys of those that went on then. A node is in the run that it is in now;
    one that reports only by its job, or was not known yet, is left out.
    """
    roster = read_roster()
    n_nodes = len(roster.names)
    later = Node.objects.unretired().filter(first_seen_at__gt=moment_of(at_s)).order_by()
    is_later = np.isin(roster.key, np.array(later.values_list("pk", flat=True), int))
    pieces: dict[int, list[tuple[IntArray, Codes]]] = defaultdict(list)
    for nodes, ratios in parts_at(hot, CORES, sorted(set(roster.shards)), at=at_s):
        rows = np.array([roster.row_of.get(name, -1) for name in nodes], int)
        pieces[ratios.shape[1]].append((rows, encode(ratios, METRICS[CORES].packing)))
    codes, utilization = _by_width(pieces), np.full(n_nodes, np.nan)
    _note_means(utilization, codes)
    is_up = np.isfinite(utilization)
    is_over = ~np.isin(roster.run, [*runs]) | roster.is_by_job | is_later
    # Without samples nothing says whether it was silent: its alert does.
    is_unknown = ~(is_up | is_over)
    return NodeColumns(
        roster,
        np.where(is_up, float(at_s), np.nan),
        is_up,
        is_over,
        is_unknown,
        is_unknown,
        is_in_pause=False,
        utilization=utilization,
        tick=at_s,
        codes=codes,
    )


def newest_figure(hot: HotStore, columns: NodeColumns, name: str) -> FloatArray:
    """Return one of ``FIGURES`` of each node, NaN where it is unknown: (n_nodes,).

    Only its metrics are decoded.
    """
    metrics, summed_up = FIGURES[name]
    roster, lacking = columns.roster, set()
    pieces: list[tuple[IntArray, list[FloatArray]]] = []
    for shard, (_, layout, blob) in hot.latest_packed().items():
        packings = {column.name: column.packing for column in layout.columns}
        codes = {metric: unpack([blob], layout, metric) for metric in metrics}
        parts = [decode(each[0], packings[m]) for m, each in codes.items() if each is not None]
        if parts:
            pieces.append((roster.rows(layout.nodes, layout.digest), parts))
        else:
            lacking.add(shard)
    # Exporters of one node are scraped at different times.
    others = hot.latest(lacking).values() if lacking else ()
    pieces += [
        (np.array([roster.row_of.get(node, -1) for node in block.nodes]), parts)
        for block in others
        if (parts := [block.values[metric] for metric in metrics if metric in block.values])
    ]
    values = np.full(len(roster.names), np.nan)
    for rows, parts in pieces:
        is_known = rows >= 0
        values[rows[is_known]] = summed_up(np.hstack(parts).astype(float), 1)[is_known]
    values[~columns.is_up] = np.nan
    return values


def _is_unknown(hot: HotStore, roster: Roster) -> BoolArray:
    missing = hot.missing()
    if not missing:
        return np.zeros(len(roster.names), bool)
    stores = {shard: hot.store_of(shard) in missing for shard in set(roster.shards)}
    return np.array([stores[shard] for shard in roster.shards], bool) & ~roster.is_by_job


def _seen(hot: HotStore, roster: Roster) -> FloatArray:
    """Return when each node reported last; those without an agent by their job."""
    seen_s = np.full(len(roster.names), np.nan)
    for heard in hot.heard():
        tick, _, lines = heard.partition(b"\n")
        rows = roster.rows(names_in(lines), lines)
        rows = rows[rows >= 0]
        seen_s[rows] = np.fmax(seen_s[rows], int(tick))
    for name, tick_s in hot.seen_apart().items():
        if (row := roster.row_of.get(name)) is not None:
            seen_s[row] = np.fmax(seen_s[row], tick_s)
    if roster.is_by_job.any():
        by_job = reporting_nodes(hot)
        for row in np.flatnonzero(roster.is_by_job).tolist():
            seen_s[row] = by_job.get(roster.names[row], np.nan)
    return seen_s


def _was_ever_heard(roster: Roster) -> BoolArray:
    heard = Node.objects.unretired().exclude(last_seen_at=None).order_by()
    return np.isin(roster.key, np.array(heard.values_list("pk", flat=True), int))


def _codes(hot: HotStore, roster: Roster) -> tuple[dict[int, tuple[IntArray, Codes]], int | None]:
    """Return the newest bytes of cores, by their number per node, and the newest tick."""
    pieces: dict[int, list[tuple[IntArray, Codes]]] = defaultdict(list)
    tick: int | None = None
    for newest, layout, codes in hot.newest_codes(CORES):
        tick = newest if tick is None else max(tick, newest)
        if codes is not None:
            pieces[codes.shape[1]].append((roster.rows(layout.nodes, layout.digest), codes))
    return _by_width(pieces), tick


def _by_width(
    pieces: Mapping[int, Sequence[tuple[IntArray, Codes]]],
) -> dict[int, tuple[IntArray, Codes]]:
    """Join the bytes of known nodes with the same number of cores."""
    by_width = {}
    for width, some in pieces.items():
        rows, codes = (np.concatenate(each) for each in zip(*some, strict=True))
        is_known = rows >= 0
        by_width[width] = (rows, codes) if is_known.all() else (rows[is_known], codes[is_known])
    return by_width


def _note_means(utilization: FloatArray, codes: Mapping[int, tuple[IntArray, Codes]]) -> None:
    """Write the mean of each node's cores; NaN where it has none that are known."""
    for rows, of_cores in codes.values():
        known = of_cores != ABSENT_RATIO
        total = np.where(known, of_cores, 0).sum(axis=1, dtype=int)
        with np.errstate(invalid="ignore"):
            utilization[rows] = total / known.sum(axis=1) / RATIO_STEPS


@dataclass(frozen=True, slots=True)
class NodesInUse:
    """Counts of the nodes that are not retired, and what they train and are."""

    n_nodes: int
    n_up: int
    n_expected: int
    n_reporting: int  # of those that should
    n_silent: int  # of the others, those that have had their turn
    runs: tuple[str, ...]
    has_unassigned: bool
    types: tuple[str, ...]


def nodes_in_use(columns: NodeColumns) -> NodesInUse:
    """Count the nodes that report, those that should, and those that are silent."""
    roster = columns.roster
    return NodesInUse(
        len(roster.names),
        int(columns.is_up.sum()),
        int((~columns.is_over).sum()),
        int((columns.is_up & ~columns.is_over).sum()),
        int(columns.is_silent.sum()),
        tuple(sorted(roster.run_names.values())),
        bool((roster.run == 0).any()),
        tuple(sorted(set(roster.types.tolist()))),
    )


def reporting_now(hot: HotStore, *, now_s: float) -> tuple[int, int]:
    """Count the nodes that report of those that should, and those."""
    counts = nodes_in_use(node_columns(hot, now_s=now_s, with_cores=False))
    return counts.n_reporting, counts.n_expected


@dataclass(frozen=True, slots=True)
class FleetNow:
    tick: int | None
    n_nodes: int
    n_up: int
    n_silent: int
    n_awaited: int
    n_unknown: int  # of those, because the store of their readings does not answer
    n_unacknowledged: int
    n_acknowledged: int
    oldest_unowned: Alert | None
    n_training: int
    standing: Sequence[str]
    n_compiling: int
    compiling: Run | None
    worst: RunNow | None
    # How many runs its tokens are of.
    n_counted: int
    # None where trnwatch is stopped and does not hear every run.
    tokens_per_s: float | None
    usd_per_hour: float
    usd_per_mtok: float | None
    tick_lateness_s: float | None = None
    n_ticks_late: int = 0

    @property
    def n_open(self) -> int:
        return self.n_unacknowledged + self.n_acknowledged

    @property
    def is_late(self) -> bool:
        """Whether ticks are late enough to warn users."""
        return (self.tick_lateness_s or 0.0) > LATE_AFTER_S


def fleet_now(
    hot: HotStore,
    *,
    runs: Sequence[RunNow],
    nodes: NodeColumns,
    alerts: Sequence[Alert],
) -> FleetNow:
    unowned = sorted(
        (alert for alert in alerts if alert.acknowledged_at is None), key=lambda one: one.onset_at
    )
    active = [now for now in runs if now.run.finished_at is None]
    training = [now for now in active if now.state == Run.Phase.TRAINING]
    # No step ends, whether or not an alert says that the run stands still.
    standing = [now for now in training if now.is_stale and not nodes.is_in_pause]
    compiling = [now.run for now in active if now.state == Run.Phase.COMPILING]
    alive = [now for now in active if now.tokens_per_s is not None and not now.is_stale]
    is_known = not (nodes.is_in_pause and any(now.is_stale for now in active))
    alive = alive if is_known else []
    tokens_per_s = sum(now.tokens_per_s or 0.0 for now in alive) if is_known else None
    usd_per_hour = sum(now.run.usd_per_hour for now in active)
    return FleetNow(
        tick=nodes.tick,
        n_nodes=int(nodes.is_shown.sum()),
        n_up=int(nodes.is_up.sum()),
        n_silent=int(nodes.is_silent.sum()),
        n_awaited=int(nodes.is_awaited.sum()),
        n_unknown=int(nodes.is_unknown.sum()),
        n_unacknowledged=len(unowned),
        n_acknowledged=len(alerts) - len(unowned),
        oldest_unowned=unowned[0] if unowned else None,
        n_training=len(training) - len(standing),
        standing=[now.run.name for now in [*standing, *(now for now in active if now.standstill)]],
        n_compiling=len(compiling),
        compiling=compiling[0] if compiling else None,
        worst=max(alive, key=lambda now: now.share_ratio or 0.0, default=None),
        n_counted=len(alive),
        tokens_per_s=tokens_per_s,
        usd_per_hour=usd_per_hour,
        usd_per_mtok=usd_per_mtok(usd_per_hour, tokens_per_s),
        tick_lateness_s=hot.gauges().get("tick_lateness_s"),
        n_ticks_late=int(hot.counters().get("ticks_late", 0)),
    )
