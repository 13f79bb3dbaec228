"""Failures of disk, port and store get a clear message; the rest goes on."""

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from fleet.ops import embedded_redis
from tests import warm
from tests.fleet.ops.installation import (
    ROOT,
    START_S,
    Up,
    environment,
    manage,
    prepare,
    running,
    wait_for,
)
from tests.helpers import free_port
from tests.postgres_server import PostgresServer, start_postgres

MB = 1_000_000
COOKIE = "trnwatch_session=" + "x" * 32
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
CAN_MOUNT = subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0
needs_a_disk = pytest.mark.skipif(not CAN_MOUNT, reason="no user namespaces here")


def on_disk(folder: Path, options: str, *command: str, before: str = "true") -> list[str]:
    """Return a command that runs with a small disk of its own mounted on ``folder``."""
    folder.mkdir(exist_ok=True)
    text = f'mount -t tmpfs -o "$1" none "$0" && {before} && cd "$2" && shift 2 && exec "$@"'
    return [*NAMESPACE, "sh", "-c", text, str(folder), options, str(ROOT), *command]


def up_on_disk(folder: Path, options: str, *, before: str = "true") -> tuple[int, str]:
    """Run `up` on a disk that is too small; return its exit code and output."""
    command = on_disk(folder, options, sys.executable, "manage.py", "up", before=before)
    env = environment(folder, PORT=str(free_port()))
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=90, check=False
    )
    return done.returncode, done.stdout + done.stderr


