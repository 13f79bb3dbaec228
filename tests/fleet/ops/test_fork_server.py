"""The fork server: programs of `make up` that load nothing of their own."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fleet.ops import fork_server, services
from fleet.ops.liveness import adopt_orphans
from fleet.ops.supervisor import Program, Supervisor
from tests.fleet.ops.installation import ROOT, environment, run_text

pytestmark = pytest.mark.skipif(not fork_server.IS_SUPPORTED, reason="Linux alone has pidfd_open")

# As `fork_server.main`, without what it loads.
BARE = """
import os, socket
from fleet.ops.fork_server import run, serve
run(serve(socket.socket(fileno=os.dup(int(os.environ["TRNWATCH_NOTIFY_FD"])))))
"""
SERVER = Program(fork_server.KIND, (sys.executable, "-c", BARE), kind=fork_server.KIND)
SAYS = """
import os, sys
print(os.getpid(), os.getppid(), os.environ["TRNWATCH_PROGRAM"], *sys.argv[1:], flush=True)
"""
# In a process of its own: an adopter of orphans gets those of other tests too.
SCENARIO = """
import asyncio, sys
from pathlib import Path
from tests.fleet.ops import test_fork_server
asyncio.run(getattr(test_fork_server, sys.argv[1])(Path(sys.argv[2])))
"""


def play(scenario: Callable[[Path], object], folder: Path) -> None:
    run_text(SCENARIO, scenario.__name__, str(folder), env={**os.environ})


def program(folder: Path, text: str, name: str = "one") -> Program:
    """Return a forked program of a few lines of Python."""
    file = folder / f"{name}.py"
    file.write_text(text)
    return Program(name, (sys.executable, str(file), "an argument"), is_forked=True)


async def output(folder: Path, n_lines: int, name: str = "one") -> list[list[str]]:
    log = folder / "log" / f"{name}.log"
    async with asyncio.timeout(120):
        while len(lines := log.read_text().splitlines() if log.exists() else []) < n_lines:
            await asyncio.sleep(0.02)
    return [line.split() for line in lines]


def test_a_program_is_forked_and_is_a_child_of_the_supervisor(tmp_path: Path) -> None:
    play(forked_child, tmp_path)


async def forked_child(folder: Path) -> None:
    adopt_orphans()
    said: list[str] = []
    supervised = Supervisor(folder, env=os.environ, cwd=ROOT, say=said.append)
    supervised.keep([SERVER])
    ends = program(folder, SAYS + "sys.exit(3)")
    supervised.keep([ends])
    first, second = (await output(folder, 2))[:2]
    assert first[1:] == second[1:] == [str(os.getpid()), "one", "an", "argument"]
    assert first[0] != second[0]
    assert said[0].startswith("one ended with exit code 3 (")
    await supervised.stop([ends], [SERVER])
    assert not psutil.Process().children()


def test_a_program_that_was_killed_is_forked_again(tmp_path: Path) -> None:
    play(killed_child, tmp_path)


async def killed_child(folder: Path) -> None:
    adopt_orphans()
    said: list[str] = []
    supervised = Supervisor(folder, env=os.environ, cwd=ROOT, say=said.append)
    naps = program(folder, SAYS + "import time; time.sleep(60)")
    supervised.keep([SERVER, naps])
    [first] = await output(folder, 1)
    os.kill(int(first[0]), signal.SIGKILL)
    second = (await output(folder, 2))[1]
    assert "python" in psutil.Process(int(second[0])).cmdline()[0]
    assert said == ["one was killed (SIGKILL); restarts in 0.5 s."]
    await supervised.stop([naps], [SERVER])
    assert not psutil.Process().children()


def test_without_a_fork_server_a_program_starts_by_itself(tmp_path: Path) -> None:
    play(broken_server, tmp_path)


async def broken_server(folder: Path) -> None:
    adopt_orphans()
    supervised = Supervisor(folder, env=os.environ, cwd=ROOT, say=lambda _: None)
    broken = Program(fork_server.KIND, (sys.executable, "-c", "1 / 0"), kind=fork_server.KIND)
    naps = program(folder, SAYS + "import time; time.sleep(60)")
    supervised.keep([broken, naps])
    [first] = await output(folder, 1)
    assert first[1:] == [str(os.getpid()), "one", "an", "argument"]
    await supervised.stop([naps], [broken])
    assert not psutil.Process().children()


def test_a_program_that_is_not_awaited_ends_at_once(tmp_path: Path) -> None:
    play(unknown_child, tmp_path)


async def unknown_child(folder: Path) -> None:
    """A supervisor that was interrupted between its request and the answer knows no number."""
    adopt_orphans()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    file = folder / "one.py"
    file.write_text("raise SystemExit('it runs')")
    env = os.environ | {"TRNWATCH_NOTIFY_FD": str(theirs.fileno())}
    log = (folder / "log").open("wb")
    server = subprocess.Popen(
        (sys.executable, "-c", BARE), cwd=ROOT, env=env, pass_fds=[theirs.fileno()], stderr=log
    )
    gate, others_gate = socket.socketpair()
    request = {"command": [sys.executable, str(file)], "fds": [1, 2], "parent": os.getpid()}
    message = json.dumps(request | {"env": {}, "kind": ""}).encode()
    socket.send_fds(ours, [message], [others_gate.fileno(), log.fileno(), log.fileno()])
    others_gate.close()
    number = int(gate.recv(32))
    gate.close()
    os.waitpid(number, 0)
    server.kill()
    server.wait()
    assert (folder / "log").read_text() == (
        "The supervisor does not wait for this program any more.\n"
    )


def test_a_program_is_forked_as_soon_as_its_own_part_is_loaded(tmp_path: Path) -> None:
    play(parts_in_order, tmp_path)


async def parts_in_order(folder: Path) -> None:
    """The requests wait together, before anything is loaded: each gets its own part."""
    adopt_orphans()
    env = environment(folder, DJANGO_SETTINGS_MODULE="fleet.settings")
    supervised = Supervisor(folder, env=env, cwd=ROOT, say=lambda _: None)
    text = (
        "import sys, time; loaded = sys.modules.keys(); "
        "print('fleet.tasks' in loaded, 'fleet.asgi' in loaded, flush=True); time.sleep(60)"
    )
    programs = [replace(program(folder, text, kind), kind=kind) for kind in ("worker", "web")]
    supervised.keep([services.fork_server(), *programs])
    for name, loaded in (("worker", ["True", "False"]), ("web", ["True", "True"])):
        lines = await output(folder, 1, name)
        assert lines == [loaded], lines
    await supervised.stop(programs, [services.fork_server()])


def test_a_program_that_was_forked_as_all_stopped_is_collected(tmp_path: Path) -> None:
    play(stopped_while_forking, tmp_path)


async def stopped_while_forking(folder: Path) -> None:
    """Stop at each moment of a fork, from the request to the running program."""
    adopt_orphans()
    supervised = Supervisor(folder, env=os.environ, cwd=ROOT, say=lambda _: None)
    supervised.keep([SERVER])
    naps = program(folder, "import time; time.sleep(60)")
    for n in range(12):
        supervised.keep([naps])
        await asyncio.sleep(n * 0.003)
        await supervised.stop([naps])
    await supervised.stop([SERVER])
    services.end_orphans()
    assert not psutil.Process().children()


OPENED = """
import os, threading
from fleet.ops import fork_server
import django
django.setup()
for kind in fork_server.LOADED:
    fork_server.load(kind)
names = os.listdir("/proc/self/fd")[:-1]
print(sum(os.readlink(f"/proc/self/fd/{n}").startswith("socket:") for n in names))
print(threading.active_count())
"""


def test_what_is_loaded_opens_no_connection_and_starts_no_thread() -> None:
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "fleet.settings"}
    assert run_text(OPENED, env=env).split() == ["0", "1"]
