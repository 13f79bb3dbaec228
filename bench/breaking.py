"""How soon each process of `make up` is back after SIGSTOP and SIGKILL on a busy machine."""

import multiprocessing
import random
import signal
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

from bench.table import print_table
from fleet.ops.liveness import KEY
from telemetry.store.hot import StoreUnavailable
from tests.fleet.ops.installation import Up, manage, running, wait_for

ROUNDS = 5
# Endless loops beside the programs.
N_BUSY = 10
PROGRAMS = {
    "worker-1": "worker-1@",
    "worker-2": "worker-2@",
    "worker-3": "worker-3@",
    "beat": "beat",
    "sender": "send_notifications",
    "redis": "redis-server",
    "fork server": "fleet.ops.fork_server",
    "web parent": "",
    "web server": "",
}
FIGURES = ("noticed", "back", "proved", "page")
SHARD = "pretrain-gpt/0"
GIVE_UP_S = 120
POLL_S = 0.05


def measure(env: Mapping[str, str], *, rounds: int = ROUNDS) -> dict[str, float]:
    """Break each process in random order; print and return the longest times."""
    del env
    breaks = [(n, s) for n in PROGRAMS for s in ("SIGSTOP", "SIGKILL") for _ in range(rounds)]
    random.Random(0).shuffle(breaks)
    times: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    folder = Path(tempfile.mkdtemp(prefix="trnwatch-breaking-")) / "data"
    with running(folder) as up:
        if manage(folder, "prepare_demo", "--hours", "0.05")[0]:
            raise RuntimeError("The demo fleet could not be prepared.")
        store = up.store()
        wait_for(lambda: SHARD in store.newest(), within_s=GIVE_UP_S)
        first = store.newest()[SHARD]
        with busy(N_BUSY):
            for name, number in breaks:
                times[name, number].append(break_one(up, name, signal.Signals[number]))
        time.sleep(20)
        last = newest(up)
        span = store.window(SHARD, ["vcpu_usage_ratio"], start=max(first, last - 840), end=last)
        seen = np.isfinite(span.values["vcpu_usage_ratio"]).any(axis=(1, 2))
        steps = np.diff(store.steps(SHARD.partition("/")[0], since_s=first).step)
        programs = up.children
    rows = [
        (
            f"{name} {number}",
            f"gone {n:.1f} s, then ticks {b:.1f} s, it proves {w:.1f} s, slowest page {p:.2f} s",
        )
        for (name, number), given in sorted(times.items())
        for n, b, w, p in [np.max(given, axis=0)]
    ]
    figures = {
        "rounds": len(breaks),
        "ticks_lost": int((~seen).sum()),
        "steps_lost_or_doubled": int((steps != 1).sum()),
        "orphans": sum(process.is_running() for process in programs),
        **{
            f"{key}_s": max(given[i] for each in times.values() for given in each)
            for i, key in enumerate(FIGURES)
        },
    }
    print_table("Longest of each", [*rows, *((k, f"{v:g}") for k, v in figures.items())])
    return figures


@contextmanager
def busy(n: int) -> Iterator[None]:
    """Compute without end in ``n`` processes for as long as the block lasts."""
    loops = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(n)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def _compute() -> None:
    while True:
        pass


def break_one(up: Up, name: str, number: signal.Signals) -> tuple[float, ...]:
    """Signal a process; return the seconds until each of ``FIGURES``, and the slowest page.

    Until it is gone, and from then until ticks go on, and until it proves itself again.
    """
    process = find(up, name)
    began_s, shown = time.monotonic(), len(up.shown)
    process.send_signal(number)
    gone_s = back_s = proved_s = slowest_s = 0.0
    before, was_whole = "", False
    while not (gone_s and back_s and proved_s):
        asked_s = time.monotonic()
        up.answers()
        slowest_s = max(slowest_s, time.monotonic() - asked_s)
        now_s = time.monotonic() - began_s
        if now_s > GIVE_UP_S:
            raise TimeoutError(f"{name} is not back after {number.name}: {up.shown[shown:]}")
        if not gone_s and not is_alive(process):
            gone_s, broken_at_s, before = now_s, time.time(), proof_of(up, name)
        if gone_s and not back_s and newest(up) > broken_at_s:
            back_s = now_s - gone_s
        # A parent goes on for a moment before it misses a server: its proof counts from then on.
        if name == "web server" and gone_s and not was_whole and is_whole(up):
            before, was_whole = proof_of(up, name), True
        is_awaited = name == "web server" and not was_whole
        if gone_s and not proved_s and not is_awaited and proof_of(up, name) not in ("", before):
            proved_s = now_s - gone_s
        time.sleep(POLL_S)
    wait_for(lambda: is_whole(up), within_s=GIVE_UP_S)
    return gone_s, back_s, proved_s, slowest_s


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def proof_of(up: Up, name: str) -> str:
    """Return what a program last said of itself; empty while Redis is away.

    The web parent reports once both servers are ready; Redis proves itself by its answer, the
    fork server by its title in the table of processes.
    """
    if name == "fork server":
        ready = up.child("fleet.ops.fork_server: ready")
        return f"{ready.pid}" if ready else ""
    field = f"{name.partition(' ')[0]}@{socket.gethostname()}"
    try:
        held = up.store().execute("HGET", KEY, field)
    except StoreUnavailable:
        return ""
    return f"{time.time()}" if name == "redis" else (held or b"").decode()


def newest(up: Up) -> int:
    """Return the newest second of the shard; 0 while Redis is away."""
    try:
        return up.store().newest().get(SHARD, 0)
    except StoreUnavailable:
        return 0


def web_processes(up: Up) -> list[psutil.Process]:
    found = []
    for child in up.children:
        try:
            if "fleet.ops.web_server" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def is_whole(up: Up) -> bool:
    """Whether every program runs once."""
    web = web_processes(up)
    pids = {process.pid for process in web}
    is_ready = up.child("fleet.ops.fork_server: ready") is not None
    return (
        is_ready
        and len(web) == 3
        and sum(p.ppid() in pids for p in web) == 2
        and len(up.children) == 9
    )


def find(up: Up, name: str) -> psutil.Process:
    if word := PROGRAMS[name]:
        process = up.child(word)
        if process is None:
            raise LookupError(f"{name} does not run")
        return process
    web = web_processes(up)
    pids = {process.pid for process in web}
    is_server = name == "web server"
    return next(process for process in web if (process.ppid() in pids) == is_server)
