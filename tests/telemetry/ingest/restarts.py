"""Requests of an agent around a server restart, and their order."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Sent:
    """One request as the server takes it: its reports by their true moments."""

    arrived_s: float
    sent_s: float
    made_s: tuple[float, ...]


TIMEOUT_S = 20.0


def requests(
    delay: Callable[[], float], *, stop_s: float, stopped_for_s: float, until_s: float
) -> Iterator[Sent]:
    """Play an agent that makes a report each second, while the server stops for a while.

    One request is under way at a time. While the server is stopped they wait; after 20 s the
    agent gives a request up, and sends all again with what is new. What was given up is served
    all the same as soon as the server goes on.
    """
    goes_on_s, now_s, n_taken = stop_s + stopped_for_s, 0.5, 0
    served: list[tuple[float, int, Sent]] = []
    while now_s < until_s:
        made = tuple(float(s) for s in range(n_taken, int(now_s) + 1))
        if not made:
            now_s = n_taken + 0.1
            continue
        reached_s = now_s + delay()
        waits = stop_s <= reached_s < goes_on_s
        arrived_s = goes_on_s + 0.01 * len(served) if waits else reached_s
        heapq.heappush(served, (arrived_s, len(served), Sent(arrived_s, now_s, made)))
        if arrived_s - now_s <= TIMEOUT_S:
            n_taken, now_s = int(made[-1]) + 1, arrived_s + 0.01
        else:
            now_s += TIMEOUT_S
    while served:
        yield heapq.heappop(served)[2]
