"""Minutes written anew after they had been settled: whoever passed them on must again."""

from collections.abc import Iterable

from telemetry.store.connection import Connection

AGAIN = "long-term:again"
# More than a month of them: beyond it the oldest are let go of, should nobody ever ask.
MOST = 50_000
# What was written anew once more meanwhile stays.
DONE = """
if redis.call('ZSCORE', KEYS[1], ARGV[1]) == ARGV[2] then
  return redis.call('ZREM', KEYS[1], ARGV[1])
end
return 0
"""
MS = 1000
Mark = tuple[int, int]


def write_again(hot: Connection, minutes: Iterable[int], *, now_s: float) -> None:
    """Note minutes that are not what they were."""
    pairs = [part for minute in minutes for part in (round(now_s * MS), minute)]
    if pairs:
        hot.ask_all([("ZADD", AGAIN, *pairs), ("ZREMRANGEBYRANK", AGAIN, 0, -MOST - 1)])


def written_again(hot: Connection, *, most: int) -> list[Mark]:
    """Return some of these minutes, those that were noted first, and what to call them done by."""
    members: list[bytes] = hot.ask("ZRANGE", AGAIN, 0, most - 1)
    scores = hot.ask_all(("ZSCORE", AGAIN, member) for member in members)
    marks = zip(members, scores, strict=True)
    return [(int(member), int(score)) for member, score in marks if score is not None]


def done_again(hot: Connection, marks: Iterable[Mark]) -> None:
    """Forget minutes that were passed on, as they were when they were asked for."""
    for minute, score in marks:
        hot.ask("EVAL", DONE, 1, AGAIN, minute, score)