def asked(port: int, path: str, **headers: str) -> tuple[int, str, Any]:
    """Ask for a page; gives status, text and headers."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as page:
            return page.status, page.read().decode(), page.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


@contextmanager
def up_on(folder: Path, options: str) -> Iterator[tuple[Up, Path]]:
    """Run `up` on a small disk; gives it, and the folder as it sees it."""
    port, console = free_port(), folder.with_name("console")
    command = on_disk(folder, options, sys.executable, "manage.py", "up")
    with console.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment(folder, PORT=str(port)), stdout=file, stderr=file
        )
    try:
        wait_for(lambda: "Ctrl-C stops it" in console.read_text(), within_s=2 * START_S)
        yield Up(folder, port, process, 0.0), Path(f"/proc/{process.pid}/root{folder}")
    finally:
        process.terminate()
        process.wait(timeout=20)


def fill(path: Path, *, leave: int = 0) -> None:
    """Write until the disk is full, or has so many bytes left."""
    with path.open("ab", buffering=0) as file:
        while shutil.disk_usage(path.parent).free > leave > 0:
            file.write(bytes(MB))
        if leave:
            return
        for n_bytes in (MB, 4096, 1):
            try:
                while file.write(bytes(n_bytes)):
                    pass
            except OSError:
                continue


@needs_a_disk
def test_a_full_disk_and_a_long_log_end_no_program_and_are_reported(tmp_path: Path) -> None:
    with up_on(tmp_path / "data", "size=220m") as (up, folder):
        assert asked(up.port, "/readyz")[0] == 200
        wait_for(lambda: up.is_whole, within_s=START_S)
        programs = up.children
        log = folder / "log" / "web.log"
        with log.open("ab") as file:
            file.write(b"a line of a long story\n" * 300_000)
            file.write(b"the end\n")
        fill(folder / "filler", leave=20 * MB)
        wait_for(lambda: "Redis keeps live data in memory" in up.shown, within_s=30)
        fill(folder / "filler")

        status, text, _ = asked(up.port, "/readyz")
        assert status == 503
        disk = json.loads(text)["checks"]["disk"]
        assert not disk["ok"]
        assert "MB left, below the reserve of 100 MB" in disk["why"]
        # It is truncated first, and its end is written again.
        wait_for(
            lambda: log.stat().st_size < 5 * MB and "the end\n" in log.read_text(), within_s=60
        )
        assert asked(up.port, "/healthz")[0] == 200
        assert up.process.poll() is None

        url = (folder / "redis" / "url").read_text()
        with Redis.from_url(url) as client:
            assert client.set("full", 1)
        (folder / "filler").unlink()
        wait_for(lambda: asked(up.port, "/readyz")[0] == 200, within_s=up.recovery_s + 30)
        wait_for(lambda: "Redis writes its file" in up.shown, within_s=30)
        with Redis.from_url(url) as client:
            assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert [each for each in programs if not each.is_running()] == []
        assert "Traceback" not in up.shown


@needs_a_disk
@pytest.mark.parametrize(
    ("options", "before", "shown"),
    [
        ("size=4m", "true", "The disk is full: "),
        ("size=4k", "true", "The disk is full: "),
        ("size=60m", 'mount -o remount,ro "$0"', "Read-only file system"),
    ],
    ids=["nearly full", "full", "read-only"],
)
def test_a_disk_that_cannot_carry_a_start_is_named(
    tmp_path: Path, options: str, before: str, shown: str
) -> None:
    code, arguments = up_on_disk(tmp_path / "data", options, before=before)

    assert code != 0
    assert arguments.splitlines()[-1].startswith("CommandError: ")
    assert shown in arguments
    assert "TRNWATCH_DATA_DIR" in arguments or "start again" in arguments
    assert "Traceback" not in arguments


def damage(path: Path, where: str) -> None:
    """Write over the beginning of a file, or over much of its middle."""
    with path.open("r+b") as file:
        if where == "middle":
            file.seek(8192)
        file.write(os.urandom(path.stat().st_size - 16384 if where == "middle" else 4096))


@pytest.mark.parametrize(
    ("where", "commands"),
    [("beginning", ("up", "restore", "prepare_demo")), ("middle", ("up",))],
)
def test_a_damaged_database_is_named_with_the_way_back(
    tmp_path: Path, where: str, commands: tuple[str, ...]
) -> None:
    folder = tmp_path / "data"
    prepare(folder)
    backup = str(tmp_path / "good.backup")
    assert manage(folder, "backup", backup)[0] == 0
    database = folder / "trnwatch.sqlite3"
    damage(database, where)

    for command in commands:
        arguments = (backup,) if command == "restore" else ()
        code, shown = manage(folder, command, *arguments, PORT=str(free_port()))
        assert code != 0
        assert "Traceback" not in shown
        assert f"The database {database} is damaged" in shown
        assert "manage.py restore FILE --replace" in shown

    assert manage(folder, "restore", backup, "--replace")[0] == 0
    with closing(sqlite3.connect(database)) as restored:
        assert restored.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_damaged_append_only_file_is_set_aside_and_the_start_continues(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    prepare(folder)
    address = embedded_redis.choose_address(folder / "redis")
    redis = subprocess.Popen(embedded_redis.program(folder / "redis", address).command)
    try:
        asyncio.run(embedded_redis.wait_until_ready(address.url))
        with Redis.from_url(address.url) as client:
            for number in range(500):
                client.set(f"key-{number}", "v" * 50)
            client.bgrewriteaof()
            wait_for(
                lambda: not client.info("persistence")["aof_rewrite_in_progress"], within_s=20
            )
    finally:
        redis.terminate()
        redis.wait(timeout=20)
    [file] = [path for path in (folder / "redis").rglob("appendonly*") if path.is_file()][:1]
    damaged = os.urandom(4000)
    file.write_bytes(damaged)

    with running(folder) as up:
        assert "append-only file was damaged. It is renamed to" in up.shown
        assert up.answers() == 200
        [aside] = [p for p in (folder / "redis").rglob("*damaged-*") if p.is_file()]
        assert aside.read_bytes() == damaged
        assert f"It is renamed to {aside}" in (folder / "log" / "redis.log").read_text()


@contextmanager
def web_on(folder: Path, database: PostgresServer, redis_url: str) -> Iterator[tuple[int, Path]]:
    """Serve pages from a database; gives the port and the log."""
    port, log = free_port(), folder / "web.log"
    env = {"DATABASE_URL": database.url, "REDIS_URL": redis_url, "TRNWATCH_DEMO": "1"}
    assert manage(folder, "migrate", "--verbosity", "0", "--skip-checks", **env)[0] == 0
    command = ["-m", "uvicorn", "fleet.asgi:application", "--port", str(port)]
    command += ["--log-level", "warning"]
    with log.open("wb") as file:
        web = warm.start(command, env=environment(folder, **env), stdout=file, stderr=file)
        try:
            wait_for(lambda: answers(port), within_s=START_S)
            yield port, log
        finally:
            web.terminate()
            web.wait()


@pytest.mark.postgresql
def test_pages_say_that_the_database_is_away_and_come_back(tmp_path: Path, redis_url: str) -> None:
    with start_postgres() as database, web_on(tmp_path, database, redis_url) as (port, log):
        assert asked(port, "/")[0] == 200
        database.kill()
        _expect_unavailable(port)
        assert asked(port, "/healthz", Cookie=COOKIE)[0] == 200
        assert json.loads(asked(port, "/readyz")[1])["checks"]["database"]["ok"] is False
        assert "Traceback" not in log.read_text()
        assert "see DATABASE_URL. It says:" in log.read_text()

        database.start()
        wait_for(lambda: asked(port, "/")[0] == 200, within_s=START_S)
        assert asked(port, "/", Cookie=COOKIE)[0] == 200


@pytest.mark.postgresql
def test_readyz_answers_while_the_database_hangs(tmp_path: Path, redis_url: str) -> None:
    with start_postgres() as database, web_on(tmp_path, database, redis_url) as (port, _):
        assert asked(port, "/readyz")[0] == 200
        with database.hung():
            # Who waits for the database itself gets no answer before `hung` ends.
            for _again in range(3):
                status, text, _ = asked(port, "/readyz")
                checks = json.loads(text)["checks"]
                assert status == 503
                assert checks["database"]["why"].startswith("no answer for ")
                assert checks["redis"]["ok"]
            assert asked(port, "/healthz")[0] == 200
        wait_for(lambda: asked(port, "/readyz")[0] == 200, within_s=START_S)


def answers(port: int) -> bool:
    """Whether the web server answers."""
    try:
        return asked(port, "/healthz")[0] == 200
    except OSError:
        return False


def _expect_unavailable(port: int) -> None:
    """Check the message for people, scripts and machines on every page."""
    pages = ("/", "/alerts/", "/runs/x/", "/metrics", "/sd/prometheus", "/nowhere/")
    for path in pages:
        # A session is looked up before any view is asked.
        status, text, headers = asked(port, path, Cookie=COOKIE)
        assert (path, status, headers["Retry-After"]) == (path, 503, "5")
        assert "The database is not responding" in text
        is_page = "html" in headers["Content-Type"]
        assert is_page == ('http-equiv="refresh"' in text)
    status, text, _ = asked(port, "/", Accept="application/json")
    assert (status, "database" in json.loads(text)["error"]["message"]) == (503, True)
    for cookie in ({}, {"Cookie": COOKIE}):
        status, text, headers = asked(port, "/api/v1/runs", **cookie)
        assert (status, json.loads(text)["status"]) == (503, 503)
        assert headers["Retry-After"] == "5"
