"""Hardware of one run: which nodes, cores, devices and links have shifted against their peers.

1. Nodes report at different seconds, late or not at all: each has its own clock.
2. Every five seconds, or one report, each node's new seconds become one block.
3. A value that is held until the next measurement counts once.
4. A level is compared where it says something: well above rounding, and not in idle time.
5. Parts of a node are compared with each other; what a node has once, with other nodes.
6. Each quantity is one test of all parts of the run (`telemetry.detect2.peers`).
7. Retransmits are counts: a Poisson test of "more than healthy fabrics ever lose".
8. The alarm level is that of all looks of a year at all quantities, and the accepted number.
9. The newest blocks are kept: from them comes the size of every quantity since any moment.
10. Nothing is known of tiers: a metric that does not come gives no evidence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from telemetry.blocks import METRICS, FloatArray, Span
from telemetry.detect.inputs import DetectionInput
from telemetry.detect2.peers import (
    FORGET_S,
    PAST_BLOCKS,
    SIZES,
    BoolArray,
    Excursions,
    PeerTest,
    Ring,
)
from telemetry.detect2.shifts import Effect, Effects, Shift
from telemetry.evidence.sequential import YEAR_S
from telemetry.statistics.peers import median

# Protocol: agents report every 5 s; means of as long reduce what neighbours share.
BLOCK_S = 5
# Protocol: how finely stored values are rounded (`telemetry.blocks.Metric.packing`).
COARSE = {"ratio": 1 / 254, "rounded": 0.004, "exact": 0.0}
LEAST_RATIO = COARSE["ratio"]
# A mean of which four fifths of the time are idle compares nothing.
AT_WORK = 0.2
# Jobs of a host by cron (assumed: docs/physics.md).
CRON_S = 20.0
# Healthy fabrics lose up to 0.3 % of packets for half a minute (assumed: docs/physics.md); a
# third more is no burst.
BURST_RATIO, LOSS_RATIO = 0.003, 0.004
# One wild block is no dispersion.
MOST_EXCESS = 100.0
EXECUTED = "executions_completed_per_s"
PACKETS, RETRANSMITS = "efa_tx_packets_per_s", "efa_retransmits_per_s"


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is compared, which direction is worse, with whom, and whether peers are alike.

    Harmless excursions are expected to last ``lasts_s``. Where ``counted_by`` is 0, nothing was
    measured.
    """

    name: str
    metric: str
    worse: Literal[1, -1]
    peers: Literal["node", "run"]
    is_alike: bool = True
    by_device: bool = False
    lasts_s: float = 0.0
    counted_by: str = ""


QUANTITIES = (
    Quantity("core", "core_utilization_ratio", 1, "node"),
    Quantity("device", "core_utilization_ratio", 1, "node", by_device=True),
    Quantity("memory", "hbm_bandwidth_bytes_per_s", -1, "node"),
    Quantity("power", "device_power_ratio", 1, "node"),
    # Racks, stages and hosts differ for good.
    Quantity("latency", "efa_latency_s", 1, "run", is_alike=False),
    Quantity("bytes", "efa_tx_bytes_per_s", -1, "node"),
    Quantity("host", "vcpu_usage_ratio", 1, "run", is_alike=False, lasts_s=CRON_S),
    Quantity(
        "execution", "execution_latency_p50_s", 1, "run", is_alike=False, counted_by=EXECUTED
    ),
)
_ALL = (*(q.metric for q in QUANTITIES), PACKETS, RETRANSMITS, EXECUTED)
METRICS_READ = tuple(dict.fromkeys(_ALL))
OF_NODES = frozenset(q.name for q in QUANTITIES if METRICS[q.metric].part == "node")


