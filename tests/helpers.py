"""Helpers of all tests: a fixed noon, small blocks and steps, a real Redis and Prometheus."""

import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from django.db import connection
from django.db.models import Model
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from fleet.ops.embedded_redis import REDIS_SERVER
from telemetry.blocks import METRICS, Block, FloatArray
from telemetry.simulate.plan import RunSpec
from telemetry.steps import PHASES, StepBatch
from telemetry.store.hot import HotStore

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
NOON_S = int(NOON.timestamp())
N_REDIS_DATABASES = 4096
N_PARTS = {"node": 1, "core": 32, "device": 16, "efa": 8}


# A run that is small, and trains at once.
LLAMA = RunSpec(
    name="llama",
    model="llama2-7b",
    instance="trn1.32xlarge",
    nodes=4,
    tp=8,
    seq_len=4096,
    global_batch=64,
    compile_s=0,
)


def just_now() -> datetime:
    """Return this moment; a constant would be minutes old by the time some tests run."""
    return datetime.now(UTC)


def watch_since(hot: HotStore, since_s: float) -> None:
    """Let trnwatch watch since a time, Unix seconds, and go on for the rest of the test."""
    hot.gauge("listening_since_s", since_s)
    hot.gauge("watched_at_s", time.time() + 3600)


def number_from(number: int, *models: type[Model]) -> None:
    """Let the next row of each of these models have this number.

    What earlier tests made counts on in the database. Who depends on a number, or makes rows of
    given numbers with others, sets first where counting begins.
    """
    with connection.cursor() as cursor:
        for table in (model._meta.db_table for model in models):
            if connection.vendor == "postgresql":
                cursor.execute(
                    "SELECT setval(pg_get_serial_sequence(%s, 'id'), %s, false)", [table, number]
                )
                continue
            cursor.execute("DELETE FROM sqlite_sequence WHERE name = %s", [table])
            cursor.execute(
                "INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", (table, number - 1)
            )


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def postgres_program(name: str) -> str:
    """Return the path of one of PostgreSQL's programs, which Debian keeps off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(found[-1]) if found else name)


@contextmanager
def running(
    command: Sequence[str], log: Path, *, ends_by: int = signal.SIGKILL, **options: Any
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program for as long as the block lasts; its output is added to ``log``."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, **options)
    try:
        yield process
    finally:
        process.send_signal(ends_by)
        process.wait(60)


def prometheus_command(
    folder: Path, port: int, config: Mapping[str, Any], *options: str
) -> list[str]:
    """Write a configuration, and return the command that runs Prometheus with it."""
    folder.mkdir(exist_ok=True)
    # JSON is YAML too.
    (folder / "prometheus.yml").write_text(json.dumps(config))
    return [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        *options,
    ]


@contextmanager
def redis_server(folder: Path, *, port: int | None = None) -> Iterator[str]:
    """Run a real Redis in ``folder`` for as long as the block lasts; gives its URL."""
    port = port or free_port()
    options = f"--port {port} --bind 127.0.0.1 --databases {N_REDIS_DATABASES} --appendonly no"
    command = [REDIS_SERVER, *options.split(), "--save", "", "--dir", str(folder)]
    with running(command, folder / "redis.log"):
        until_answers(port)
        yield f"redis://127.0.0.1:{port}"


def until_answers(port: int, *, timeout_s: float = 20.0) -> None:
    """Wait until the Redis on ``port`` answers."""
    deadline = time.monotonic() + timeout_s
    with Redis(port=port) as client:
        while True:
            try:
                client.ping()
            except RedisConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return


def block(
    shard: str = "llama/0",
    tick: int = NOON_S,
    nodes: Sequence[str] = ("steady", "limping"),
    *,
    fill: float = 0.5,
    **values: FloatArray,
) -> Block:
    """Return one tick in which every metric reads ``fill``, except those given; all is healthy."""
    usual = _everything(len(nodes), fill)
    return Block(shard, tick, tuple(nodes), usual | values if values else usual)


@cache
def _everything(n_nodes: int, fill: float) -> MappingProxyType[str, FloatArray]:
    """Return every metric; equal blocks share it, and a store packs what they share once."""
    everything = {
        name: np.full((n_nodes, N_PARTS[metric.part]), 0.0 if name == "device_unhealthy" else fill)
        for name, metric in METRICS.items()
    }
    for shared in everything.values():
        shared.flags.writeable = False
    return MappingProxyType(everything)


def steps(
    run: str = "llama",
    workers: Sequence[str] = ("steady", "limping"),
    *,
    n_steps: int = 10,
    first: int = 1,
    ended_at_s: float = NOON_S,
    tokens: float = 4096.0,
    **phases: float | Sequence[float],
) -> StepBatch:
    """Return equal steps, the first over at ``ended_at_s``.

    A phase is one value, or one per worker; phases that are not named take no time.

    >>> steps(n_steps=2, compute_s=[0.9, 1.2], wait_s=[0.3, 0.0]).step_s
    array([1.2, 1.2])
    """
    shape = (n_steps, len(workers))
    durations = {
        phase: np.broadcast_to(np.asarray(phases.get(phase, 0.0), float), shape).copy()
        for phase in PHASES
    }
    step_s = sum(values.mean(axis=1) for values in durations.values())
    return StepBatch(
        run=run,
        workers=tuple(workers),
        step=np.arange(first, first + n_steps),
        ended_at_s=ended_at_s + np.cumsum(step_s) - step_s,
        phases=durations,
        tokens=np.full(n_steps, tokens),
    )


@dataclass
class Clock:
    """The time of a store, which a test moves."""

    now_s: float

    def __call__(self) -> float:
        return self.now_s
