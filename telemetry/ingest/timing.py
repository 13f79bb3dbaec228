"""The time of reports: from arrival, sending time and period, corrected for clock skew."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from telemetry.blocks import COUNTED_RATES, Block, FloatArray
from telemetry.ingest.neuron_monitor import Reading

# A report may come from this far in the future before its clock is taken to be wrong,
# and this far from the past.
AHEAD_S = 2.0
SKEW_S = 30.0
# The minimum delay of this long is taken as the clock's offset.
OFFSET_KEEP_S = 300.0
# A first request this late may have been queued, in the listening socket or in a proxy. A later
# one comes from a wrong clock.
MAX_WAIT_S = 300.0
# Queued requests each have their own delay. A clock that is behind shows the same delay in
# N_AGREEING requests, over MIN_AGREEING_S, within MAX_SPREAD_S.
N_AGREEING = 3
MIN_AGREEING_S = 10.0
MAX_SPREAD_S = 1.0
# A report covers at most this much, whatever its period claims.
MAX_COVER_S = 60
# A gap up to this between two reports is closed.
JITTER_S = 1.0
# The driver measures power each minute, and the agent reads health as often. A value is valid
# until the next, which may be a quarter of a minute late: the agent looks for power every five
# seconds, and sends every ten.
POWER, HEALTH, HOLD_S = "device_power_ratio", "device_unhealthy", 75.0
# A report of less than this shares its second with another.
WHOLE_SECOND_S = 0.95
# Sums of periods are exact only up to this.
ROUNDING_S = 1e-4
N_REMEMBERED = 512
# A clock that moves this far against the time since boot was set; less is drift.
CLOCK_SET_S = 1.0


@dataclass(slots=True)
class ClockOffset:
    """Our clock minus a sender's, estimated from requests.

    A request has a delay: its arrival by our clock minus its sending by the sender's. That is
    the offset plus the time on the way, which is never negative. So the minimum delay of the
    last minutes is the best estimate. A smaller delay is used at once, a larger one only when
    nothing smaller has come for ``keep_s``. For a new sender, a delay that may be queueing is
    used only when several requests agree; until then its clock counts as correct.

    ``ahead_s`` and ``behind_s`` are how far a clock may be off before it is corrected.
    """

    ahead_s: float = AHEAD_S
    behind_s: float = SKEW_S
    keep_s: float = OFFSET_KEEP_S
    # The minimum delay of this window and of the previous one.
    least_s: float = math.inf
    before_s: float = math.inf
    since_s: float = -math.inf
    # When the sender booted, by its own clock.
    epoch_s: float = math.nan
    is_restored: bool = False
    # Delays that agree but are not used yet.
    n_agreeing: int = 0
    agreeing_since_s: float = 0.0
    lowest_s: float = 0.0
    highest_s: float = 0.0

    @property
    def offset_s(self) -> float:
        """Our clock minus the sender's; infinite if unknown."""
        return min(self.least_s, self.before_s)

    @property
    def is_known(self) -> bool:
        return self.offset_s < math.inf

    @property
    def correction_s(self) -> float:
        """What is added to the sender's times; 0 while its clock is nearly correct."""
        offset_s = self.offset_s
        is_right = -self.ahead_s <= offset_s <= self.behind_s
        return 0.0 if is_right or not self.is_known else offset_s

    def observe(self, delay_s: float, now_s: float, *, may_wait: bool) -> None:
        """Record one delay; ``now_s`` is our clock at its arrival.

        ``may_wait`` is whether the sending time is known, so that the delay may include
        queueing; without it the first delay is used at once.
        """
        # A restored offset is wrong if the sender's clock is correct now. That also happens if
        # our own clock was wrong when the offset was stored.
        is_right = -self.ahead_s <= delay_s <= self.behind_s
        if self.is_restored and is_right and delay_s - self.offset_s > MAX_WAIT_S:
            self.forget()
        self.is_restored = False
        if self.is_known:
            if abs(now_s - self.since_s) > self.keep_s:
                self.before_s, self.least_s, self.since_s = self.least_s, math.inf, now_s
            self.least_s = min(self.least_s, delay_s)
            return
        if may_wait and self.behind_s < delay_s <= MAX_WAIT_S:
            lowest_s, highest_s = min(self.lowest_s, delay_s), max(self.highest_s, delay_s)
            if self.n_agreeing and highest_s - lowest_s <= MAX_SPREAD_S:
                self.lowest_s, self.highest_s = lowest_s, highest_s
                self.n_agreeing += 1
            else:
                self.n_agreeing, self.agreeing_since_s = 1, now_s
                self.lowest_s = self.highest_s = delay_s
            # Queueing is ruled out only once enough delays agree.
            agreed_s = now_s - self.agreeing_since_s
            if self.n_agreeing < N_AGREEING or agreed_s < MIN_AGREEING_S:
                return
            delay_s = self.lowest_s
        self.least_s, self.since_s = delay_s, now_s

    def follow_boot(self, epoch_s: float, delay_s: float) -> None:
        """Handle a clock that was set; ``epoch_s`` is the sender's boot time by its own clock.

        If the boot time moved, either the clock was set by that much, or the machine was
        rebooted with its clock unchanged. The explanation with the shorter delay is used.
        """
        moved_s = epoch_s - self.epoch_s
        self.epoch_s = epoch_s
        # False for NaN, too: nothing to compare with yet.
        if not abs(moved_s) > CLOCK_SET_S:
            return
        waits = {shift_s: delay_s - self.offset_s - shift_s for shift_s in (-moved_s, 0.0)}
        shift_s = min(waits, key=lambda shift_s: abs(waits[shift_s]))
        if -CLOCK_SET_S <= waits[shift_s] <= SKEW_S:
            self.least_s += shift_s
            self.before_s += shift_s
        else:
            self.forget()

    def forget(self) -> None:
        self.least_s = self.before_s = math.inf
        self.n_agreeing = 0

    def dump(self) -> str:
        """Return the estimate as text, for ``restore``; empty if unknown."""
        return f"{self.offset_s:.3f} {self.epoch_s:.3f}" if self.is_known else ""

    def restore(self, packed: str, now_s: float) -> None:
        offset_s, _, epoch_s = packed.partition(" ")
        if offset_s:
            self.before_s, self.since_s = float(offset_s), now_s
            self.epoch_s, self.is_restored = float(epoch_s or "nan"), True


