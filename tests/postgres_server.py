"""A PostgreSQL server for one test, which may kill and restart it."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

from tests.helpers import postgres_program


@dataclass
class PostgresServer:
    """A server in a folder, reached by a socket in it; with an address by TCP, too.

    ``within`` is a command that runs another one elsewhere.
    """

    folder: Path
    who: dict[str, Any]
    address: str = ""
    within: tuple[str, ...] = ()
    server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgres://trnwatch@{self.address or quote(str(self.folder), safe='')}/postgres"

    def start(self) -> None:
        """Start it, after a kill too, and wait until it answers."""
        command = [*self.within, postgres_program("postgres"), "-D", str(self.folder / "data")]
        command += ["-k", str(self.folder), "-c", f"listen_addresses={self.address}"]
        with (self.folder / "log").open("ab") as log:
            self.server = subprocess.Popen(
                command, stderr=log, stdout=log, cwd="/", start_new_session=True, **self.who
            )
        ready = [postgres_program("pg_isready"), "-q", "-h", str(self.folder)]
        deadline = time.monotonic() + 30
        while subprocess.run(ready, check=False).returncode:
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it with all its processes at once, as a power cut would."""
        if self.server is not None:
            os.killpg(self.server.pid, signal.SIGKILL)
            self.server.wait()
            self.server = None
            # Its shared memory must be let go of before it can start again.
            (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Stop all its processes (SIGSTOP) for as long as the block lasts."""
        assert self.server is not None
        first = psutil.Process(self.server.pid)
        # The first one starts the others.
        first.suspend()
        all_ = [first, *first.children(recursive=True)]
        try:
            for each in all_:
                each.suspend()
            yield
        finally:
            for each in all_:
                with suppress(psutil.NoSuchProcess):
                    each.resume()


@contextmanager
def start_postgres(address: str = "", within: tuple[str, ...] = ()) -> Iterator[PostgresServer]:
    """Make a server, run it, and leave nothing behind."""
    folder = Path(tempfile.mkdtemp(prefix="trnwatch-pg-", dir="/tmp"))
    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        who = {"user": "postgres", "group": "postgres", "extra_groups": []}
        shutil.chown(folder, "postgres", "postgres")
    initdb = [postgres_program("initdb"), "--auth=trust", "--username=trnwatch", "--no-sync"]
    command = [*initdb, "--encoding=UTF8", str(folder / "data")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", **who)
    with (folder / "data" / "pg_hba.conf").open("a") as rules:
        rules.write("host all all all trust\n")
    one = PostgresServer(folder, who if not within else {}, address, within)
    try:
        one.start()
        yield one
    finally:
        one.kill()
        shutil.rmtree(folder)
