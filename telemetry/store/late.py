"""What comes late: beyond the hot tier, or after its minute was rolled up; no second is lost.

Late seconds wait in Redis, each once, until their minute is quiet; then the minute is written
anew, with what it held before.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from django.db import transaction

from telemetry.blocks import Block, FloatArray
from telemetry.store import durable
from telemetry.store.again import write_again
from telemetry.store.connection import Connection
from telemetry.store.gathering import Packed, gather
from telemetry.store.hot import HotStore
from telemetry.store.models import HourRollup, MinuteRollup
from telemetry.store.packing import DIGEST_BYTES, pack, read_layout
from telemetry.store.rollups import (
    Minutes,
    laid_over,
    minute_bytes,
    read_hour,
    read_minute,
    rolled_up,
    widened,
)

MINUTE_S = 60
HOUR_S = 3600
# Minutes are rolled up for so long anyway; what is older is late.
LATE_S = 4 * MINUTE_S
QUIET_S = 20.0
KEEP_S = 2 * 24 * HOUR_S
MOST_AT_ONCE = 2_000
# Which minutes have late seconds, by when one came last: "shard\nminute".
MINUTES = "late:minutes"
LAYOUT = b"layout:"
# Nothing waits any more, and nothing has come in the meantime.
DONE = """if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('ZREM', KEYS[2], ARGV[1]) end"""


def keep_late(hot: Connection, blocks: Iterable[Block], *, now_s: float) -> None:
    """Keep those blocks that are late until they are rolled up; the first of a second holds."""
    commands: list[tuple[object, ...]] = []
    for block in blocks:
        if block.tick >= now_s - LATE_S:
            continue
        layout, blob = pack(block)
        minute = block.tick - block.tick % MINUTE_S
        key = f"late:{block.shard}:{minute}"
        commands += [
            ("HSETNX", key, b"%d:" % block.tick + layout.digest, blob),
            ("HSETNX", key, LAYOUT + layout.digest, layout.encoded),
            ("EXPIRE", key, KEEP_S),
            ("ZADD", MINUTES, now_s, f"{block.shard}\n{minute}"),
        ]
    if commands:
        hot.ask_all(commands)


def fold_late(hot: HotStore, *, now_s: float) -> int:
    """Roll up the minutes of which nothing has come for a while; return how many there were.

    A second time changes nothing, for minutes that came late as a whole.
    """
    quiet = ("ZRANGEBYSCORE", MINUTES, "-inf", now_s - QUIET_S, "LIMIT", 0, MOST_AT_ONCE)
    members: list[bytes] = hot.ask(*quiet)
    newest = hot.newest()
    for member in members:
        shard, _, word = member.decode().rpartition("\n")
        minute = int(word)
        key = f"late:{shard}:{minute}"
        held: dict[bytes, bytes] = hot.ask("HGETALL", key)
        if held:
            oldest_s = newest[shard] - hot.keep_s if shard in newest else now_s
            is_hot = minute >= oldest_s + MINUTE_S
            _write(hot, shard, minute, held, is_hot=is_hot)
            write_again(hot, [minute], now_s=now_s)
            hot.ask("HDEL", key, *held)
        hot.ask("EVAL", DONE, 2, key, MINUTES, member)
    return len(members)


def _write(
    hot: HotStore, shard: str, minute: int, held: dict[bytes, bytes], *, is_hot: bool
) -> None:
    """Write a minute with its late seconds: from the hot tier as long as that has all of it."""
    end = minute + MINUTE_S - 1
    if is_hot:
        durable.write_rollups(hot.window(shard, (), start=minute, end=end))
        return
    packed = _packed(held)
    late = rolled_up(gather({shard: packed}, (), start=minute, end=end))
    if not len(late.minutes):
        return
    n_late = len({tick for tick, _, _ in packed})
    late = Minutes(shard, late.minutes, late.nodes, late.values)
    with transaction.atomic():
        before = _held_minute(shard, minute)
        merged = late if before is None else _merged(before, late, share=n_late / MINUTE_S)
        layout, data = minute_bytes(merged, 0)
        MinuteRollup.objects.update_or_create(
            shard=shard, minute=minute, defaults={"layout": layout, "data": data}
        )


def _packed(held: dict[bytes, bytes]) -> list[Packed]:
    """Return the blocks that wait."""
    layouts = {
        field.removeprefix(LAYOUT): read_layout(encoded)
        for field, encoded in held.items()
        if field.startswith(LAYOUT)
    }
    found = [
        (int(field.partition(b":")[0]), layouts[blob[:DIGEST_BYTES]], blob)
        for field, blob in held.items()
        if not field.startswith(LAYOUT)
    ]
    return sorted(found, key=lambda packed: packed[0])


def _held_minute(shard: str, minute: int) -> Minutes | None:
    """Return what the durable tier has of a minute, None where it has nothing."""
    hour = minute - minute % HOUR_S
    rows = HourRollup.objects.filter(shard=shard, hour=hour)
    pieces = [read_hour(row.metric, hour, bytes(row.data)) for row in rows]
    loose = MinuteRollup.objects.filter(shard=shard, minute=minute)
    pieces += [read_minute(shard, minute, bytes(row.layout), bytes(row.data)) for row in loose]
    known = [piece.where(piece.minutes == minute) for piece in pieces if piece is not None]
    known = [piece for piece in known if len(piece.minutes)]
    return laid_over(shard, known) if known else None


def _merged(before: Minutes, late: Minutes, *, share: float) -> Minutes:
    """Join two parts of a minute of one node; the late one is ``share`` of it."""
    values = dict(before.values)
    for name, stats in late.values.items():
        held = before.values.get(name)
        if held is None or before.nodes != late.nodes:
            values[name] = stats
            continue
        width = max(held.shape[2], stats.shape[2])
        values[name] = _joined(widened(held, width), widened(stats, width), share)
    return Minutes(late.shard, late.minutes, late.nodes, values)


def _joined(held: FloatArray, late: FloatArray, share: float) -> FloatArray:
    """Join lowest, mean and highest of two parts of a minute: the mean by their lengths."""
    (low, mean, high), (low_2, mean_2, high_2) = _stats(held), _stats(late)
    both = mean * (1 - share) + mean_2 * share
    mean = np.where(np.isnan(mean), mean_2, np.where(np.isnan(mean_2), mean, both))
    return np.concatenate([np.fmin(low, low_2), mean, np.fmax(high, high_2)], axis=2)


def _stats(stats: FloatArray) -> Sequence[FloatArray]:
    """Return lowest, mean and highest of each part."""
    return np.split(stats, 3, axis=2)
