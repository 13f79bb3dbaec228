"""Watchers: each evaluates its share of the runs; what all of them found is reconciled together.

Detection remembers what it has read of each run. So a run has always the same watcher, and a
worker stays a watcher for as long as it can. One that is slow or hangs delays only its own runs.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from fleet.alerts.evaluate import Look, conclude, look
from fleet.alerts.failures import ALL_RULES, RuleFailure
from fleet.models import Run
from fleet.runs.state import PAUSE_S
from telemetry.store.hot import HotStore

# A worker that has not evaluated for so long is late (`expires` of the task): another one may.
WORKER, WATCHES_S = "watch:worker:{}", 5
# Its first look reads the last minutes of so many nodes a second, on a slow machine.
NODES_PER_S = 1_000
STANDS_IN = "stands in: "
# Hashes: what each watcher found last, and when it began and ended to look.
LOOKS, TURNS = "watch:looks", "watch:turns"
# Beat lets each look so often. The others wait for one that is in time, and reconcile what it
# found before, for so long.
EVERY_S, AWAITED_S = 1.0, 3.0
# Twice what a worker that hangs has (fleet/ops/liveness.py). The next one may hang there as well:
# no watcher takes over in that time what another one did not end.
HANGS_S = 60


class Stored(msgspec.Struct, frozen=True):
    """A look, when it ended, and how many watchers there were."""

    of: int
    ended_s: float
    look: Look


_DECODER = msgspec.msgpack.Decoder(Stored)


def plain(value: Any) -> Any:
    """Encode a number of numpy as one of Python."""
    return value.item()


def stored_look(encoded: bytes) -> Stored | None:
    """Read what a watcher found; None where it is of a release that stores something else."""
    try:
        return _DECODER.decode(encoded)
    except msgspec.DecodeError:
        return None


def worker_of(
    hot: HotStore,
    worker: str,
    *,
    watcher: int = 0,
    of: int = 1,
    stands_in: bool = False,
    n_nodes: int = 0,
) -> str:
    """Return the worker that is a watcher: the one that was last, until it is late; "" for none.

    One of many nodes is late later: who takes over reads their last minutes first.
    One that ``stands_in`` has other tasks, too, and so has another watcher: a worker without any
    takes over from it.
    """
    key = WORKER.format(watcher)
    others = [WORKER.format(i) for i in range(of) if i != watcher]
    holder, *held = (name.decode() if name else "" for name in hot.execute("MGET", key, *others))
    is_other = worker in [name.removeprefix(STANDS_IN) for name in held]
    stands_in |= is_other
    name = holder.removeprefix(STANDS_IN)
    if name not in ("", worker) and (stands_in or not holder.startswith(STANDS_IN)):
        return name
    if not name and is_other and hangs(hot, watcher):
        return ""
    mine = f"{STANDS_IN}{worker}" if stands_in else worker
    lasts_s = WATCHES_S + n_nodes // NODES_PER_S
    # Of workers that are free at once, the first.
    if not name and not hot.execute("SET", key, mine, "NX", "EX", lasts_s):
        return worker_of(hot, worker, watcher=watcher, of=of, stands_in=stands_in, n_nodes=n_nodes)
    hot.execute("SET", key, mine, "EX", lasts_s)
    return worker


def hangs(hot: HotStore, watcher: int) -> bool:
    """Whether a watcher began a moment ago and did not end: it hangs, or it was killed there."""
    began_s, ended_s = (
        float(at or 0)
        for at in hot.execute("HMGET", TURNS, f"{watcher}:began", f"{watcher}:ended")
    )
    return ended_s < began_s and hot.now() - began_s < HANGS_S


def watch_runs(hot: HotStore, *, now: datetime, watcher: int = 0, of: int = 1) -> bool:
    """Look at the runs of one watcher, and reconcile what all found unless another one will.

    The last one to look in a second does so. None waits for one that is slow or late.
    """
    hot.execute("HSET", TURNS, f"{watcher}:began", now.timestamp())
    found = look(hot, now=now, watcher=watcher, of=of)
    ended_s = hot.now()
    encoded = msgspec.msgpack.encode(Stored(of, ended_s, found), enc_hook=plain)
    *_, stored, turns = hot.execute_all(
        [
            ("HSET", LOOKS, watcher, encoded),
            ("HSET", TURNS, f"{watcher}:ended", ended_s),
            *(("HSETNX", TURNS, f"{i}:ended", ended_s) for i in range(of)),
            ("HGETALL", LOOKS),
            ("HMGET", TURNS, *(f"{i}:ended" for i in range(of))),
        ]
    )
    known = [each for each in map(stored_look, stored.values()) if each and each.of == of]
    recent = [each for each in known if ended_s - each.ended_s <= AWAITED_S]
    awaited = [each.look.at_s for each in recent if each.ended_s - each.look.at_s <= EVERY_S]
    if any(int(at_s) < int(found.at_s) for at_s in awaited):
        return False
    late_s = {i: ended_s - float(at) for i, at in enumerate(turns)}
    hot.gauge("all_watched_at_s", ended_s - max(late_s.values()))
    failures = [*failures_of({i: s for i, s in late_s.items() if s > PAUSE_S}, of=of)]
    at = datetime.fromtimestamp(ended_s, UTC)
    conclude(hot, [each.look for each in recent], now=at, failures=failures)
    return True


def failures_of(late_s: Mapping[int, float], *, of: int) -> Iterator[RuleFailure]:
    """Yield a failure for each run of watchers that are late."""
    names = Run.objects.active().values_list("pk", "name") if late_s else ()
    for key, name in names:
        if key % of in late_s:
            text = f"not evaluated for {late_s[key % of]:.0f} s: watcher {key % of} is late"
            yield RuleFailure(ALL_RULES, name, text)