@dataclass(slots=True)
class NodeClock:
    """The clock state of one node, kept between deliveries."""

    offset: ClockOffset = field(default_factory=ClockOffset)
    last_end_s: float = -math.inf
    remembered: dict[int, None] = field(default_factory=dict)

    def ends(
        self,
        readings: Sequence[Reading],
        *,
        arrived_s: float,
        sent_s: float | None = None,
        up_s: float | None = None,
    ) -> list[float]:
        """Return when each report ended, in Unix seconds by our clock.

        Reports with a time (``at_s``) keep it, corrected by the clock's offset. Others that
        arrived together are laid end to end, the last one ending at ``sent_s`` (the node's
        clock at sending) or on arrival. ``up_s`` are the node's seconds since boot at sending:
        they show when its clock was set.
        """
        newest = max((r.at_s for r in readings if r.at_s is not None), default=None)
        shown = newest if sent_s is None else sent_s
        if sent_s is not None and up_s is not None:
            self.offset.follow_boot(sent_s - up_s, arrived_s - sent_s)
        if shown is not None:
            self.offset.observe(arrived_s - shown, arrived_s, may_wait=sent_s is not None)
        correction_s = self.correction_s
        end_s = arrived_s if sent_s is None else sent_s + correction_s
        ends: list[float] = []
        for reading in reversed(readings):
            if reading.at_s is not None:
                end_s = reading.at_s + correction_s
            ends.append(end_s)
            end_s -= reading.period_s
        return ends[::-1]

    @property
    def correction_s(self) -> float:
        """What is added to the node's times; 0 while its clock is nearly correct."""
        return self.offset.correction_s

    def ticks(self, end_s: float, period_s: float) -> range:
        """Return the whole seconds that a report covers, at least one.

        A report shortly after the previous one is extended back to it, so that network delays
        leave no gap.
        """
        start_s = end_s - min(period_s, MAX_COVER_S)
        if 0 < start_s - self.last_end_s <= max(JITTER_S, period_s / 2):
            start_s = self.last_end_s
        self.last_end_s = max(self.last_end_s, end_s)
        last = math.floor(end_s)
        return range(min(math.floor(start_s + ROUNDING_S) + 1, last), last + 1)

    def is_repeated(self, reading: Reading, content: bytes) -> bool:
        """Whether a report with the same number and content came before."""
        if reading.seq is None:
            return False
        key = hash((reading.seq, content))
        if key in self.remembered:
            return True
        self.remembered[key] = None
        if len(self.remembered) > N_REMEMBERED:
            del self.remembered[next(iter(self.remembered))]
        return False


