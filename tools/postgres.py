"""A temporary PostgreSQL in a temporary folder, reached by a socket."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

START_WITHIN_S = 30.0
# Nothing here must survive a power cut.
NOT_DURABLE = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "listen_addresses=")


def postgres_program(name: str) -> str | None:
    """Return the path of one of PostgreSQL's programs; Debian keeps them off the path."""
    newest_first = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return shutil.which(name) or next(map(str, newest_first), None)


def other_user() -> dict[str, Any]:
    """Return who is to run PostgreSQL, which refuses to be run by root."""
    if os.geteuid():
        return {}
    return {"user": "postgres", "group": "postgres", "extra_groups": []}


@contextmanager
def temporary_postgres() -> Iterator[str]:
    """Run a PostgreSQL of our own; gives its DATABASE_URL."""
    initdb, postgres = postgres_program("initdb"), postgres_program("postgres")
    if initdb is None or postgres is None:
        msg = "PostgreSQL is not installed."
        raise FileNotFoundError(msg)
    # Not below TMPDIR: the path of a socket may have 107 characters, no more.
    folder = Path(tempfile.mkdtemp(prefix="trnwatch-pg-", dir="/tmp"))
    who = other_user()
    if who:
        shutil.chown(folder, who["user"], who["group"])
    data = folder / "data"
    options = ["--auth=trust", "--username=trnwatch", "--encoding=UTF8", "--no-sync"]
    server = None
    try:
        subprocess.run(
            [initdb, *options, str(data)], check=True, stdout=subprocess.DEVNULL, cwd="/", **who
        )
        settings = [argument for setting in NOT_DURABLE for argument in ("-c", setting)]
        command = [postgres, "-D", str(data), "-k", str(folder), *settings]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(command, stderr=log, stdout=log, cwd="/", **who)
        _until_ready(folder, server)
        yield f"postgres://trnwatch@{quote(str(folder), safe='')}/postgres"
    finally:
        if server is not None:
            server.terminate()
            server.wait()
        shutil.rmtree(folder)


def _until_ready(folder: Path, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers; if it ended, say what it wrote."""
    is_ready = postgres_program("pg_isready") or "pg_isready"
    deadline = time.monotonic() + START_WITHIN_S
    while subprocess.run([is_ready, "-q", "-h", str(folder)], check=False).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError((folder / "log").read_text())
        time.sleep(0.1)
