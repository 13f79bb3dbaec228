"""When a report was: neuron-monitor does not say, so arrival, envelope and period tell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from telemetry.blocks import Block
from telemetry.ingest.readings import Reading

# A report may come from this far in the future before its clock is taken to be wrong,
# and this far from the past.
AHEAD_S = 2.0
SKEW_S = 30.0
# How long the least delay seen of a node is believed to tell its clock's offset.
OFFSET_KEEP_S = 300.0
# A first request that comes this late may have waited: in the listening socket while the server
# started, or with a proxy. What comes later still has a wrong clock.
MAX_WAIT_S = 300.0
# Requests that wait are served together, each with a delay of its own. A clock that is behind
# shows the same delay again and again: in so many requests, over so long, within so much.
N_AGREEING = 3
AGREEING_S = 10.0
AGREEMENT_S = 1.0
# A report covers at most this much, whatever its period claims.
MAX_COVER_S = 60
# A report that comes this much late after the one before still leaves no gap between them.
JITTER_S = 1.0
# Sums of periods are right only so far.
ROUNDING_S = 1e-4
N_REMEMBERED = 512
# A clock that moves this far against the seconds since boot was set; less is its rate at work.
STEP_S = 1.0


@dataclass(slots=True)
class ClockOffset:
    """Our clock less a sender's, as far as requests show it.

    A request shows a delay: its arrival by our clock less its sending by the sender's. That is
    the offset plus the time on the way, which is never negative. So the least delay of the last
    minutes is the best bound, a smaller delay is believed at once, and a larger one only when
    nothing smaller has come for ``keep_s``. Of a sender that is new here, a delay that may be
    waiting is not believed before others agree: until then its clock is taken to be right.

    ``ahead_s`` and ``behind_s`` say how far a clock may be off before it is corrected.
    """

    ahead_s: float = AHEAD_S
    behind_s: float = SKEW_S
    keep_s: float = OFFSET_KEEP_S
    # The least delay of this window and of the one before.
    least_s: float = math.inf
    before_s: float = math.inf
    since_s: float = -math.inf
    # When the sender booted, by its own clock.
    epoch_s: float = math.nan
    is_recalled: bool = False
    # Delays that agree, but are not believed yet.
    n_agreeing: int = 0
    agreeing_since_s: float = 0.0
    lowest_s: float = 0.0
    highest_s: float = 0.0

    @property
    def offset_s(self) -> float:
        """Our clock less the sender's; infinite where nothing is known."""
        return min(self.least_s, self.before_s)

    @property
    def is_known(self) -> bool:
        """Whether some delay was believed."""
        return self.offset_s < math.inf

    @property
    def correction_s(self) -> float:
        """What is added to the sender's times: 0 as long as its clock is nearly right."""
        offset_s = self.offset_s
        is_right = -self.ahead_s <= offset_s <= self.behind_s
        return 0.0 if is_right or not self.is_known else offset_s

    def observe(self, delay_s: float, now_s: float, *, may_wait: bool) -> None:
        """Take in one delay, by our clock at its arrival.

        ``may_wait`` is whether it is known when the request was sent: without that a sender that
        is new is believed at once.
        """
        if self.is_recalled and self._is_outdated(delay_s):
            self.forget()
        self.is_recalled = False
        if self.is_known:
            if abs(now_s - self.since_s) > self.keep_s:
                self.before_s, self.least_s, self.since_s = self.least_s, math.inf, now_s
            self.least_s = min(self.least_s, delay_s)
            return
        if may_wait and self.behind_s < delay_s <= MAX_WAIT_S:
            if not self._agrees(delay_s, now_s):
                return
            delay_s = self.lowest_s
        self.least_s, self.since_s = delay_s, now_s

    def was_booted(self, epoch_s: float, delay_s: float) -> None:
        """Follow a clock that was set, given when the sender booted by that clock.

        If it is the same boot, the clock was set by what that moment moved; if it is another,
        the clock may be as right or wrong as before. The one that leaves the shorter wait holds.
        """
        moved_s = epoch_s - self.epoch_s
        self.epoch_s = epoch_s
        # Nothing is compared with NaN.
        if not abs(moved_s) > STEP_S:
            return
        waits = {shift_s: delay_s - self.offset_s - shift_s for shift_s in (-moved_s, 0.0)}
        shift_s = min(waits, key=lambda shift_s: abs(waits[shift_s]))
        if -STEP_S <= waits[shift_s] <= SKEW_S:
            self.least_s += shift_s
            self.before_s += shift_s
        else:
            self.forget()

    def forget(self) -> None:
        """Know nothing any more of the offset."""
        self.least_s = self.before_s = math.inf
        self.n_agreeing = 0

    def packed(self) -> str:
        """Write down what is known, for a process that starts; empty where that is nothing."""
        return f"{self.offset_s:.3f} {self.epoch_s:.3f}" if self.is_known else ""

    def recall(self, packed: str, now_s: float) -> None:
        """Take over what was written down."""
        offset_s, _, epoch_s = packed.partition(" ")
        if offset_s:
            self.before_s, self.since_s = float(offset_s), now_s
            self.epoch_s, self.is_recalled = float(epoch_s or "nan"), True

    def _is_outdated(self, delay_s: float) -> bool:
        """Whether the sender's clock is right by now, although it was ahead by minutes.

        So it looks also where our own clock was wrong when the offset was written down.
        """
        is_right = -self.ahead_s <= delay_s <= self.behind_s
        return is_right and delay_s - self.offset_s > MAX_WAIT_S

    def _agrees(self, delay_s: float, now_s: float) -> bool:
        """Whether a delay agrees with those before, and they are enough to be no waiting."""
        lowest_s, highest_s = min(self.lowest_s, delay_s), max(self.highest_s, delay_s)
        if self.n_agreeing and highest_s - lowest_s <= AGREEMENT_S:
            self.lowest_s, self.highest_s = lowest_s, highest_s
            self.n_agreeing += 1
        else:
            self.n_agreeing, self.agreeing_since_s = 1, now_s
            self.lowest_s = self.highest_s = delay_s
        return self.n_agreeing >= N_AGREEING and now_s - self.agreeing_since_s >= AGREEING_S


