"""Hardware of one run: which nodes, cores, devices and links have shifted against their peers.

1. Nodes report at different seconds, late or not at all: each has its own clock.
2. Every five seconds, or one report, each node's new seconds become one block.
3. A value that is held until the next measurement counts once.
4. A level is compared where it says something: well above rounding, and not in idle time.
5. Parts of a node are compared with each other; what a node has once, with other nodes.
6. Each quantity is one test of all parts of the run (`telemetry.detect.peers`).
7. Retransmits are counts: a Poisson test of "more than healthy fabrics ever lose".
8. The alarm level is that of all looks of a year at all quantities, and the accepted number.
9. The newest blocks are kept: from them comes the size of every quantity since any moment.
10. Nothing is known of tiers: a metric that does not come gives no evidence.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from telemetry.blocks import METRICS, FloatArray, IntArray, Span
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.peers import (
    FORGET_S,
    PAST_BLOCKS,
    SIZES,
    BoolArray,
    Column,
    Excursions,
    PeerTest,
    Ring,
)
from telemetry.detect.quantities import BY_NAME, LEVELS, METRICS_READ, OF_NODES, Quantity
from telemetry.detect.shifts import Effect, Effects, Shift
from telemetry.evidence.sequential import YEAR_S, alarm_level
from telemetry.statistics.peers import GAUSSIAN, median

# Protocol: agents report every 5 s; means of as long reduce what neighbours share.
BLOCK_S = 5
# Protocol: how finely stored values are rounded (`telemetry.blocks.Metric.packing`).
COARSE = {"ratio": 1 / 254, "rounded": 0.004, "exact": 0.0}
LEAST_RATIO = COARSE["ratio"]
# A mean of which four fifths of the time are idle compares nothing.
AT_WORK = 0.2
# Healthy fabrics lose up to 0.3 % of packets for half a minute (assumed: docs/physics.md). A
# third more is not usual, and four times that no burst.
BURST_RATIO = 0.003
LOSSES = np.array([0.004, 0.016])
# One wild block is no dispersion.
MOST_EXCESS = 100.0
Measured = tuple[FloatArray, FloatArray]
LOSS = BY_NAME["retransmits"]
COUNTED, TOTAL = (LOSS.metric, LOSS.of), "total of "
# So many nodes are read at once: 31,250 would take 3 GB.
AT_ONCE = 2_048


class Level:
    """A quantity of which the level is compared: the ``cells`` of a test that it shares."""

    test: PeerTest
    cells: slice

    def __init__(self, quantity: Quantity, n_nodes: int, n_parts: int, n_blocks: int) -> None:
        self.quantity, self.shape = quantity, (n_nodes, n_parts)
        is_single = quantity.peers == "run" or n_parts == 1
        self.column = Column(
            (1, n_nodes * n_parts) if is_single else self.shape,
            n_roles=n_parts,
            is_alike=quantity.is_alike,
            lasts=quantity.lasts_s * n_blocks / FORGET_S,
        )
        self._coarse = COARSE[METRICS[quantity.metric].packing] / math.sqrt(12)
        self._usual = 0.0
        # The usual level of all parts, as a logarithm.
        self.of_all = Ring(n_blocks, 1)

    @property
    def excursions(self) -> Excursions:
        return self.test.excursions

    def compared(self, level: FloatArray, *, at_s: int) -> tuple[FloatArray, FloatArray]:
        """Return what is compared of each part, and its scatter by rounding: (n_parts,) each.

        ``level`` is (n_nodes, n_parts), NaN where there is none.
        """
        of_node = median(level)[:, None]
        known = of_node[np.isfinite(of_node)]
        now = float(np.median(known)) if known.size else 0.0
        self._usual = max(self._usual * (1 - 1 / PAST_BLOCKS), now)
        self.of_all.add(at_s, np.array([math.log(now) if now > 0 else np.nan]))
        is_ratio = METRICS[self.quantity.metric].packing == "ratio"
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            coarse = self._coarse / of_node if is_ratio else np.full_like(of_node, self._coarse)
            is_clear = (of_node >= AT_WORK * self._usual) & (coarse < SIZES[0]) & (of_node > 0)
            logarithm = np.log(np.maximum(level, LEAST_RATIO * of_node))
        x = np.where(is_clear, self.quantity.worse * logarithm, np.nan)
        coarse = np.broadcast_to(np.where(is_clear, coarse, 1.0), self.shape)
        return x.ravel(), coarse.ravel()

    def effect(
        self, since_s: float, parts: IntArray | None = None, *, until_s: float | None = None
    ) -> Measured:
        """Return size and standard error since then, as logarithms."""
        cells = self.cells if parts is None else self.cells.start + parts
        size, error = self.test.effect(since_s, cells, until_s=until_s)
        return self.quantity.worse * size, error

    def is_full(self, since_s: float) -> bool:
        """Whether the usual part cannot rise by what matters: a rise would not show."""
        since = self.of_all.since(since_s)[:, 0]
        since = since[np.isfinite(since)]
        is_share = self.quantity.metric == "core_utilization_ratio"
        return is_share and len(since) > 0 and float(np.median(since)) > -SIZES[1]

    def effect_of_all(self, since_s: float, *, until_s: float) -> Measured:
        """How far the usual part is since then from what it was before: logarithms, ()."""
        before, since = self.of_all.until(until_s)[:, 0], self.of_all.since(since_s)[:, 0]
        before, since = before[np.isfinite(before)], since[np.isfinite(since)]
        if len(before) < 2 or not len(since):
            return np.asarray(np.nan), np.asarray(np.nan)
        scale = GAUSSIAN * float(np.median(np.abs(before - np.median(before)))) + LEAST_RATIO
        error = scale * math.sqrt(math.pi / 2 * (1 / len(before) + 1 / len(since)))
        error = math.hypot(error, self.quantity.common)
        return np.asarray(np.median(since) - np.median(before)), np.asarray(error)


class Loss:
    """Packets sent again, as a share of those sent."""

    def __init__(self, n_nodes: int, n_parts: int, n_blocks: int) -> None:
        self.shape, n = (n_nodes, n_parts), n_nodes * n_parts
        self.cells = slice(0, n)
        lasts = np.array([[LOSS.lasts_s * n_blocks / FORGET_S], [0.0]])
        self.excursions = Excursions.of([n], lasts=lasts)
        self._lost, self._sent = Ring(n_blocks, n, float), Ring(n_blocks, n, float)
        self._past_lost, self._past_sent = np.zeros(n), np.zeros(n)
        self._dispersion, self._n_blocks = 1.0, 1.0

    def update(self, lost: FloatArray, sent: FloatArray, *, at_s: int, base: float) -> None:
        """Take counts of a block: (n_nodes, n_parts), NaN where there are none."""
        known = (np.isfinite(lost) & (sent > 0)).ravel()
        self._lost.add(at_s, np.where(known, lost.ravel(), np.nan))
        self._sent.add(at_s, np.where(known, sent.ravel(), np.nan))
        state, parts = self.excursions, np.flatnonzero(known)
        if not parts.size:
            return
        lost, sent = lost.ravel()[parts], sent.ravel()[parts]
        is_open, usual = state.is_open[parts], self._usual()[parts]
        state.n_looks[0] += np.count_nonzero(~is_open)
        can_gain = (lost > BURST_RATIO * sent) | (state.n_far[0, parts] > 0) | is_open
        if can_gain.any():
            # An open shift is held against half of its size.
            healthy = np.where(is_open, usual, np.maximum(usual, BURST_RATIO))
            worse = np.where(is_open, 0.5, 1.0) * LOSSES[:, None]
            worse = np.maximum(worse, healthy * LOSSES[0] / BURST_RATIO)
            gain = loss_ratio(lost, sent, healthy=healthy, worse=worse) / self._dispersion
            chosen = parts[can_gain], gain[:, can_gain], gain[:, can_gain] > 0
            state.add(*chosen, at_s=at_s, base=base)
        calm = ~is_open
        if calm.any():
            self._learn(parts[calm], lost[calm], sent[calm], usual[calm] * sent[calm])

    def _usual(self) -> FloatArray:
        """Return the usual share of each part: its own past, the run's worth a burst's packets."""
        of_run = float(self._past_lost.sum()) / max(float(self._past_sent.sum()), 1.0)
        few = 1 / BURST_RATIO
        return np.asarray((self._past_lost + few * of_run) / (self._past_sent + few))

    def _learn(
        self, parts: IntArray, lost: FloatArray, sent: FloatArray, expected: FloatArray
    ) -> None:
        """Learn what is usual, and the variance of counts over that of Poisson's law."""
        ratio = np.minimum((lost - expected) ** 2 / np.maximum(expected, 1.0), MOST_EXCESS)
        self._n_blocks = min(self._n_blocks + 1, PAST_BLOCKS)
        self._dispersion += (max(float(ratio.mean()), 1.0) - self._dispersion) / self._n_blocks
        for past, now in ((self._past_lost, lost), (self._past_sent, sent)):
            past[parts] += now - past[parts] / PAST_BLOCKS

    def effect(
        self, since_s: float, parts: IntArray | None = None, *, until_s: float | None = None
    ) -> Measured:
        """Return size and standard error since then, as a share of packets."""
        chosen = self.cells if parts is None else parts
        usual = self._usual()[chosen]
        lost, sent = (np.nansum(r.since(since_s)[:, chosen], 0) for r in (self._lost, self._sent))
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.sqrt(self._dispersion * np.maximum(usual * sent, 1.0)) / sent
            return np.asarray(lost / sent - usual), np.where(sent > 0, error, np.nan)


