"""Sender processes for tests that kill them."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from django.conf import settings

from tests import warm

ROOT = Path(__file__).resolve().parents[3]
OURS = ("TRNWATCH_", "REDIS_URL", "DATABASE_URL")
# Everything a hundred times quicker than people need it.
QUICK = {
    "pause": 0.02,
    "lease": 2.5,
    "timeout": 5,
    "first-retry": 0.05,
    "longest-retry": 0.2,
    "chores": 0.2,
    "blind-after": 3600,
}


def database_url(database: dict[str, Any]) -> str:
    """Return the address of the database that tests use."""
    if database["ENGINE"].endswith("sqlite3"):
        return f"sqlite:///{database['NAME']}"
    host, name = quote(database["HOST"], safe=""), database["NAME"]
    return f"postgres://{database['USER']}@{host}/{name}"


def environment(folder: Path, database: str, **env: str) -> dict[str, str]:
    """Return the environment of a sender process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return clean | {
        "TRNWATCH_DATA_DIR": str(folder),
        "DATABASE_URL": database,
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "TRNWATCH_NOTIFY_ALLOW": "127.0.0.0/8",
        "TRNWATCH_BASE_URL": "https://trnwatch.example",
        # What seals receivers: the same for all processes of one installation.
        "TRNWATCH_SECRET_KEY": settings.SECRET_KEY,
        **env,
    }


@dataclass
class SenderProcess:
    """A sender that runs."""

    process: warm.Program

    @classmethod
    def start(cls, env: dict[str, str], log: Path, **times: float) -> Self:
        """Start one, its times in seconds."""
        options = [f"--{name}-s={value}" for name, value in (QUICK | times).items()]
        command = ["manage.py", "send_notifications", *options]
        with log.open("ab") as file:
            return cls(warm.start(command, env=env, stdout=file, stderr=file))

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Stop all its threads; one that the signal has not reached yet still runs."""
        self.process.send_signal(signal.SIGSTOP)
        threads = [*Path(f"/proc/{self.process.pid}/task").glob("*/stat")]
        until(lambda: all(") T " in each.read_text() for each in threads))

    def stop(self) -> int:
        """Ask it to end; gives its exit code."""
        self.process.terminate()
        return self.process.wait(timeout=20)


@dataclass
class Senders:
    """Starts senders on one database; processes left at the end are killed."""

    env: dict[str, str]
    folder: Path
    started: list[SenderProcess]

    def start(self, *, env: dict[str, str] | None = None, **times: float) -> SenderProcess:
        log = self.folder / "sender.log"
        one = SenderProcess.start(self.env | (env or {}), log, **times)
        self.started.append(one)
        return one

    @property
    def shown(self) -> str:
        return (self.folder / "sender.log").read_text()


@contextmanager
def senders(folder: Path, database: str, **env: str) -> Iterator[Senders]:
    """Give senders on a database, for as long as the block lasts."""
    home = Senders(environment(folder, database, **env), folder, [])
    try:
        yield home
    finally:
        for one in home.started:
            one.kill()


def until(condition: Callable[[], object], *, within_s: float = 90) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