@dataclass(slots=True)
class NodeClock:
    """What is known of one node's sense of time, carried from one delivery to the next."""

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
        """Return when each report ended, Unix seconds by our clock.

        Reports that say when they were made (``at_s``) are believed, less the offset of a clock
        that is wrong. Those that don't, and arrived together, are laid end to end, the last
        ending at ``sent_s`` (the node's clock at sending) or else on arrival. ``up_s`` are the
        node's seconds since boot at sending: they tell when its clock was set.
        """
        newest = max((r.at_s for r in readings if r.at_s is not None), default=None)
        shown = newest if sent_s is None else sent_s
        if sent_s is not None and up_s is not None:
            self.offset.was_booted(sent_s - up_s, arrived_s - sent_s)
        if shown is not None:
            self.offset.observe(arrived_s - shown, arrived_s, may_wait=sent_s is not None)
        end_s = arrived_s if sent_s is None else sent_s + self.correction_s
        ends: list[float] = []
        for reading in reversed(readings):
            if reading.at_s is not None:
                end_s = reading.at_s + self.correction_s
            ends.append(end_s)
            end_s -= reading.period_s
        return ends[::-1]

    @property
    def correction_s(self) -> float:
        """What is added to the node's times: 0 as long as its clock is nearly right."""
        return self.offset.correction_s

    def ticks(self, end_s: float, period_s: float) -> range:
        """Return the seconds that a report covers: the whole ones in its period, at least one.

        A report that follows closely on the one before reaches back to it, so that a network
        that dawdles makes no gap.
        """
        start_s = end_s - min(period_s, MAX_COVER_S)
        if 0 < start_s - self.last_end_s <= max(JITTER_S, period_s / 2):
            start_s = self.last_end_s
        self.last_end_s = max(self.last_end_s, end_s)
        last = math.floor(end_s)
        return range(min(math.floor(start_s + ROUNDING_S) + 1, last), last + 1)

    def is_repeated(self, reading: Reading, content: bytes) -> bool:
        """Whether a numbered report came before with the same number and content."""
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
    """Return the shard that keeps a real node: one of its own."""
    return f"node:{node}"


def blocks(node: str, reading: Reading, ticks: Sequence[int]) -> list[Block]:
    """Return one block for each second that a report covers."""
    shard, nodes = shard_of(node), (node,)
    return [Block(shard, tick, nodes, reading.values) for tick in ticks]
