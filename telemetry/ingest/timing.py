"""When a report was: neuron-monitor does not say, so arrival, envelope and period tell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from telemetry.blocks import Block
from telemetry.ingest.reading import Reading

# A report may come from this far in the future before its clock is taken to be wrong,
# and this far from the past.
AHEAD_S = 2.0
SKEW_S = 30.0
# How long the least delay seen of a node is believed to tell its clock's offset.
OFFSET_KEEP_S = 300.0
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
class NodeClock:
    """What is known of one node's sense of time, carried from one delivery to the next.

    ``offset_s`` is our clock less the node's, as far as it can be told from outside: the least
    delay of the last minutes, since a message may come late but not before it was sent.
    """

    offset_s: float = 0.0
    offset_seen_s: float = -math.inf
    last_end_s: float = -math.inf
    epoch_s: float = math.nan
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
        if sent_s is not None and up_s is not None:
            self._was_set(sent_s - up_s)
        newest = max((r.at_s for r in readings if r.at_s is not None), default=None)
        shown = newest if sent_s is None else sent_s
        if shown is not None:
            self._observe(arrived_s - shown, arrived_s)
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
        is_wrong = self.offset_s < -AHEAD_S or self.offset_s > SKEW_S
        return self.offset_s if is_wrong else 0.0

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

    def _was_set(self, epoch_s: float) -> None:
        """Forget what was known of a clock that has been set since."""
        if abs(epoch_s - self.epoch_s) > STEP_S:
            self.offset_s, self.offset_seen_s = 0.0, -math.inf
        self.epoch_s = epoch_s

    def _observe(self, delay_s: float, now_s: float) -> None:
        """Take in one delay between the node's clock and ours."""
        if delay_s <= self.offset_s or now_s - self.offset_seen_s > OFFSET_KEEP_S:
            self.offset_s = delay_s
            self.offset_seen_s = now_s


def shard_of(node: str) -> str:
    """Return the shard that keeps a real node: one of its own."""
    return f"node:{node}"


def blocks(node: str, reading: Reading, ticks: Sequence[int]) -> list[Block]:
    """Return one block for each second that a report covers."""
    shard, nodes = shard_of(node), (node,)
    return [Block(shard, tick, nodes, reading.values) for tick in ticks]