class Level:
    """A quantity of which the level is compared."""

    def __init__(self, quantity: Quantity, n_nodes: int, n_parts: int, n_blocks: int) -> None:
        self.quantity, self.shape = quantity, (n_nodes, n_parts)
        is_single = quantity.peers == "run" or n_parts == 1
        groups = (1, n_nodes * n_parts) if is_single else self.shape
        lasted = quantity.lasts_s * n_blocks / FORGET_S
        again = 1 - 1 / max(lasted, 1.0)
        self.test = PeerTest(
            groups,
            n_roles=n_parts,
            is_alike=quantity.is_alike,
            again=again,
            n_blocks=n_blocks,
        )
        self._coarse = COARSE[METRICS[quantity.metric].packing] / math.sqrt(12)
        self._usual = 0.0

    @property
    def excursions(self) -> Excursions:
        return self.test.excursions

    def update(self, level: FloatArray, *, at_s: int, epoch_s: int, base: float) -> None:
        """Take the level of each part: (n_nodes, n_parts), NaN where there is none."""
        of_node = median(level)[:, None]
        known = of_node[np.isfinite(of_node)]
        now = float(np.median(known)) if known.size else 0.0
        self._usual = max(self._usual * (1 - 1 / PAST_BLOCKS), now)
        is_ratio = METRICS[self.quantity.metric].packing == "ratio"
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            coarse = self._coarse / of_node if is_ratio else np.full_like(of_node, self._coarse)
            is_clear = (of_node >= AT_WORK * self._usual) & (coarse < SIZES[0]) & (of_node > 0)
            logarithm = np.log(np.maximum(level, LEAST_RATIO * of_node))
        x = np.where(is_clear, self.quantity.worse * logarithm, np.nan).ravel()
        coarse = np.broadcast_to(np.where(is_clear, coarse, 1.0), self.shape).ravel()
        self.test.update(x, coarse, at_s=at_s - epoch_s, base=base)

    def effect(self, since_s: float) -> Effect:
        """Return the median of the blocks since a moment after the epoch, as a logarithm."""
        blocks = self.test.ring.since(since_s)
        n = np.isfinite(blocks).sum(axis=0)
        size = self.quantity.worse * (median(blocks.T) - self.test.offset)
        error = np.where(
            n > 0, np.hypot(self.test.noise.error(n), self.test.uncertainty()), np.nan
        )
        return Effect(size.reshape(self.shape), error.reshape(self.shape))

    def size(self, part: int, since_s: float) -> float:
        blocks = self.test.ring.since(since_s)[:, part]
        return float(np.expm1(self.quantity.worse * (median(blocks) - self.test.offset[part])))


