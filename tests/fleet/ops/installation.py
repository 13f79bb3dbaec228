"""A running installation for tests: `manage.py up` in its own folder."""

import atexit
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import psutil

from telemetry.store.hot import HotStore, open_store
from tests import warm
from tests.helpers import free_port

ROOT = Path(__file__).resolve().parents[3]
OURS = ("TRNWATCH_", "REDIS_URL", "DATABASE_URL", "PORT", "BIND")


ODD = "a place, 100% odd # really?"
# The longest a start may take, all programs together; it takes 4 s on an idle machine.
START_S = 60
# A killed program must be back, and at work, in less than this, or than the start took here.
RECOVERY_S = 10
# Redis, the fork server, four workers, beat, the sender, and the web parent with two servers.
N_PROCESSES = 11


def environment(folder: Path, **env: str) -> dict[str, str]:
    """Return the environment of its own installation."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return clean | {"TRNWATCH_DATA_DIR": str(folder), "TRNWATCH_DEMO": "0"} | env


def manage(folder: Path, *arguments: str, **env: str) -> tuple[int, str]:
    """Run a command of manage.py to its end; gives its exit code and what it printed."""
    done = warm.run(["manage.py", *arguments], env=environment(folder, **env), timeout=90)
    return done.returncode, done.stdout + done.stderr


def run_text(text: str, *arguments: str, env: dict[str, str]) -> str:
    """Run a few lines of Python in a process of their own; gives what they printed."""
    done = warm.run(["-c", text, *arguments], env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


PREPARE = """
import django
django.setup()
from django.conf import settings
from fleet.ops import services, static_files
services.migrate_if_needed()
static_files.collect_if_needed(settings.STATIC_ROOT)
"""


ONE_RUN = """
import sys
import django
django.setup()
from datetime import UTC, datetime, timedelta
from fleet.simulation.demo import FLEET, create_run
from fleet.simulation.demo_history import simulate_history
from fleet.simulation.runs import publish_plans
from telemetry.store.hot import hot_store
now = datetime.now(UTC).replace(microsecond=0)
demo = next(demo for demo in FLEET if demo.spec.name == sys.argv[1])
simulate_history(hot_store(), create_run(demo, started_at=now - timedelta(minutes=3)), [], now=now)
publish_plans(hot_store(), now=now)
"""


def simulate(folder: Path, run: str) -> None:
    """Let an installation that is up simulate one run of the demo: all take ten times the CPU."""
    run_text(ONE_RUN, run, env=environment(folder, DJANGO_SETTINGS_MODULE="fleet.settings"))


@cache
def prepared() -> Path:
    """Return a data folder with an empty database and static files.

    The first process of a test run makes it for all of them; a process on its own, for itself.
    """
    place = os.environ.get("TRNWATCH_TEST_SHARED")
    if place is None:
        place = tempfile.mkdtemp(prefix="trnwatch-prepared-")
        atexit.register(shutil.rmtree, place)
    folder, half_made = Path(place, "prepared"), Path(place, "half-made")
    with Path(place, "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            env = environment(half_made, DJANGO_SETTINGS_MODULE="fleet.settings")
            run_text(PREPARE, env=env)
            (half_made / "secret_key").unlink()
            half_made.rename(folder)
    return folder


def prepare(folder: Path) -> None:
    """Fill a data folder as the first start does, in less time."""
    shutil.copytree(prepared(), folder, dirs_exist_ok=True)


def wait_for(condition: Callable[[], object], *, within_s: float) -> None:
    """Wait for a condition; fail after ``within_s``."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@dataclass
class Up:
    """An `up` that runs, and its installation."""

    folder: Path
    port: int
    process: warm.Program | subprocess.Popen[bytes]
    took_s: float

    @classmethod
    def start(cls, folder: Path, port: int, within_s: float = START_S, /, **env: str) -> Self:
        """Start it, and wait until it greets."""
        console, began_s = folder.with_name("console"), time.monotonic()
        with console.open("wb") as file:
            process = warm.start(
                ["manage.py", "up"],
                env=environment(folder, PORT=str(port), **env),
                stdout=file,
                stderr=file,
            )
        wait_for(lambda: "Ctrl-C stops it" in console.read_text(), within_s=within_s)
        return cls(folder, port, process, took_s=time.monotonic() - began_s)

    @property
    def recovery_s(self) -> float:
        """How long one program may take to be back: a busy machine was as slow at the start."""
        return max(RECOVERY_S, self.took_s)

    @property
    def shown(self) -> str:
        return self.folder.with_name("console").read_text()

    @property
    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, argument: str) -> psutil.Process | None:
        """Find a program by a word of its command: "beat" is none of --without-heartbeat."""
        word = re.compile(rf"(?<!\w){re.escape(argument)}")
        for child in self.children:
            try:
                if any(word.search(part) for part in child.cmdline()):
                    return child
            except psutil.Error:
                continue
        return None

    @property
    def is_whole(self) -> bool:
        """Whether all processes run, and no more are being forked."""
        ready = self.child("fleet.ops.fork_server: ready") is not None
        return ready and len(self.children) == N_PROCESSES

    def kill(self, argument: str) -> None:
        """Kill a program outright, and wait until another has taken its place."""
        # The greeting comes before the last program is forked.
        wait_for(lambda: self.child(argument) is not None, within_s=START_S)
        killed = self.child(argument)
        assert killed is not None
        killed.kill()
        wait_for(lambda: self.pid(argument) not in {None, killed.pid}, within_s=5)

    def pid(self, argument: str) -> int | None:
        """Return the number of a program, if it runs."""
        child = self.child(argument)
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


@contextmanager
def running(folder: Path, **env: str) -> Iterator[Up]:
    """Run an `up` for as long as the block lasts; its database and static files are made."""
    if not folder.exists():
        prepare(folder)
    one = Up.start(folder, free_port(), **env)
    try:
        yield one
    finally:
        one.process.terminate()
        one.process.wait(timeout=20)