def loss_ratio(
    lost: FloatArray, sent: FloatArray, *, healthy: FloatArray, worse: FloatArray
) -> FloatArray:
    """Nats by which a count favours a share of at least ``worse`` over at most ``healthy``.

    Notes
    -----
    ``k log(q1 / q0) - n (q1 - q0)`` of Poisson counts, where q1 and q0 are the most likely shares
    on each side.

    Examples
    --------
    >>> n = np.array([1e4, 1e4, 1e4])
    >>> lost = np.array([0.0, 35.0, 90.0])
    >>> loss_ratio(lost, n, healthy=np.array(0.003), worse=np.array(0.004)).round(1)
    array([-40. ,   0.1,  38.9])
    """
    share = lost / sent
    q1, q0 = np.maximum(share, worse), np.clip(share, 1e-12, healthy)
    return np.asarray(lost * np.log(q1 / q0) - sent * (q1 - q0))


class Parts:
    """Fold over the hardware of one run: which parts have shifted against their peers."""

    def __init__(
        self,
        nodes: tuple[str, ...],
        *,
        cores_per_device: int,
        report_every_s: int,
        false_per_year: float,
    ) -> None:
        self.nodes = nodes
        self._per_device = max(1, cores_per_device)
        self._every_s = max(1, report_every_s)
        self.false_per_year = false_per_year
        self._levels: dict[str, Level] = {}
        self._loss: Loss | None = None
        self._epoch_s: int | None = None
        self._at_s = 0
        self._read_s = np.zeros(len(nodes), np.int64)

    @property
    def block_s(self) -> int:
        return max(BLOCK_S, self._every_s)

    def is_of(self, inputs: DetectionInput) -> bool:
        """Whether these are the nodes of the run, each with as many cores a device."""
        per_device = max(1, inputs.cores_per_device)
        return (self.nodes, self._per_device) == (inputs.nodes, per_device)

    def is_young(self, now_s: float) -> bool:
        """Whether it has not read for long enough to find again what an alert is about."""
        # It counts from so long before its first block.
        return self._epoch_s is None or now_s - self._epoch_s < 2 * FORGET_S

    def unread(self) -> "Parts":
        """Return the same of which nothing is known yet."""
        return Parts(
            self.nodes,
            cores_per_device=self._per_device,
            report_every_s=self._every_s,
            false_per_year=self.false_per_year,
        )

    def is_stale(self, now_s: float) -> bool:
        """Whether more seconds were missed than are kept."""
        return bool(self.nodes) and self._at_s > 0 and now_s - self._at_s > FORGET_S

    def update(self, inputs: DetectionInput) -> bool:
        """Take the new seconds once a block is over; return whether one was."""
        now_s = int(inputs.now_s)
        self._every_s = max(self._every_s, inputs.report_every_s)
        if self._epoch_s is None or not 0 <= now_s - self._at_s <= FORGET_S:
            # At first, and when the clock has jumped: one block before now.
            self._epoch_s = now_s - FORGET_S if self._epoch_s is None else self._epoch_s
            self._at_s = now_s - self.block_s
            self._read_s[:] = self._at_s
        if now_s - self._at_s < self.block_s or not self.nodes:
            return False
        last_s = now_s - self._at_s + inputs.lagging(1)
        self._at_s = now_s
        groups = [self._blocks(span, rows) for span, rows in self._read(inputs, last_s)]
        names = dict.fromkeys(name for group in groups for name in group)
        self._take({name: _stacked([group[name] for group in groups]) for name in names}, now_s)
        return True

    def _read(self, inputs: DetectionInput, last_s: int) -> Iterator[tuple[Span, slice]]:
        """Read the newest seconds, of a large run some nodes at a time, and their rows."""
        if len(self.nodes) <= AT_ONCE:
            yield inputs.hardware(METRICS_READ, last_s).of(self.nodes), slice(None)
            return
        for first in range(0, len(self.nodes), AT_ONCE):
            nodes = self.nodes[first : first + AT_ONCE]
            span = inputs.hardware(METRICS_READ, last_s, nodes).of(nodes)
            yield span, slice(first, first + len(nodes))

    def _blocks(self, span: Span, rows: slice) -> dict[str, FloatArray]:
        """Make one block of the unread seconds of some nodes: (n_nodes, n_parts) by metric."""
        span = _finite(span)
        unread = (span.ticks[:, None] > self._read_s[rows]) & span.reported
        newest = np.where(unread, span.ticks[:, None], 0).max(axis=0)
        self._read_s[rows] = np.maximum(self._read_s[rows], newest)
        blocks: dict[str, FloatArray] = {}
        for quantity in LEVELS:
            if quantity.metric not in blocks:
                # Shares are stored so coarsely that two measurements are often equal.
                is_coarse = METRICS[quantity.metric].packing == "ratio"
                values = _measured(span, quantity)
                blocks[quantity.metric] = _block(values, unread, may_repeat=is_coarse)
        none = np.zeros((len(span.ticks), len(span.nodes), 0))
        for name in COUNTED:
            blocks[TOTAL + name] = _total(span.values.get(name, none), unread)
        return blocks

    def _take(self, blocks: Mapping[str, FloatArray], now_s: int) -> None:
        at_s = now_s - (self._epoch_s or 0)
        measured: dict[str, FloatArray] = {}
        begun: list[Level] = []
        for quantity in LEVELS:
            of_parts = self._by_device(blocks[quantity.metric], quantity)
            n_parts, known = of_parts.shape[1], self._levels.get(quantity.name)
            if n_parts:
                measured[quantity.name] = of_parts
                if known is None or known.shape[1] != n_parts:
                    begun.append(Level(quantity, len(self.nodes), n_parts, self._n_blocks))
        if begun:
            # What began to be measured together is tested together.
            test = PeerTest([level.column for level in begun], n_blocks=self._n_blocks)
            for level, cells in zip(begun, test.cells, strict=True):
                level.test, level.cells = test, cells
                self._levels[level.quantity.name] = level
        base = self.alarm_level()
        for test in dict.fromkeys(level.test for level in self._levels.values()):
            x, coarse = np.full(test.n_past.size, np.nan), np.ones(test.n_past.size)
            for name, of_parts in measured.items():
                if (level := self._levels[name]).test is test:
                    x[level.cells], coarse[level.cells] = level.compared(of_parts, at_s=at_s)
            test.update(x, coarse, at_s=at_s, base=base)
        lost, sent = (blocks[TOTAL + name] for name in COUNTED)
        if lost.shape == sent.shape and lost.shape[1]:
            if self._loss is None or self._loss.shape != lost.shape:
                n_nodes, n_parts = lost.shape
                self._loss = Loss(n_nodes, n_parts, self._n_blocks)
            self._loss.update(lost, sent, at_s=at_s, base=base)

    @property
    def _n_blocks(self) -> int:
        return -(-FORGET_S // self.block_s)

    def _by_device(self, level: FloatArray, quantity: Quantity) -> FloatArray:
        n_nodes, n_cores = level.shape
        if not quantity.by_device or n_cores % self._per_device:
            return level
        return np.asarray(level.reshape(n_nodes, -1, self._per_device).mean(axis=2))

    def alarm_level(self) -> float:
        """Nats at which chance raises the accepted number of alarms a year: see `evidence`.

        Each part is looked at once a block, with each size.
        """
        n_parts = sum(math.prod(held.shape) for held in self._held.values())
        looks = max(1, n_parts) * YEAR_S / self.block_s
        return float(alarm_level(np.array(looks), self.false_per_year))

    @property
    def _held(self) -> dict[str, Level | Loss]:
        loss = {} if self._loss is None else {LOSS.name: self._loss}
        return {**self._levels, **loss}

    @property
    def shifts(self) -> list[Shift]:
        """Quantities of nodes and parts above their level now."""
        return [
            self._shift(name, held, int(part))
            for name, held in self._held.items()
            for part in np.flatnonzero(held.excursions.is_open[held.cells])
        ]

    def _shift(self, name: str, held: Level | Loss, part: int) -> Shift:
        state, cell = held.excursions, held.cells.start + part
        since_s = float(state.since_s[state.size[cell], cell]) - self.block_s
        size = float(held.effect(since_s, np.array([part]))[0][0])
        return Shift(
            quantity=name,
            node=part // held.shape[1],
            part=None if name in OF_NODES else part % held.shape[1],
            onset_s=since_s + (self._epoch_s or 0),
            size=math.expm1(size) if isinstance(held, Level) else size,
            nats=float(state.nats[:, cell].max()),
            level_nats=float(state.level(self.alarm_level())[state.kind[cell]]),
        )

    def leave_out(self, since_s: float, until_s: float) -> None:
        """Let what was measured in a problem that is over be no part of what is usual."""
        epoch_s = self._epoch_s or 0
        rings = [test.ring for test in {level.test for level in self._levels.values()}]
        for ring in (*rings, *(level.of_all for level in self._levels.values())):
            ring.leave_out(since_s - epoch_s, until_s - epoch_s)

    def effects(self, onset_s: float) -> Effects:
        """Measure every quantity since a moment: as logarithms, retransmits as a share.

        Blocks that began before it, or were reported by then, are neither before nor since.
        """
        until_s = onset_s - (self._epoch_s or 0)
        since_s = until_s + self.block_s + self._every_s - 2
        effects: dict[str, Effect] = {}
        for name, held in self._held.items():
            if isinstance(held, Level) and held.is_full(since_s):
                continue
            shape = held.shape[:1] if name in OF_NODES else held.shape
            measured = held.effect(since_s, until_s=until_s)
            effects[name] = Effect(*(values.reshape(shape) for values in measured))
        for level in self._levels.values():
            if level.quantity.of_all:
                measured = level.effect_of_all(since_s, until_s=until_s)
                effects[level.quantity.of_all] = Effect(*measured)
        return effects


def _finite(span: Span) -> Span:
    """Take infinities and negative values for no values."""
    values: Mapping[str, FloatArray] = {
        name: np.where(np.isfinite(array) & (array >= 0), array, np.nan)
        for name, array in span.values.items()
    }
    return Span(span.shard, span.ticks, span.nodes, values, span.every_s)


def _measured(span: Span, quantity: Quantity) -> FloatArray:
    """Values of a quantity's metric, (n_ticks, n_nodes, n_parts), where something was measured."""
    none = np.zeros((len(span.ticks), len(span.nodes), 0))
    values, counts = (
        span.values.get(name, none) for name in (quantity.metric, quantity.counted_by)
    )
    values = values[..., :1] if quantity.name in OF_NODES else values
    return np.where(counts[..., :1] == 0, np.nan, values) if counts.shape[2] else values


def _block(values: FloatArray, unread: BoolArray, *, may_repeat: bool) -> FloatArray:
    """Mean of each part over its new measurements; one that is held counts once."""
    is_new = unread.copy()
    if not may_repeat:
        same = (values[1:] == values[:-1]) | np.isnan(values[1:])
        is_new[1:] &= ~same.all(axis=2)
        is_new[0] = False
    counted = is_new[..., None] & np.isfinite(values)
    n = counted.sum(axis=0)
    total = np.where(counted, values, 0.0).sum(axis=0, dtype=float)
    return np.asarray(np.where(n > 0, total, np.nan) / np.maximum(n, 1))


def _stacked(groups: Sequence[FloatArray]) -> FloatArray:
    """Join blocks of groups of nodes; parts that a group lacks are NaN."""
    n_parts = max(each.shape[1] for each in groups)
    wide = [np.full((len(each), n_parts), np.nan) for each in groups]
    for into, each in zip(wide, groups, strict=True):
        into[:, : each.shape[1]] = each
    return np.concatenate(wide)


def _total(values: FloatArray, unread: BoolArray) -> FloatArray:
    """Count of each part over the unread seconds, of rates per second."""
    counted = unread[..., None] & np.isfinite(values)
    total = np.where(counted, values, 0.0).sum(axis=0, dtype=float)
    return np.asarray(np.where(counted.any(axis=0), total, np.nan))
