"""A keeper of processes: starts them, starts them again when they end, and stops them all."""

import asyncio
import json
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

TIED = Path(__file__).with_name("tied.py")
# A program that ends sooner than this after its start is given longer and longer pauses.
QUICK_END_S = 5.0
PAUSES_S = (0.1, 0.5, 1.0, 2.0, 5.0)
LOG_BYTES = 5_000_000
LOG_CHECK_S = 30.0


@dataclass(frozen=True)
class Program:
    """One thing to run, and how long it may take to stop."""

    name: str
    command: tuple[str, ...]
    stop_within_s: float = 4.0
    pass_fds: tuple[int, ...] = ()


class Keeper:
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
                set_aside(log)
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
            process = await self._start(program)
            code = await process.wait()
            n_quick = n_quick + 1 if time.monotonic() - began_s < QUICK_END_S else 0
            pause_s = PAUSES_S[min(n_quick, len(PAUSES_S) - 1)]
            words = "" if code < 0 else f" ({last_line(self.log(program))})"
            self._say(f"{program.name} {ending(code)}{words}; starts again in {pause_s:g} s.")
            await asyncio.sleep(pause_s)

    async def _start(self, program: Program, *, to_console: bool = False) -> Process:
        """Start a program in a session of its own, so that Ctrl-C reaches the keeper alone."""
        with self.log(program).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-IS", str(TIED), str(psutil.Process().pid)),
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
        (self._folder / "processes.json").write_text(json.dumps(started))


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


def ending(code: int) -> str:
    """Say how a process ended.

    >>> ending(-9), ending(3)
    ('was killed (SIGKILL)', 'ended with exit code 3')
    """
    if code < 0:
        return f"was killed ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def last_line(log: Path) -> str:
    """Return the last words in a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "none"


def set_aside(log: Path) -> None:
    """Move what a long log says into ``<log>.1``; whoever appends to it need not know."""
    if log.stat().st_size > LOG_BYTES:
        log.with_suffix(".log.1").write_bytes(log.read_bytes())
        with log.open("r+b") as file:
            file.truncate(0)
