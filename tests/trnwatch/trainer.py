"""A training job for tests: worker threads with a real barrier in every step."""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from trnwatch import Reporter


def workers_of(
    server: str, token: str, *, nodes: Sequence[str], run: str, session: str = "1", **about: Any
) -> list[Reporter]:
    """Return a reporter for each node, as the launcher's environment would make them."""
    return [
        Reporter(
            server,
            token=token,
            env={
                "RANK": str(rank),
                "WORLD_SIZE": str(len(nodes)),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "TRNWATCH_NODE": node,
                "TRNWATCH_SESSION": session,
                "TRNWATCH_RUN": run,
            },
            **about,
        )
        for rank, node in enumerate(nodes)
    ]


def train(
    reporters: Sequence[Reporter],
    *,
    n_steps: int,
    compute_s: float = 0.1,
    transfer_s: float = 0.005,
    late_s: Mapping[int, float] | None = None,
    part: str = "",
    first: int = 1,
) -> None:
    """Train some steps; a worker of ``late_s`` is late by so much, in its ``part`` if named."""
    barrier = threading.Barrier(len(reporters))

    def work(rank: int, reporter: Reporter) -> None:
        for number in range(first, first + n_steps):
            with reporter.step(number) as step:
                time.sleep(compute_s)
                with getattr(step, part)() if part else nullcontext():
                    time.sleep((late_s or {}).get(rank, 0.0))
                with step.collective():
                    barrier.wait()
                    time.sleep(transfer_s)

    threads = [
        threading.Thread(target=work, args=(rank, reporter))
        for rank, reporter in enumerate(reporters)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
