"""The supervised Redis: password, known address, any folder."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError

from fleet.ops.embedded_redis import (
    RedisAddress,
    choose_address,
    program,
    repair,
    wait_until_ready,
)
from fleet.ops.sockets import listen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / 'a "folder", 100% odd # here?'


@pytest.fixture
def server(folder: Path) -> Iterator[tuple[RedisAddress, subprocess.Popen[bytes]]]:
    place = choose_address(folder)
    process = subprocess.Popen(program(folder, place).command, stdout=subprocess.DEVNULL)
    try:
        asyncio.run(wait_until_ready(place.url))
        yield place, process
    finally:
        process.kill()
        process.wait()


def test_no_one_gets_in_without_the_password(
    server: tuple[RedisAddress, subprocess.Popen[bytes]],
) -> None:
    place, _ = server
    with Redis(port=place.port) as anonymous, pytest.raises(AuthenticationError):
        anonymous.ping()


def test_it_neither_evicts_nor_grows_without_bound(
    server: tuple[RedisAddress, subprocess.Popen[bytes]],
) -> None:
    with Redis.from_url(server[0].url) as client:
        config = client.config_get("maxmemory*")

    assert config["maxmemory-policy"] == "noeviction"
    assert int(config["maxmemory"]) > 0


def test_what_was_written_just_before_a_kill_is_restored(
    server: tuple[RedisAddress, subprocess.Popen[bytes]], folder: Path
) -> None:
    place, process = server
    with Redis.from_url(place.url) as client:
        client.set("tick", 7)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    again = subprocess.Popen(program(folder, place).command, stdout=subprocess.DEVNULL)
    try:
        asyncio.run(wait_until_ready(place.url))
        with Redis.from_url(place.url) as client:
            assert client.get("tick") == b"7"
    finally:
        again.kill()
        again.wait()


def test_the_password_is_for_the_owner_alone(
    server: tuple[RedisAddress, subprocess.Popen[bytes]], folder: Path
) -> None:
    for name in ("url", "redis.conf"):
        assert (folder / name).stat().st_mode & 0o077 == 0


def test_port_and_password_outlive_a_restart(folder: Path) -> None:
    assert choose_address(folder) == choose_address(folder)


def test_a_port_that_is_used_by_now_is_dropped(folder: Path) -> None:
    before = choose_address(folder)
    with listen("127.0.0.1", before.port):
        after = choose_address(folder)

    assert after.port != before.port
    assert after.password == before.password


LOADING = "Server initialized\nReading RDB preamble from AOF file...\n"
DAMAGED = LOADING + "Bad file format reading the append only file\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (-signal.SIGKILL, LOADING),
        (0, LOADING),
        (-signal.SIGSEGV, LOADING + "Ready to accept connections\n"),
        (1, LOADING + "Can't open the append-only file: Permission denied\n"),
        (1, LOADING + "Out Of Memory allocating 16 bytes!\n"),
        (1, ""),
    ],
)
def test_a_file_that_may_be_whole_is_kept(folder: Path, code: int, message: str) -> None:
    folder.mkdir()
    (folder / "appendonly.aof").touch()

    assert repair(folder, code, message) == ""
    assert [path.name for path in folder.iterdir()] == ["appendonly.aof"]


@pytest.mark.parametrize("name", ["appendonly.aof", "appendonlydir/appendonly.aof.1.incr.aof"])
def test_of_damaged_files_the_latest_is_kept(folder: Path, name: str) -> None:
    top = name.partition("/")[0]
    for number in (1, 2):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"damage {number}")
        (folder / f"{top}.damaged-20260101T00000{number}Z").touch()
        assert f"It is renamed to {folder / top}.damaged-" in repair(folder, 1, DAMAGED)

    [aside] = folder.iterdir()
    [file] = [path for path in (aside, *aside.rglob("*")) if path.is_file()]
    assert file.read_text() == "damage 2"
    assert repair(folder, 1, DAMAGED) == ""