def shard_of(node: str) -> str:
    """Return the shard of a real node, which is its own."""
    return f"node:{node}"


@dataclass(slots=True)
class HeldState:
    """The newest power or health of each device; valid until the next, for 75 s at most."""

    metric: str
    state: FloatArray = field(default_factory=lambda: np.array([]))
    at_s: FloatArray = field(default_factory=lambda: np.array([]))

    def values(self, reading: Reading, end_s: float, *, correction_s: float) -> FloatArray | None:
        """Return what is valid at the end of a report, by our clock; None if nothing is."""
        n_devices = reading.shape.n_devices
        sent = reading.values.get(self.metric)
        if sent is None and not len(self.state):
            return None
        if len(self.state) != n_devices:
            self.state = np.full(n_devices, np.nan)
            self.at_s = np.full(n_devices, -np.inf)
        state, at_s = self.state, self.at_s
        if sent is not None:
            new = sent[0]
            times = reading.power_at_s if self.metric == POWER else ()
            measured_at_s = np.array(times or [math.nan] * n_devices) + correction_s
            new_at_s = np.where(np.isfinite(measured_at_s), measured_at_s, end_s)
            is_new = np.isfinite(new)
            state, at_s = np.where(is_new, new, state), np.where(is_new, new_at_s, at_s)
            # A late line does not replace what came after it.
            is_newer = at_s >= self.at_s
            self.state = np.where(is_newer, state, self.state)
            self.at_s = np.where(is_newer, at_s, self.at_s)
        age_s = end_s - at_s
        valid = np.where((age_s >= -AHEAD_S) & (age_s <= HOLD_S), state, np.nan)
        return valid[None] if np.isfinite(valid).any() else None


@dataclass(slots=True)
class BlockBuilder:
    """Turns a node's reports into blocks."""

    power: HeldState = field(default_factory=lambda: HeldState(POWER))
    health: HeldState = field(default_factory=lambda: HeldState(HEALTH))
    partial_end_s: float = -math.inf

    def blocks(self, node: str, reading: Reading, clock: NodeClock, end_s: float) -> list[Block]:
        """Return one block per second that a report covers."""
        ticks = clock.ticks(end_s, reading.period_s)
        values = reading.values
        for source in (self.power, self.health):
            if source.metric not in values and not len(source.state):
                continue
            valid = source.values(reading, end_s, correction_s=clock.correction_s)
            values = dict(values)
            if valid is not None:
                values[source.metric] = valid
            else:
                values.pop(source.metric, None)
        is_partial = False
        # A repeated line is not added again.
        if reading.period_s < WHOLE_SECOND_S and end_s > self.partial_end_s:
            self.partial_end_s = end_s
            counts = {name: values[name] / len(ticks) for name in COUNTED_RATES if name in values}
            values, is_partial = {**values, **counts}, bool(counts)
        shard = shard_of(node)
        return [Block(shard, tick, (node,), values, is_partial=is_partial) for tick in ticks]
