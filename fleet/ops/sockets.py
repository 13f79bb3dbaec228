"""The socket of the web server, and the lock that allows one `up` per data folder."""

import errno
import fcntl
import resource
import socket
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import IO, Self

import psutil

HIGHEST_PORT = 65535
N_PORTS_TRIED = 50
BACKLOG = 2048
N_FILES = 65_536


class SocketError(ValueError):
    """The address cannot be used; the message names the setting to change."""


def port_from(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= HIGHEST_PORT:
        raise SocketError(f"PORT must be a number from 1 to {HIGHEST_PORT}, not {text!r}.")
    return int(text)


def listen(bind: str, port: int) -> socket.socket:
    """Listen on one address; raises OSError where that fails."""
    family, _, _, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family, backlog=BACKLOG)


def is_free(bind: str, port: int) -> bool:
    try:
        listen(bind, port).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    with closing(listen("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def open_listener(bind: str, port: int, *, insist: bool) -> socket.socket:
    """Listen on ``port``, or on the next free port unless ``insist``."""
    last = port if insist else min(port + N_PORTS_TRIED, HIGHEST_PORT)
    for candidate in range(port, last + 1):
        try:
            return listen(bind, candidate)
        except PermissionError as error:
            msg = f"PORT={candidate} is for root only; choose one above 1023."
            raise SocketError(msg) from error
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                msg = f"BIND={bind} is not an address of this machine: {error.strerror}."
                raise SocketError(msg) from error
    if insist:
        msg = f"PORT={port} is in use by another program; choose another."
    else:
        msg = f"Ports {port} to {last} are all in use; set PORT to a free one."
    raise SocketError(msg)


def raise_file_limit() -> None:
    """Raise the limit of open files for this process and its children, if the system allows.

    Each connection takes one, and the usual limit is 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = N_FILES if hard == resource.RLIM_INFINITY else min(N_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def address(bind: str, port: int) -> str:
    """Return the URL for a browser on this machine."""
    if bind in {"", "0.0.0.0", "::"}:  # noqa: S104
        bind = "127.0.0.1"
    return f"http://[{bind}]:{port}" if ":" in bind else f"http://{bind}:{port}"


def host_names(bind: str) -> list[str]:
    """Return the host names that browsers may use for a server on ``bind``."""
    names = ["127.0.0.1", "localhost", "[::1]"]
    if bind not in {"127.0.0.1", "::1", "localhost"}:
        cards = psutil.net_if_addrs().values()
        wanted = {socket.AF_INET, socket.AF_INET6}
        addresses = [each.address for card in cards for each in card if each.family in wanted]
        names += [socket.gethostname(), socket.getfqdn(), bind]
        names += [f"[{each}]" if ":" in each else each for each in addresses]
    return list(dict.fromkeys(names))


class AlreadyRunningError(RuntimeError):
    """Another `up` runs on this folder; the message is its address."""


class Lock(AbstractContextManager["Lock"]):
    """The lock of a data folder; the kernel releases it however the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        """Take the lock; raises AlreadyRunningError with the address that its holder wrote."""
        self._file = self._path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "an address not chosen yet"
            self._file.close()
            raise AlreadyRunningError(holder) from error
        self.note("")
        return self

    def note(self, text: str) -> None:
        """Write the address that a second `up` will name."""
        if self._file is not None:
            self._file.truncate(0)
            self._file.write(text)
            self._file.flush()

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