class Loss:
    """Packets sent again, as a share of those sent."""

    def __init__(self, n_nodes: int, n_parts: int, n_blocks: int) -> None:
        self.shape = (n_nodes, n_parts)
        n = n_nodes * n_parts
        self.excursions = Excursions.of(1, n)
        self._lost, self._sent = Ring(n_blocks, n, float), Ring(n_blocks, n, float)
        self.past = np.zeros((2, n))
        self._dispersion = 1.0
        self._n_blocks = 1.0

    def update(
        self, lost: FloatArray, sent: FloatArray, *, at_s: int, epoch_s: int, base: float
    ) -> None:
        """Take counts of a block: (n_nodes, n_parts), NaN where there are none."""
        lost, sent = lost.ravel(), sent.ravel()
        known = np.isfinite(lost) & np.isfinite(sent) & (sent > 0) & (lost >= 0)
        lost, sent = np.where(known, lost, 0.0), np.where(known, sent, 0.0)
        state, time = self.excursions, at_s - epoch_s
        state.n_looks += float(np.sum(known & ~state.is_open))
        share = lost / np.maximum(sent, 1.0)
        least = np.where(state.is_open, LOSS_RATIO / 2, LOSS_RATIO)
        parts = np.flatnonzero(
            known & ((share > BURST_RATIO) | (state.n_far[0] > 0) | state.is_open)
        )
        if parts.size:
            usual = self.usual()[parts]
            healthy = np.where(state.is_open[parts], usual, np.maximum(usual, BURST_RATIO))
            worse = np.maximum(least[parts], healthy * LOSS_RATIO / BURST_RATIO)
            gain = loss_ratio(lost[parts], sent[parts], healthy=healthy, worse=worse)
            gain = gain / self._dispersion
            state.add(parts, gain[None], (gain > 0)[None], at_s=time, base=base)
        self._learn(lost, sent, known & ~state.is_open)
        self._lost.add(time, np.where(known, lost, np.nan))
        self._sent.add(time, np.where(known, sent, np.nan))

    def usual(self) -> FloatArray:
        """Usual share of each part: its own past, with the run's as one burst's packets."""
        of_run = float(self.past[0].sum() / max(float(self.past[1].sum()), 1.0))
        few = 1 / BURST_RATIO
        return np.asarray((self.past[0] + few * of_run) / (self.past[1] + few))

    def _learn(self, lost: FloatArray, sent: FloatArray, calm: BoolArray) -> None:
        parts = np.flatnonzero(calm)
        if not parts.size:
            return
        expected = np.maximum(self.usual()[parts] * sent[parts], 1e-9)
        excess = (lost[parts] - expected) ** 2 / np.maximum(expected, 1.0)
        rate = 1 / min(self._n_blocks + 1, PAST_BLOCKS)
        self._n_blocks += 1
        self._dispersion += rate * (
            max(float(np.mean(np.minimum(excess, 100.0))), 1.0) - self._dispersion
        )
        keep = 1 - 1 / PAST_BLOCKS
        self.past[0, parts] = keep * self.past[0, parts] + lost[parts]
        self.past[1, parts] = keep * self.past[1, parts] + sent[parts]

    def effect(self, since_s: float) -> Effect:
        lost, sent = (
            np.nansum(self._lost.since(since_s), 0),
            np.nansum(self._sent.since(since_s), 0),
        )
        usual = self.usual()
        with np.errstate(divide="ignore", invalid="ignore"):
            size = lost / sent - usual
            error = np.sqrt(self._dispersion * (np.maximum(usual * sent, 1.0))) / sent
        return Effect(
            np.where(sent > 0, size, np.nan).reshape(self.shape),
            np.where(sent > 0, error, np.nan).reshape(self.shape),
        )

    def size(self, part: int, since_s: float) -> float:
        lost, sent = (np.nansum(r.since(since_s)[:, part]) for r in (self._lost, self._sent))
        return float(lost / sent) if sent else math.nan


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
        self._false_per_year = false_per_year
        self._levels: dict[str, Level] = {}
        self._loss: Loss | None = None
        self._epoch_s: int | None = None
        self._at_s = 0
        self._read_s = np.zeros(len(nodes), np.int64)

    @property
    def block_s(self) -> int:
        return max(BLOCK_S, self._every_s)

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
        span = inputs.hardware(METRICS_READ, last_s).of(self.nodes)
        self._take(_finite(span), now_s)
        return True

    def _take(self, span: Span, now_s: int) -> None:
        unread = (span.ticks[:, None] > self._read_s) & span.reported
        newest = np.where(unread, span.ticks[:, None], 0).max(axis=0)
        self._read_s = np.maximum(self._read_s, newest)
        base, epoch_s = self.alarm_level(), self._epoch_s or 0
        for quantity in QUANTITIES:
            values = span.values.get(quantity.metric)
            if values is None or not values.shape[2]:
                continue
            executed = span.values.get(quantity.counted_by)
            if executed is not None and executed.shape == values.shape:
                values = np.where(executed == 0, np.nan, values)
            level = self._by_device(_block(values, unread), quantity)
            held = self._level(quantity, level.shape[1])
            held.update(level, at_s=now_s, epoch_s=epoch_s, base=base)
        lost, sent = (span.values.get(name) for name in (RETRANSMITS, PACKETS))
        if lost is not None and sent is not None and lost.shape == sent.shape and lost.shape[2]:
            if self._loss is None or self._loss.shape != lost.shape[1:]:
                self._loss = Loss(len(self.nodes), lost.shape[2], self._n_blocks)
            counts = (_total(values, unread) for values in (lost, sent))
            self._loss.update(*counts, at_s=now_s, epoch_s=epoch_s, base=base)

    @property
    def _n_blocks(self) -> int:
        return -(-FORGET_S // self.block_s)

    def _by_device(self, level: FloatArray, quantity: Quantity) -> FloatArray:
        n_nodes, n_cores = level.shape
        if not quantity.by_device or n_cores % self._per_device:
            return level
        return np.asarray(level.reshape(n_nodes, -1, self._per_device).mean(axis=2))

    def _level(self, quantity: Quantity, n_parts: int) -> Level:
        held = self._levels.get(quantity.name)
        if held is None or held.shape != (len(self.nodes), n_parts):
            held = Level(quantity, len(self.nodes), n_parts, self._n_blocks)
            self._levels[quantity.name] = held
        return held

    def alarm_level(self) -> float:
        """Nats at which chance raises the accepted number of alarms a year.

        Notes
        -----
        Each part is looked at once a block, with each size.

        References
        ----------
        G. Lorden, "Procedures for Reacting to a Change in Distribution", Ann. Math. Stat. 42
        (1971), 1897-1908, theorem 2.
        """
        n_parts = sum(math.prod(level.shape) for level in self._levels.values())
        n_parts += math.prod(self._loss.shape) if self._loss else 0
        looks = max(1, n_parts) * len(SIZES) * YEAR_S / self.block_s
        return math.log(max(looks / self._false_per_year, math.e))

    @property
    def shifts(self) -> list[Shift]:
        """Quantities of nodes and parts above their level now."""
        held: list[tuple[str, Level | Loss]] = [*self._levels.items()]
        if self._loss is not None:
            held.append(("retransmits", self._loss))
        base = self.alarm_level()
        return [
            self._shift(name, each, int(part), base)
            for name, each in held
            for part in np.flatnonzero(each.excursions.is_open)
        ]

    def _shift(self, name: str, held: Level | Loss, part: int, base: float) -> Shift:
        state = held.excursions
        size = int(state.size[part])
        since_s = float(state.since_s[size, part]) - self.block_s
        return Shift(
            quantity=name,
            node=part // held.shape[1],
            part=None if name in OF_NODES else part % held.shape[1],
            onset_s=since_s + (self._epoch_s or 0),
            size=held.size(part, since_s),
            nats=float(state.nats[:, part].max()),
            level_nats=state.level(base),
        )

    def effects(self, since_s: float) -> Effects:
        """Measure every quantity since a moment: as logarithms, retransmits as a share."""
        effects: dict[str, Effect] = {}
        since_s -= self._epoch_s or 0
        for name, level in self._levels.items():
            effect = level.effect(since_s)
            if name in OF_NODES:
                effect = Effect(effect.size[:, 0], effect.error[:, 0])
            effects[name] = effect
        if self._loss is not None:
            effects["retransmits"] = self._loss.effect(since_s)
        return effects


def _finite(span: Span) -> Span:
    """Take infinities and negative values for no values."""
    values: Mapping[str, FloatArray] = {
        name: np.where(np.isfinite(array) & (array >= 0), array, np.nan)
        for name, array in span.values.items()
    }
    return Span(span.shard, span.ticks, span.nodes, values, span.every_s)


def _block(values: FloatArray, unread: BoolArray) -> FloatArray:
    """Mean of each part over its new measurements; one that is held counts once."""
    is_new = unread.copy()
    same = (values[1:] == values[:-1]) | np.isnan(values[1:])
    is_new[1:] &= ~same.all(axis=2)
    is_new[0] = False
    counted = is_new[..., None] & np.isfinite(values)
    n = counted.sum(axis=0)
    total = np.where(counted, values, 0.0).sum(axis=0, dtype=float)
    return np.asarray(np.where(n > 0, total, np.nan) / np.maximum(n, 1))


def _total(values: FloatArray, unread: BoolArray) -> FloatArray:
    """Count of each part over the unread seconds, of rates per second."""
    counted = unread[..., None] & np.isfinite(values)
    total = np.where(counted, values, 0.0).sum(axis=0, dtype=float)
    return np.asarray(np.where(counted.any(axis=0), total, np.nan))
