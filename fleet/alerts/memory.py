"""What detection remembers of each run, kept so that the next process goes on from it.

What a run's usual step is takes 15 minutes to learn, and an open problem is measured against what
was before it. A new process would take a slow run for a usual one.
"""

import hashlib
import hmac
import pickle
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from django.conf import settings

import telemetry
from fleet.models import Run
from telemetry.detect.slowdowns import RunWatch
from telemetry.store.hot import HotStore

KEY, KEEP_S, EVERY_S = "watch:memory:{}", 6 * 3_600, 60
# A store on another machine takes so much in a sixth of a second. A node and a worker have so much
# of it (measured); hardware is left out first, for it is learned again in five minutes.
MOST_BYTES, NODE_BYTES, WORKER_BYTES = 16 << 20, 60_000, 8_400
SIGNATURE_BYTES = 32
# In which minute the memory of a run was kept last, or found, by the run's key.
_KEPT: dict[int, int] = {}


@cache
def _release() -> bytes:
    """Tell the code apart whose objects are kept: no other release reads them."""
    digest = hashlib.sha256(f"{sys.version} {np.__version__}".encode())
    for file in sorted(Path(telemetry.__path__[0]).rglob("*.*")):
        digest.update(file.read_bytes() if file.suffix in (".py", ".toml") else b"")
    return digest.digest()


def _signature(data: bytes) -> bytes:
    secret = hashlib.sha256(b"watch:memory" + settings.SECRET_KEY.encode() + _release()).digest()
    return hashlib.blake2b(data, key=secret, digest_size=SIGNATURE_BYTES).digest()


def recall(hot: HotStore, runs: Iterable[Run], watches: dict[str, Any]) -> None:
    """Add what another process kept of the runs that this one has not watched yet."""
    for run in runs:
        kept = None if run.name in watches else hot.execute("GET", _key(run))
        # Unpickling runs what it says: only what a process with our secret wrote.
        if kept and hmac.compare_digest(
            kept[:SIGNATURE_BYTES], _signature(kept[SIGNATURE_BYTES:])
        ):
            watches[run.name] = watch = pickle.loads(kept[SIGNATURE_BYTES:])  # noqa: S301
            watch.resume()


def keep(hot: HotStore, runs: Iterable[Run], watches: dict[str, Any], *, now_s: float) -> None:
    """Store what is known of each run, once a minute; each at another second of it.

    Of a run of more than about 2,000 workers nothing is kept.
    """
    for run in runs:
        minute = (int(now_s) + run.pk) // EVERY_S
        watch: RunWatch | None = watches.get(run.name)
        if watch is None or _KEPT.setdefault(run.pk, minute) == minute:
            continue
        _KEPT[run.pk] = minute
        of_nodes, of_workers = NODE_BYTES * watch.n_nodes, WORKER_BYTES * watch.n_workers
        if of_workers <= MOST_BYTES:
            is_small = of_nodes + of_workers <= MOST_BYTES
            kept = watch if is_small else watch.without_hardware()
            data = pickle.dumps(kept, pickle.HIGHEST_PROTOCOL)
            hot.execute("SET", _key(run), _signature(data) + data, "EX", KEEP_S)


def _key(run: Run) -> str:
    return KEY.format(run.pk)
