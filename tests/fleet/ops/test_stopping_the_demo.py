"""Stopping during demo creation: no process is left; the next start completes it."""

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from tests import warm
from tests.fleet.ops.installation import Up, environment, prepare, wait_for
from tests.helpers import free_port

POOL = os.cpu_count() or 1
# The kernel ends what is left at once; a busy machine has all the time it needs.
SOON_S = 20
UNFINISHED = "SELECT count(*) FROM fleet_run WHERE past_until IS NOT NULL"
LEAVE_ONE = """
    UPDATE fleet_run SET past_until = NULL WHERE id NOT IN (
        SELECT id FROM fleet_run WHERE past_until IS NOT NULL ORDER BY n_nodes, id LIMIT 1
    )"""


def grandchildren(process: psutil.Process) -> list[psutil.Process]:
    """Return the pool's processes of a `prepare_demo` below a process."""
    for child in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            if "prepare_demo" in " ".join(child.cmdline()) and len(child.children()) >= POOL:
                return child.children()
    return []


# In a session of its own, so that a Ctrl-C reaches it alone.
MAKE = """
import os, runpy, sys
os.setsid()
sys.argv = ["manage.py", "prepare_demo", "--hours", "1"]
runpy.run_path("manage.py", run_name="__main__")
"""


@pytest.fixture
def making(tmp_path: Path, redis_url: str) -> Iterator[warm.Program]:
    env = environment(tmp_path, REDIS_URL=redis_url)
    prepare(tmp_path)
    with (tmp_path / "console").open("wb") as console:
        process = warm.start(["-c", MAKE], env=env, stdout=console, stderr=console)
    yield process
    process.kill()


@pytest.mark.parametrize(
    "end",
    [
        lambda process: process.send_signal(signal.SIGKILL),
        lambda process: process.send_signal(signal.SIGTERM),
        lambda process: os.killpg(process.pid, signal.SIGINT),
    ],
    ids=["killed", "SIGTERM", "Ctrl-C"],
)
def test_the_processes_of_the_pool_end_with_the_command(
    making: warm.Program, end: Callable[[warm.Program], None]
) -> None:
    parent = psutil.Process(making.pid)
    wait_for(lambda: grandchildren(parent), within_s=60)
    left = grandchildren(parent)

    end(making)

    making.wait(timeout=SOON_S)
    _, alive = psutil.wait_procs(left, timeout=SOON_S)
    for each in alive:
        each.kill()
    assert alive == []


@pytest.fixture
def first_start(tmp_path: Path) -> Iterator[warm.Program]:
    env = environment(tmp_path / "data", PORT=str(free_port()), TRNWATCH_DEMO="1")
    with (tmp_path / "console").open("wb") as console:
        process = warm.start(["manage.py", "up"], env=env, stdout=console, stderr=console)
    yield process
    process.terminate()
    process.wait(timeout=SOON_S)


def test_ctrl_c_ends_all_and_the_next_start_makes_the_demo_whole(
    tmp_path: Path, first_start: warm.Program
) -> None:
    folder, process = tmp_path / "data", first_start
    supervisor = psutil.Process(process.pid)
    wait_for(lambda: grandchildren(supervisor), within_s=120)
    everything = supervisor.children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=SOON_S) == 0
    _, alive = psutil.wait_procs(everything, timeout=SOON_S)
    assert alive == []
    with closing(sqlite3.connect(folder / "trnwatch.sqlite3")) as database:
        [n_faults] = database.execute("SELECT count(*) FROM fleet_injectedfault").fetchone()
        # Before the past is complete: no page says that there are none.
        [n_trials] = database.execute("SELECT count(*) FROM fleet_trial").fetchone()
        # As if the past of the others had been complete before: it takes long to simulate.
        with database:
            database.execute(LEAVE_ONE)
        assert database.execute(UNFINISHED).fetchone() == (1,)
    assert n_faults > 0
    assert n_trials > 0

    again = Up.start(folder, free_port(), 240, TRNWATCH_DEMO="1")
    try:
        wait_for(lambda: "The demo fleet is complete" in again.shown, within_s=240)
        with closing(sqlite3.connect(folder / "trnwatch.sqlite3")) as database:
            assert database.execute(UNFINISHED).fetchone() == (0,)
    finally:
        assert again.stop() == 0
