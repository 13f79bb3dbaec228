"""A keeper of processes: starts them, starts them again when they end, and stops them all."""

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

CHILD_PROCESS = Path(__file__).with_name("child_process.py")
# A program that ends sooner than this after its start is given longer and longer pauses.
QUICK_END_S = 5.0
PAUSES_S = (0.1, 0.5, 1.0, 2.0, 5.0)
LOG_BYTES = 5_000_000
LOG_CHECK_S = 30.0
# What stays of a long log where the disk has no room to set it aside.
LOG_END_BYTES = 64 * 1024


@dataclass(frozen=True)
class Program:
    """One thing to run, and how long it may take to stop.

    ``repair`` is called whenever it has ended, with its exit code and what it wrote since its
    start (nothing if that is long): it may mend what keeps the program from starting, and then
    says what it did.
    """

    name: str
    command: tuple[str, ...]
    stop_within_s: float = 4.0
    pass_fds: tuple[int, ...] = ()
    repair: Callable[[int, str], str] | None = None


class Supervisor:
    """Keeps programs running until it is told to stop.

    Every program writes to ``<folder>/log/<name>.log`` and is tied to this process: if the
    keeper is killed, so is the program. Where the system cannot tie processes, the next keeper
    finds what is left by ``<folder>/processes.json``.
    """

    def __init__(
        self, folder: Path, *, env: Mapping[str, str], cwd: Path, say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._env = dict(env)
        self._cwd = cwd
        self._say = say
        self._running: dict[Program, Process] = {}
        self._tasks: dict[Program, asyncio.Task[None]] = {}
        (folder / "log").mkdir(parents=True, exist_ok=True)

    def log(self, program: Program) -> Path:
        """Return where a program writes."""
        return self._folder / "log" / f"{program.name}.log"

    def keep(self, programs: Iterable[Program]) -> None:
        """Start programs, each again whenever it ends, until `stop`."""
        for program in programs:
            self._tasks[program] = asyncio.create_task(self._keep(program))

    async def once(self, program: Program) -> int:
        """Run a program that ends by itself, its words on the console; gives its exit code."""
        process = await self._start(program, to_console=True)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                await _end(process, program.stop_within_s)
            del self._running[program]

    async def trim_logs(self) -> None:
        """Set logs that have grown long aside, the latest one only, for ever."""
        while True:
            for log in (self._folder / "log").glob("*.log"):
                try:
                    rotate(log)
                except OSError as error:
                    # A log that cannot be cut must not end what writes it.
                    self._say(f"{log.name} cannot be shortened: {error.strerror}.")
            await asyncio.sleep(LOG_CHECK_S)

    async def stop(self, *groups: Iterable[Program]) -> None:
        """Stop group after group of programs, each within the time it was given."""
        for group in groups:
            await asyncio.gather(*(self._stop(program) for program in group))
        self._note()

    async def _keep(self, program: Program) -> None:
        """Start a program again whenever it ends."""
        n_quick = 0
        while True:
            began_s = time.monotonic()
            written = _size(self.log(program))
            try:
                code = await (await self._start(program)).wait()
                end = describe_exit(code)
            except OSError as error:
                code, end = 0, f"could not be started: {error.strerror}"
            n_quick = n_quick + 1 if time.monotonic() - began_s < QUICK_END_S else 0
            pause_s = PAUSES_S[min(n_quick, len(PAUSES_S) - 1)]
            words = f" ({last_line(self.log(program))})" if code > 0 else ""
            self._say(f"{program.name} {end}{words}; starts again in {pause_s:g} s.")
            if program.repair and (done := program.repair(code, self._words(program, written))):
                self._say(done)
                with suppress(OSError), self._open_log(program) as log:
                    log.write(f"{done}\n".encode())
            await asyncio.sleep(pause_s)

    def _words(self, program: Program, since: int) -> str:
        """Return what a program wrote since its log had a size; nothing if that is long by now."""
        log = self.log(program)
        n_bytes = _size(log) - since
        return read_end(log, n_bytes) if 0 < n_bytes <= LOG_END_BYTES else ""

    async def _start(self, program: Program, *, to_console: bool = False) -> Process:
        """Start a program in a session of its own, so that Ctrl-C reaches the keeper alone."""
        with self._open_log(program) as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-IS", str(CHILD_PROCESS), str(psutil.Process().pid)),
                *program.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=None if to_console else log,
                stderr=None if to_console else log,
                start_new_session=True,
                pass_fds=program.pass_fds,
                env=self._env,
                cwd=self._cwd,
            )
        self._running[program] = process
        self._note()
        return process

    def _open_log(self, program: Program) -> IO[bytes]:
        """Open a program's log to append to; without one it runs all the same."""
        try:
            return self.log(program).open("ab")
        except OSError as error:
            self._say(f"{program.name} runs without a log: {error.strerror}.")
            return Path(os.devnull).open("ab")

    async def _stop(self, program: Program) -> None:
        """Stop keeping a program, and end it."""
        task = self._tasks.pop(program, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        process = self._running.pop(program, None)
        if process is not None:
            await _end(process, program.stop_within_s)

    def _note(self) -> None:
        """Note what runs, for the next keeper should this one be killed."""
        alive = [process.pid for process in self._running.values() if process.returncode is None]
        started = {
            pid: psutil.Process(pid).create_time() for pid in alive if psutil.pid_exists(pid)
        }
        note = self._folder / "processes.json"
        draft = note.with_suffix(".draft")
        try:
            draft.write_text(json.dumps(started))
            draft.rename(note)
        except OSError:
            # The next keeper then knows of fewer programs; those that run go on.
            with suppress(OSError):
                draft.unlink()


async def _end(process: Process, within_s: float) -> None:
    """Ask a process to end; insist after ``within_s``."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), within_s)
    except TimeoutError:
        process.kill()
        await process.wait()


def end_leftovers(folder: Path, *, within_s: float = 5.0) -> int:
    """End what a killed keeper left running in ``folder``; gives how many there were."""
    try:
        started = json.loads((folder / "processes.json").read_text())
    except (FileNotFoundError, ValueError):
        return 0
    left = []
    for pid, created_s in started.items():
        try:
            process = psutil.Process(int(pid))
            # A number may have passed on to a stranger; its time of birth has not.
            if abs(process.create_time() - created_s) < 1:
                process.terminate()
                left.append(process)
        except psutil.NoSuchProcess:
            continue
    _, stubborn = psutil.wait_procs(left, timeout=within_s)
    for process in stubborn:
        process.kill()
    psutil.wait_procs(stubborn, timeout=within_s)
    return len(left)


def describe_exit(code: int) -> str:
    """Say how a process ended.

    >>> ending(-9), ending(3)
    ('was killed (SIGKILL)', 'ended with exit code 3')
    """
    if code < 0:
        return f"was killed ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def last_line(log: Path) -> str:
    """Return the last words in a log."""
    lines = read_end(log, 4096).strip().splitlines()
    return lines[-1] if lines else "none"


def read_end(log: Path, n_bytes: int) -> str:
    """Return the last bytes of a log as text; nothing of a log that is not there."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - n_bytes))
            return file.read(n_bytes).decode(errors="replace")
    except OSError:
        return ""


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def rotate(log: Path) -> None:
    """Move what a long log says into ``<log>.1``; whoever appends to it need not know.

    On a full disk its end stays in place and the rest goes, which takes no room.
    """
    if log.stat().st_size <= LOG_BYTES:
        return
    aside, end = log.with_suffix(".log.1"), b""
    try:
        with log.open("rb") as source, aside.open("wb") as target:
            shutil.copyfileobj(source, target)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        end = read_end(log, LOG_END_BYTES).encode()
    with log.open("r+b") as file:
        file.truncate(0)
    if end:
        with log.open("ab") as file:
            file.write(end)
