"""Writers killed at any line, and stores that stop: every second arrives."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from django.db import connection

from telemetry.blocks import Span
from telemetry.long_term.writer import SECONDS
from telemetry.store.hot import HotStore
from telemetry.store.models import LongTermPosition
from tests.fleet.notifications.processes import database_url, environment
from tests.helpers import just_now
from tests.long_term_stores import LongTermStore, eventually

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).resolve().parents[3]
COUNT = 'trnwatch_device_mem_ecc_corrected_total{node="steady"}'
BACK_S = 700


def counting(start: int, end: int) -> Span:
    """Return ticks of one device whose count is the second itself: each is distinct."""
    ticks = np.arange(start, end)
    values = {"mem_ecc_corrected": ticks[:, None, None].astype(float)}
    return Span("llama/0", ticks, ("steady",), values)


class Writers:
    """Starts writers, as `up` does, and kills them."""

    def __init__(self, folder: Path, store: LongTermStore, redis_url: str) -> None:
        self._env = environment(
            folder,
            database_url(connection.settings_dict),
            REDIS_URL=redis_url,
            LONG_TERM_WRITE_URL=f"{store.url}/api/v1/write",
            LONG_TERM_EVERY_S="1",
        )
        self._log = folder / "writer.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "manage.py", "write_long_term"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=self._env, stdout=log, stderr=log
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def writers_to(store: LongTermStore, folder: Path, redis_url: str) -> Iterator[Writers]:
    writers = Writers(folder, store, redis_url)
    try:
        yield writers
    finally:
        writers.kill()


def position() -> int:
    """Return how far the seconds have come."""
    row = LongTermPosition.objects.filter(stream=SECONDS).first()
    return row.second if row else 0


def killed_midway(writers: Writers, store: LongTermStore, start: int) -> None:
    """Kill a writer that has begun, at any line, and then its store."""
    writers.start()
    eventually(lambda: position() > start)
    time.sleep(random.Random(store.port).uniform(0.0, 0.2))
    writers.kill()
    store.kill()


def test_every_second_arrives_whatever_is_killed(
    store: LongTermStore, hot: HotStore, redis_url: str, tmp_path: Path
) -> None:
    now_s = int(just_now().timestamp())
    start, end = now_s - BACK_S, now_s - 20
    hot.append(counting(start, end).blocks())

    with writers_to(store, tmp_path, redis_url) as writers:
        killed_midway(writers, store, start)
        # What the store has never heard of, and is due only while it is away.
        later = int(just_now().timestamp())
        hot.append(counting(later - 10, later).blocks())
        writers.start()
        # The connection to a store that is just killed may be reset first.
        eventually(lambda: LongTermPosition.objects.filter(trouble__contains="refused").exists())
        store.start()
        eventually(lambda: position() >= later)
        row = LongTermPosition.objects.get(stream=SECONDS)

    store.flush()
    expected = {*range(start, end), *range(later - 10, later)}
    found = eventually(
        lambda: store.samples(COUNT, start=start, end=later),
        wants=lambda found: found and len(found["0", "steady"]) == len(expected),
    )
    assert {s: int(v) for s, v in found["0", "steady"].items()} == {s: s for s in expected}
    assert row.n_dropped == 0
