"""The writer: takes what is new from hot and durable tier, in order, and has it delivered."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain

from telemetry.longterm.batches import Chunk, batches
from telemetry.longterm.courier import Courier, Delivered
from telemetry.longterm.figures import FigureReader
from telemetry.longterm.minutes import means_as_seconds, minute_groups
from telemetry.longterm.names import MIDDLE_S
from telemetry.longterm.positions import MINUTES, SECONDS, Position
from telemetry.longterm.seconds import second_chunks
from telemetry.store.again import done_again, written_again
from telemetry.store.reading import Reader

log = logging.getLogger(__name__)

MINUTE_S, HOUR_S = 60, 3600
# Seconds are sent once late reports have had this long; minutes when they are rolled up for
# good: until then they may still be written anew.
SECONDS_SETTLE_S = 15
MINUTES_SETTLE_S = 6 * MINUTE_S
# What the hot tier is about to forget cannot be relied on any more.
FORGETTING_S = 30
LEAST_SLICE_S = 15
MINUTES_AT_ONCE = 60


@dataclass
class Writer:
    """Delivers two streams: seconds as exported, and minutes as the durable tier keeps them.

    A stream moves on when everything of a slice of time was delivered, and its position is
    kept in the database only then: a writer that is killed delivers a slice again, and never
    misses one. At most one slice and one batch per lane are in memory.
    """

    hot: Reader
    courier: Courier
    every_s: int = 15
    clock: Callable[[], float] = field(default=lambda: datetime.now(UTC).timestamp())

    def turn(self) -> bool:
        """Deliver the next slice of each stream; whether there is more to deliver at once."""
        return any([self._send_seconds(), self._send_minutes(), self._send_again()])

    def __post_init__(self) -> None:
        """Refuse what would not meet the minutes."""
        if not 1 <= self.every_s <= MINUTE_S or MINUTE_S % self.every_s:
            msg = (
                f"every_s: {self.every_s} s does not divide a minute; give 1, 5, 10, 15, 30 or 60"
            )
            raise ValueError(msg)
        self._figures = FigureReader(self.hot)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.clock(), UTC)

    def _send_seconds(self) -> bool:
        position, now_s = Position(SECONDS), int(self.clock())
        hot_from = self._whole(now_s - self.hot.keep_s + FORGETTING_S) + self.every_s
        due = self._whole(now_s - SECONDS_SETTLE_S)
        start = position.start_at(hot_from, now=self._now())
        if start < hot_from:
            return self._stand_in(position, start, _up(hot_from, MINUTE_S))
        # With another setting than before, a little is delivered twice.
        first, length_s = self._whole(start), max(self.every_s, LEAST_SLICE_S)
        end = min(first + self._whole(length_s), due)
        if end <= start:
            return False
        chunks = second_chunks(self.hot, start=first, end=end, every_s=self.every_s)
        self._deliver(position, start, end, [chunks])
        return end < due

    def _stand_in(self, position: Position, start: int, hot_from: int) -> bool:
        """Deliver minutes in place of the seconds that an outage outlasted."""
        end = min(hot_from, start - start % HOUR_S + HOUR_S)
        first = _up(start - MIDDLE_S, MINUTE_S)
        self._deliver(position, start, end, means_as_seconds(start=first, end=end))
        return True

    def _send_minutes(self) -> bool:
        position, now_s = Position(MINUTES), int(self.clock())
        due = (now_s - MINUTES_SETTLE_S) // MINUTE_S * MINUTE_S
        start = position.start_at(due - self.hot.keep_s // MINUTE_S * MINUTE_S, now=self._now())
        end = min(start - start % HOUR_S + HOUR_S, due)
        if end <= start:
            return False
        self._deliver(position, start, end, minute_groups(start=start, end=end))
        return end < due

    def _send_again(self) -> bool:
        """Deliver minutes that reports which came late have changed."""
        position = Position(MINUTES)
        due = position.start_at(int(self.clock()), now=self._now())
        marks = written_again(self.hot, most=MINUTES_AT_ONCE)
        for minute, _ in marks:
            # One that lies ahead is delivered in its turn.
            if minute < due:
                groups = minute_groups(start=minute, end=minute + MINUTE_S)
                self._deliver(position, due, due, groups)
        done_again(self.hot, marks)
        return len(marks) == MINUTES_AT_ONCE

    def _whole(self, second: int) -> int:
        return second // self.every_s * self.every_s

    def _deliver(
        self, position: Position, start: int, end: int, groups: Iterable[Iterable[Chunk]]
    ) -> None:
        """Deliver a slice, one group after another, then note it."""
        self.courier.on_trouble = lambda why: position.complain(why, now=self._now())
        if position.stream == SECONDS:
            groups = chain(groups, self._figures.seconds(start=start, end=end))
        delivered = sum((self.courier.deliver(batches(group)) for group in groups), Delivered())
        position.move(before=start, after=end, delivered=delivered, now=self._now())


def _up(second: int, step_s: int) -> int:
    """Round up to a whole step."""
    return -(-second // step_s) * step_s
