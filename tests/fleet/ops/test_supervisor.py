"""The supervisor restarts what dies, and stops everything it started."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fleet.ops import supervisor
from fleet.ops.supervisor import Program, Supervisor, end_leftovers, last_line, rotate

ROOT = Path(__file__).resolve().parents[3]


def script(name: str, text: str, **options: float) -> Program:
    """Make a program of a few lines of Python."""
    return Program(name, (sys.executable, "-IS", "-c", text), **options)  # type: ignore[arg-type]


NAPS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
IS_STUBBORN = (
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print(os.getpid(), flush=True); time.sleep(60)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "a place, 100% odd"
    place.mkdir()
    return place


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def start_supervisor(folder: Path, messages: list[str]) -> Callable[[], Supervisor]:
    return lambda: Supervisor(folder, env=os.environ, cwd=ROOT, say=messages.append)


async def pids(folder: Path, name: str, n: int) -> list[int]:
    """Wait until a program has been started ``n`` times; it logs its number each time."""
    async with asyncio.timeout(20):
        while True:
            log = folder / "log" / f"{name}.log"
            lines = log.read_text().split() if log.exists() else []
            if len(lines) >= n:
                return [int(line) for line in lines]
            await asyncio.sleep(0.02)


def test_what_is_killed_runs_again_at_once(
    start_supervisor: Callable[[], Supervisor], folder: Path, messages: list[str]
) -> None:
    program = script("napper", NAPS)

    async def scenario() -> float:
        supervised = start_supervisor()
        supervised.keep([program])
        [first] = await pids(folder, "napper", 1)
        killed_s = time.monotonic()
        os.kill(first, signal.SIGKILL)
        _, second = await pids(folder, "napper", 2)
        took_s = time.monotonic() - killed_s
        assert psutil.pid_exists(second)
        await supervised.stop([program])
        assert not psutil.pid_exists(second)
        return took_s

    assert asyncio.run(scenario()) < 2
    assert messages[0].startswith("napper was killed (SIGKILL)")


def test_what_fails_at_once_is_tried_again_with_longer_and_longer_pauses(
    start_supervisor: Callable[[], Supervisor],
    messages: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "PAUSES_S", (0.01, 0.02, 0.04))
    program = script("broken", "raise SystemExit('no such luck')")

    async def scenario() -> None:
        supervised = start_supervisor()
        supervised.keep([program])
        while len(messages) < 3:
            await asyncio.sleep(0.02)
        await supervised.stop([program])

    asyncio.run(scenario())
    assert messages[0] == "broken ended with exit code 1 (no such luck); restarts in 0.02 s."
    assert messages[2].endswith("in 0.04 s.")


def test_what_does_not_listen_is_killed_in_time(
    start_supervisor: Callable[[], Supervisor], folder: Path
) -> None:
    program = script("stubborn", IS_STUBBORN, stop_within_s=0.3)

    async def scenario() -> int:
        supervised = start_supervisor()
        supervised.keep([program])
        [pid] = await pids(folder, "stubborn", 1)
        await supervised.stop([program])
        return pid

    assert not psutil.pid_exists(asyncio.run(scenario()))


def test_what_runs_once_gives_its_exit_code(start_supervisor: Callable[[], Supervisor]) -> None:
    assert asyncio.run(start_supervisor().once(script("once", "raise SystemExit(3)"))) == 3


def test_a_killed_supervisor_ends_its_programs(folder: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("supervised_process.py")), str(folder)],
        cwd=ROOT,
    )
    [pid] = asyncio.run(pids(folder, "napper", 1))
    parent.kill()
    parent.wait()

    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=5)
    assert not psutil.pid_exists(pid)


def test_leftover_processes_are_ended_and_foreign_ones_are_not(folder: Path) -> None:
    mine, foreign = (subprocess.Popen([sys.executable, "-c", NAPS]) for _ in range(2))
    started = {
        mine.pid: psutil.Process(mine.pid).create_time(),
        foreign.pid: psutil.Process(foreign.pid).create_time() - 3600,
        2**22 + 1: 0.0,
    }
    (folder / "processes.json").write_text(json.dumps(started))

    assert end_leftovers(folder) == 1
    assert mine.poll() is not None
    assert foreign.poll() is None
    foreign.kill()
    foreign.wait()


def test_no_leftovers_where_nothing_ran(folder: Path) -> None:
    assert end_leftovers(folder) == 0


def test_a_long_log_is_rotated_while_it_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOG_BYTES", 10)
    log = folder / "web.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"a long story\n")
        rotate(log)
        writer.write(b"the end\n")
        rotate(log)

    assert log.read_text() == "the end\n"
    assert (folder / "web.log.1").read_text() == "a long story\n"


def test_a_long_log_keeps_its_end_where_it_cannot_be_set_aside(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOG_BYTES", 10)
    monkeypatch.setattr(supervisor, "LOG_END_BYTES", 8)
    log = folder / "web.log"
    # Every write to it fails as on a full disk.
    (folder / "web.log.1").symlink_to("/dev/full")
    with log.open("ab", buffering=0) as writer:
        writer.write(b"a long story\nthe end\n")
        rotate(log)
        writer.write(b"another\n")

    assert log.read_text() == "the end\nanother\n"
    assert not (folder / "web.log.1").exists()


def test_a_log_that_cannot_be_cut_or_opened_ends_nothing(
    start_supervisor: Callable[[], Supervisor],
    folder: Path,
    messages: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "LOG_CHECK_S", 0.01)
    program = script("once", "raise SystemExit(3)")

    async def scenario() -> int:
        supervised = start_supervisor()
        (folder / "log" / "broken.log").symlink_to(folder / "nowhere" / "else.log")
        (folder / "log" / "once.log").mkdir()
        (folder / "processes.draft").mkdir()
        trimming = asyncio.create_task(supervised.trim_logs())
        code = await supervised.once(program)
        while not any("broken.log" in each for each in messages):
            await asyncio.sleep(0.01)
        assert not trimming.done()
        trimming.cancel()
        return code

    assert asyncio.run(scenario()) == 3
    assert "broken.log cannot be rotated: No such file or directory." in messages
    assert any(each.startswith("once runs without a log") for each in messages)


def test_what_is_repaired_after_an_end_is_reported_and_logged(
    start_supervisor: Callable[[], Supervisor], folder: Path, messages: list[str]
) -> None:
    ends: list[tuple[int, str]] = []

    def repair(code: int, message: str) -> str:
        ends.append((code, message))
        return "It was mended."

    text = "print('first words'); raise SystemExit(2)"
    program = replace(script("broken", text), repair=repair)

    async def scenario() -> None:
        supervised = start_supervisor()
        supervised.keep([program])
        while len(ends) < 2:
            await asyncio.sleep(0.02)
        await supervised.stop([program])

    asyncio.run(scenario())
    assert ends[:2] == [(2, "first words\n"), (2, "first words\n")]
    assert "It was mended." in messages
    assert "It was mended.\n" in (folder / "log" / "broken.log").read_text()


def test_the_last_line_of_an_empty_log(folder: Path) -> None:
    (folder / "web.log").touch()

    assert last_line(folder / "web.log") == "none"
