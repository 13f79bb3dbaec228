"""Where `up` listens, and how it prevents a second instance."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.ops.sockets import (
    AlreadyRunningError,
    Lock,
    SocketError,
    address,
    host_names,
    listen,
    open_listener,
    port_from,
)


@pytest.fixture
def taken() -> socket.socket:
    return listen("127.0.0.1", 0)


def test_a_used_requested_port_is_an_error(taken: socket.socket) -> None:
    port = taken.getsockname()[1]

    with taken, pytest.raises(SocketError, match=f"PORT={port} is in use"):
        open_listener("127.0.0.1", port, insist=True)


def test_a_used_default_port_is_replaced_by_a_free_one(taken: socket.socket) -> None:
    port = taken.getsockname()[1]

    with taken, open_listener("127.0.0.1", port, insist=False) as endpoint:
        assert port < endpoint.getsockname()[1] <= port + 50


@pytest.mark.parametrize("text", ["web", "0", "65536", "-1", "80.5", ""])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SocketError, match="PORT must be a number from 1 to 65535"):
        port_from(text)


@pytest.mark.parametrize("bind", ["203.0.113.7", "no such place"])
def test_an_address_of_another_machine_is_refused(bind: str) -> None:
    with pytest.raises(SocketError, match=f"BIND={bind}"):
        open_listener(bind, 8000, insist=False)


@pytest.mark.parametrize(
    ("bind", "typed"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::1", "http://[::1]:8000"),
    ],
)
def test_the_address_can_be_typed_into_a_browser(bind: str, typed: str) -> None:
    assert address(bind, 8000) == typed


def test_on_loopback_only_loopback_is_answered_to() -> None:
    assert host_names("127.0.0.1") == ["127.0.0.1", "localhost", "[::1]"]


def test_on_every_interface_the_machine_is_answered_to_by_name() -> None:
    assert socket.gethostname() in host_names("0.0.0.0")


def test_a_second_one_reports_where_the_first_is(tmp_path: Path) -> None:
    with Lock(tmp_path / "lock") as lock:
        lock.note("http://127.0.0.1:8000")
        with pytest.raises(AlreadyRunningError, match=r"^http://127\.0\.0\.1:8000$"):
            Lock(tmp_path / "lock").__enter__()


def test_a_released_lock_can_be_acquired(tmp_path: Path) -> None:
    with Lock(tmp_path / "lock"):
        pass
    with Lock(tmp_path / "lock") as lock:
        assert isinstance(lock, Lock)


@pytest.mark.parametrize(("before", "after"), [((64, 512), (512, 512)), ((400, 400), (400, 400))])
def test_as_many_files_as_the_system_allows_may_be_open(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    code = (
        "import resource as r; from fleet.ops.sockets import raise_file_limit;"
        f"r.setrlimit(r.RLIMIT_NOFILE, {before}); raise_file_limit();"
        "print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(after)
