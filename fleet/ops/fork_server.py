"""A process that loads everything once, and forks the programs of `make up`.

A program that is forked shares what is loaded: a start loads once for all of them, and one that
was killed is back without loading anything. Linux only; elsewhere each program loads by itself.
"""

import asyncio
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import django
from django.urls import get_resolver
from setproctitle import setproctitle

from fleet.ops.child_process import signal_on_parent_exit
from fleet.ops.liveness import CHANNEL, PROOF_EVERY_S, START_S, Pulse

KIND = "fork-server"
IS_SUPPORTED = sys.platform == "linux" and hasattr(os, "pidfd_open")
# What the programs of a kind import, the largest part of their start. Workers first: data are live
# by the time that pages are.
FIRST = "worker"
LOADED: Mapping[str, tuple[str, ...]] = {
    "worker": (
        "fleet.celery",
        "celery.bin.celery",
        "celery.apps.worker",
        "celery.concurrency.solo",
        "celery.worker.consumer",
        "fleet.tasks",
        "telemetry.tasks",
    ),
    "beat": ("celery.apps.beat",),
    "web": (
        "fleet.asgi",
        "fleet.ops.web_server",
        "fleet.api.connections",
        "uvicorn.lifespan.on",
        "uvicorn.loops.auto",
        "uvicorn.protocols.http.auto",
        "uvicorn.protocols.websockets.auto",
    ),
    "sender": ("fleet.management.commands.send_notifications",),
}
MESSAGE_BYTES = 16_384
MAX_FDS = 8
# Numbers that no descriptor of a program has: `make up` opens few files.
FREE_FROM = 200


async def fork(
    channel: socket.socket,
    command: tuple[str, ...],
    *,
    kind: str,
    env: dict[str, str],
    fds: Mapping[int, int],
) -> int:
    """Ask the server at the other end of ``channel`` for a program; return its process number.

    ``fds`` maps the program's descriptors to ours. The program becomes a child of this process.
    Raises ConnectionError if the server ends before it has forked.
    """
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)  # noqa: FBT003
        with theirs:
            request = {
                "command": [*command],
                "kind": kind,
                "env": dict(env),
                "fds": [*fds],
                "parent": os.getpid(),
            }
            message = json.dumps(request).encode()
            socket.send_fds(channel, [message], [theirs.fileno(), *fds.values()])
        # Without an answer the program ends by itself: no unknown process runs.
        number = await loop.sock_recv(ours, 32)
        if not number:
            raise ConnectionError("The fork server has ended.")
        ours.send(b"\n")
    return int(number)


class Forked:
    """A program that was forked for this process, as `asyncio.subprocess.Process` shows one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._handle = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._handle, self._collect)

    def _collect(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        return self.returncode or 0

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def load(kind: str) -> None:
    """Import what a kind of program needs, and open nothing: a connection cannot be shared."""
    for name in LOADED.get(kind, ()):
        importlib.import_module(name)
    if kind == "web":
        # Addresses import every view.
        _ = get_resolver().reverse_dict


def run(command: Sequence[str]) -> None:
    """Run a command of Python in this process: ``-m`` with a module, or a file."""
    _, first, *rest = command
    if first != "-m":
        sys.argv[:] = [first, *rest]
        runpy.run_path(first, run_name="__main__")
        return
    module, *arguments = rest
    sys.argv[:] = [module, *arguments]
    # It is loaded already, and runs once more under the name `__main__`: as with `python -m`.
    warnings.filterwarnings("ignore", message=f".*{module}.* found in sys.modules")
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def serve(channel: socket.socket) -> Sequence[str]:
    """Fork what the supervisor asks for; in a forked process, return the command to run."""
    pulse = Pulse(KIND)
    # What is loaded is shared by all programs, and is never collected.
    gc.disable()
    # What no program needed yet is loaded while there are no requests.
    waiting = [*LOADED]
    while True:
        pulse.beat()
        if not select.select([channel], [], [], PROOF_EVERY_S)[0]:
            if waiting:
                pulse.beat(limit_s=START_S)
                load(waiting.pop())
                if not waiting:
                    setproctitle(f"{Path(sys.executable).name} -m fleet.ops.fork_server: ready")
            continue
        message, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, MAX_FDS)
        request = json.loads(message)
        pulse.beat(limit_s=START_S)
        load(request["kind"])
        gc.freeze()
        between = os.fork()
        # The process between them ends: its child becomes one of the supervisor's, which adopts
        # orphans, and does not end with this process.
        if between == 0:
            if os.fork():
                os._exit(0)
            # Objects that were collected later would close numbers that are the program's then.
            channel.close()
            del pulse
            become(request, fds)
            return list(request["command"])
        os.waitpid(between, 0)
        for number in fds:
            os.close(number)


def become(request: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Take over descriptors, environment and parent; exit if the supervisor does not wait."""
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, FREE_FROM) for number in fds]
    os.closerange(3, FREE_FROM)
    gate, *ours = moved
    for number, target in zip(ours, request["fds"], strict=True):
        os.dup2(number, target)
        os.close(number)
    os.environ.pop(CHANNEL, None)
    os.environ.update(request["env"])
    python, *rest = request["command"]
    setproctitle(" ".join([Path(python).name, *rest]))
    os.setsid()
    while os.getppid() != request["parent"]:
        # Until the process between has ended.
        time.sleep(0.001)
    signal_on_parent_exit(request["parent"], signal.SIGTERM)
    os.write(gate, str(os.getpid()).encode())
    if not os.read(gate, 1):
        sys.exit("The supervisor does not wait for this program any more.")
    os.close(gate)
    gc.enable()


def main() -> None:
    django.setup()
    load(FIRST)
    run(serve(socket.socket(fileno=os.dup(int(os.environ[CHANNEL])))))


if __name__ == "__main__":
    main()
