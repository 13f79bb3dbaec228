"""Start trnwatch's programs from a process that has loaded the packages they import.

These take most of a start. Nothing of trnwatch is loaded before a program begins, and no setting
is read: its modules, environment and folder are its own.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from setproctitle import setproctitle

ROOT = Path(__file__).resolve().parent.parent
# What most programs import; each imports its other packages itself.
LOADED = (
    "PIL.Image",
    "asyncio",
    "cryptography.fernet",
    "django.core.mail",
    "django.core.management",
    "django.db.models",
    "django.forms",
    "django.http",
    "django.template",
    "django.test",
    "django.urls",
    "markdown_it",
    "multiprocessing.connection",
    "msgspec",
    "numpy",
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
    "prometheus_client",
    "psutil",
    "pydantic",
    "re2",
    "redis.asyncio",
    "sqlite3",
    "uvicorn",
    "yaml",
    "zstandard",
)
MESSAGE_BYTES = 200_000
# A descriptor that no program has: this process opens few files.
FREE_FROM = 256


class Program:
    """A program that was started, as `subprocess.Popen` shows one."""

    def __init__(self, report: socket.socket) -> None:
        self._report = report
        self.returncode: int | None = None
        self.pid = self._read()

    def _read(self) -> int:
        answer = self._report.recv(4)
        if not answer:
            msg = "The process that starts programs has ended."
            raise ConnectionError(msg)
        return int.from_bytes(answer, signed=True)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = self._read()
            self._report.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def starter() -> socket.socket:
    """Return a socket to this test process's own starter; it ends when the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    stdout: IO[Any],
    stderr: IO[Any],
    cwd: Path = ROOT,
) -> Program:
    """Start a command of Python: a file, ``-m`` with a module, or ``-c`` with a text."""
    ours, theirs = socket.socketpair()
    with theirs:
        request = json.dumps({"command": [*command], "env": {**env}, "cwd": str(cwd)}).encode()
        assert len(request) < MESSAGE_BYTES
        fds = [theirs.fileno(), stdout.fileno(), stderr.fileno()]
        socket.send_fds(starter(), [request], fds)
    return Program(ours)


def run(
    command: Sequence[str], *, env: Mapping[str, str], timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; gives what it printed, as `subprocess.run` does."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        program = start(command, env=env, stdout=out, stderr=err)
        try:
            code = program.wait(timeout)
        finally:
            program.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([*command], code, out.read(), err.read())


def serve(channel: socket.socket) -> list[str]:
    """Fork what is asked for until the channel ends; in a forked process, return its command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wakes = socket.socketpair()
    woken.settimeout(0)
    wakes.settimeout(0)
    signal.set_wakeup_fd(wakes.fileno())
    reports: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([channel, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            for pid, report in [*reports.items()]:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    # Who does not wait for it any more has closed the other end.
                    with reports.pop(pid), suppress(OSError):
                        report.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, signed=True))
        if channel in ready:
            message, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 3)
            if not message:
                sys.exit()
            pid = os.fork()
            if not pid:
                for each in (channel, woken, wakes, *reports.values()):
                    each.detach()
                return become(json.loads(message), *fds[1:])
            for number in fds[1:]:
                os.close(number)
            reports[pid] = socket.socket(fileno=fds[0])
            reports[pid].sendall(pid.to_bytes(4, signed=True))


def become(request: Mapping[str, Any], stdout: int, stderr: int) -> list[str]:
    """Take over descriptors, signals, folder and environment of a program."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(3, FREE_FROM)
    os.chdir(request["cwd"])
    command: list[str] = request["command"]
    # It finds its place by the environment that this process began with.
    setproctitle(" ".join([Path(sys.executable).name, *command]))
    os.environ.clear()
    os.environ.update(request["env"])
    gc.enable()
    return command


def main() -> None:
    for name in LOADED:
        importlib.import_module(name)
    ours = [name for name in sys.modules if name.partition(".")[0] in {"fleet", "telemetry"}]
    assert ours == [], ours
    # What is loaded is shared by all programs, and is never collected.
    gc.disable()
    gc.freeze()
    first, *rest = serve(socket.socket(fileno=int(sys.argv[1])))
    if first == "-m":
        first, *rest = rest
        sys.argv[:] = [first, *rest]
        runpy.run_module(first, run_name="__main__", alter_sys=True)
    elif first == "-c":
        text, *rest = rest
        sys.argv[:] = [first, *rest]
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv[:] = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
