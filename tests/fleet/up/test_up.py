"""`manage.py up` as a whole: it starts, survives what is killed, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import psutil
import pytest

from telemetry.store.hot import HotStore, StoreUnavailable, open_store
from tests.parts import free_port

ROOT = Path(__file__).resolve().parents[3]
OURS = ("TRNWATCH_", "REDIS_URL", "DATABASE_URL", "PORT", "BIND")


ODD = "a place, 100% odd # really?"


def environment(folder: Path, **env: str) -> dict[str, str]:
    """Return the environment of an installation of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return clean | {"TRNWATCH_DATA_DIR": str(folder), "TRNWATCH_DEMO": "0"} | env


def manage(folder: Path, *words: str, **env: str) -> tuple[int, str]:
    """Run a command of manage.py to its end; gives its exit code and what it printed."""
    command = [sys.executable, "manage.py", *words]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(folder, **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    return done.returncode, done.stdout


def wait_for(condition: Callable[[], object], *, within_s: float = 20) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@dataclass
class Up:
    """An `up` that runs, and its installation."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, folder: Path, port: int) -> Self:
        """Start it, and wait until it greets."""
        console = folder.with_name("console")
        with console.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "manage.py", "up"],
                cwd=ROOT,
                env=environment(folder, PORT=str(port)),
                stdout=file,
                stderr=file,
            )
        wait_for(lambda: "Ctrl-C stops it" in console.read_text(), within_s=60)
        return cls(folder, port, process)

    @property
    def said(self) -> str:
        return self.folder.with_name("console").read_text()

    @property
    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, word: str) -> psutil.Process | None:
        """Find a program by a word of its command."""
        for child in self.children:
            try:
                if any(word in part for part in child.cmdline()):
                    return child
            except psutil.Error:
                continue
        return None

    def kill(self, word: str) -> None:
        """Kill a program outright, and wait until another has taken its place."""
        killed = self.child(word)
        assert killed is not None
        killed.kill()
        wait_for(lambda: self.pid(word) not in {None, killed.pid}, within_s=5)

    def pid(self, word: str) -> int | None:
        """Return the number of a program, if it runs."""
        child = self.child(word)
        return child.pid if child else None

    def answers(self, path: str = "/healthz") -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as page:
            status: int = page.status
        return status

    def store(self) -> HotStore:
        return open_store((self.folder / "redis" / "url").read_text())

    def stop(self) -> int:
        """Press Ctrl-C; gives the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ODD


@contextmanager
def running(folder: Path) -> Iterator[Up]:
    """Run an `up` for as long as the block lasts."""
    one = Up.start(folder, free_port())
    try:
        yield one
    finally:
        one.process.terminate()
        one.process.wait(timeout=20)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("up") / ODD) as one:
        yield one


@pytest.fixture
def up_to_end(folder: Path) -> Iterator[Up]:
    with running(folder) as one:
        yield one


def test_ticks_go_on_whatever_is_killed_and_none_is_lost_or_doubled(up: Up) -> None:
    assert manage(up.folder, "prepare_demo", "--hours", "0.05")[0] == 0
    store = up.store()
    wait_for(store.newest)
    shard, first = next(iter(store.newest().items()))

    for word in ("worker-1@", "uvicorn", "redis-server", "worker-2@", "beat"):
        up.kill(word)
        seen = time.time()
        wait_for(partial(is_past, store, shard, seen + 1))
        assert up.answers() == 200

    last = newest(store, shard)
    span = store.window(shard, ["vcpu_usage_ratio"], start=first, end=last)
    present = np.isfinite(span.values["vcpu_usage_ratio"]).any(axis=(1, 2))
    assert present.all()
    numbers = store.steps(shard.partition("/")[0], since_s=first).step
    assert (np.diff(numbers) == 1).all()


def is_past(store: HotStore, shard: str, moment_s: float) -> bool:
    """Whether a shard has been ticked since."""
    return newest(store, shard) >= moment_s


def newest(store: HotStore, shard: str) -> int:
    """Return the newest tick of a shard; 0 while the store is away."""
    try:
        return store.newest().get(shard, 0)
    except StoreUnavailable:
        return 0


def test_ctrl_c_stops_everything_within_ten_seconds(up_to_end: Up) -> None:
    children = up_to_end.children
    assert len(children) == 5

    began_s = time.monotonic()
    code = up_to_end.stop()

    assert time.monotonic() - began_s < 10
    assert code == 0
    assert up_to_end.said.endswith("Stopping.\n")
    assert [child for child in children if child.is_running()] == []


def test_a_second_one_says_where_the_first_is(up: Up) -> None:
    code, said = manage(up.folder, "up")

    assert code == 2
    assert said == (
        f"CommandError: trnwatch is already running here, at http://127.0.0.1:{up.port}.\n"
    )


def test_it_copes_with_what_a_killed_one_left(up_to_end: Up) -> None:
    children = up_to_end.children
    up_to_end.process.kill()
    up_to_end.process.wait()

    again = Up.start(up_to_end.folder, up_to_end.port)
    assert again.answers() == 200
    assert [child for child in children if child.is_running()] == []
    assert again.stop() == 0


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("PORT", "web", "PORT must be a number from 1 to 65535, not 'web'."),
        ("BIND", "203.0.113.7", "BIND=203.0.113.7 is no address of this machine"),
        ("REDIS_URL", "redis://127.0.0.1:1/0", "Redis does not answer; see REDIS_URL."),
        ("DATABASE_URL", "postgres://127.0.0.1:1/x", "The database cannot be used; see DATABASE"),
    ],
)
def test_a_bad_setting_is_named(folder: Path, setting: str, value: str, said: str) -> None:
    code, words = manage(folder, "up", **{"PORT": str(free_port()), setting: value})

    assert code == 2
    assert words.splitlines()[-1].startswith(f"CommandError: {said}")
