"""A process supervisor: starts programs, restarts those that end, and stops them all."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from fleet.ops import fork_server, liveness
from fleet.ops.fork_server import Forked
from fleet.ops.liveness import Watch

CHILD_PROCESS = Path(__file__).with_name("child_process.py")
# The pause before a restart grows while a program ends sooner than this after its start.
QUICK_END_S = 5.0
PAUSES_S = (0.1, 0.5, 1.0, 2.0, 5.0)
LOG_BYTES = 5_000_000
LOG_CHECK_S = 30.0
# The part of a long log that stays where the disk has no room to rotate it.
LOG_END_BYTES = 64 * 1024


@dataclass(frozen=True)
class Program:
    """A program to run, and how long it may take to stop.

    ``repair`` is called whenever the program has ended, with its exit code and its output since
    the start (empty if that is long). It may repair what keeps the program from starting, and
    returns what it did.

    ``kind`` is its row in the table of `liveness`; empty: it is not checked. It sends its proofs,
    or ``ping`` asks for one. A program that hangs gets ``abort_signal`` first, for a traceback.

    If ``outlives`` is true, its children serve on when it was killed, until its successor is
    ready. If ``is_forked`` is true, the fork server forks it where there is one.
    """

    name: str
    command: tuple[str, ...]
    stop_within_s: float = 4.0
    pass_fds: tuple[int, ...] = ()
    repair: Callable[[int, str], str] | None = None
    kind: str = ""
    ping: Callable[[], Awaitable[bool]] | None = None
    abort_signal: signal.Signals = signal.SIGABRT
    outlives: bool = False
    is_forked: bool = False


class Supervisor:
    """Keeps programs running until `stop`.

    Every program writes to ``<folder>/log/<name>.log`` and ends with this process, even if that
    is killed. On systems without such a signal, the next supervisor finds the remaining
    processes in ``<folder>/processes.json``.
    """

    def __init__(
        self, folder: Path, *, env: Mapping[str, str], cwd: Path, say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._env = {
            **env,
            # A program that is aborted writes where it hung to its log.
            "PYTHONFAULTHANDLER": "1",
            "TRNWATCH_SUPERVISOR": str(os.getpid()),
        }
        self._cwd = cwd
        self._say = say
        self._running: dict[Program, Process | Forked] = {}
        self._tasks: dict[Program, asyncio.Task[None]] = {}
        # Process groups of programs that ended, whose children serve on.
        self._left: dict[Program, list[int]] = {}
        # The channel to the fork server once it has started; None: there is none.
        self._forks: asyncio.Future[socket.socket] | None = None
        (folder / "log").mkdir(parents=True, exist_ok=True)

    def log(self, program: Program) -> Path:
        return self._folder / "log" / f"{program.name}.log"

    def keep(self, programs: Iterable[Program]) -> None:
        """Start programs, and restart each whenever it ends, until `stop`."""
        for program in programs:
            if program.kind == fork_server.KIND:
                self._forks = asyncio.get_running_loop().create_future()
            self._tasks[program] = asyncio.create_task(self._keep(program))

    async def once(self, program: Program) -> int:
        """Run a program that ends by itself, with output to the console; return its exit code."""
        process = await self._start(program, to_console=True)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                await _end(process, program.stop_within_s)
            del self._running[program]

    async def trim_logs(self) -> None:
        """Rotate long logs, until cancelled."""
        while True:
            for log in (self._folder / "log").glob("*.log"):
                try:
                    rotate(log)
                except OSError as error:
                    # A log that cannot be rotated must not end its program.
                    self._say(f"{log.name} cannot be rotated: {error.strerror}.")
            await asyncio.sleep(LOG_CHECK_S)

    async def stop(self, *groups: Iterable[Program]) -> None:
        """Stop group after group of programs, each program within its ``stop_within_s``."""
        for group in groups:
            await asyncio.gather(*(self._stop(program) for program in group))
        self._write_process_list()

    async def _keep(self, program: Program) -> None:
        n_quick = 0
        while True:
            began_s = time.monotonic()
            log_bytes = _size(self.log(program))
            try:
                code, end = await self._run(program)
            except OSError as error:
                code, end = 0, f"could not be started: {error.strerror}"
            done = ""
            n_quick = n_quick + 1 if time.monotonic() - began_s < QUICK_END_S else 0
            pause_s = PAUSES_S[min(n_quick, len(PAUSES_S) - 1)]
            reason = f" ({last_line(self.log(program))})" if code > 0 else ""
            self._say(f"{program.name} {end}{reason}; restarts in {pause_s:g} s.")
            if program.repair is not None:
                n_bytes = _size(self.log(program)) - log_bytes
                is_short = 0 < n_bytes <= LOG_END_BYTES
                output = read_end(self.log(program), n_bytes) if is_short else ""
                done = program.repair(code, output)
            if done:
                self._say(done)
                with suppress(OSError), self._open_log(program) as log:
                    log.write(f"{done}\n".encode())
            await asyncio.sleep(pause_s)

    async def _run(self, program: Program) -> tuple[int, str]:
        """Run a program to its end; return its exit code and how it ended."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ours:
            with theirs:
                process = await self._start(program, channel=theirs.fileno())
            if program.kind == fork_server.KIND and self._forks is not None:
                # Requests wait in the socket until it has loaded.
                self._forks.set_result(ours)
            watching = asyncio.create_task(self._watch(program, process, ours))
            try:
                code = await process.wait()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                if program.kind == fork_server.KIND:
                    self._forks = asyncio.get_running_loop().create_future()
        # It ended without being asked to.
        self._left.setdefault(program, []).append(process.pid)
        if program.outlives:
            self._write_process_list()
        else:
            await self._end_left(program, signal.SIGKILL)
        return code, describe_exit(code)

    async def _watch(
        self, program: Program, process: Process | Forked, channel: socket.socket
    ) -> None:
        """Abort a process that hangs; end what its predecessor left once it is ready."""
        if not program.kind:
            return
        watch = Watch(process.pid)
        channel.setblocking(False)  # noqa: FBT003
        loop = asyncio.get_running_loop()
        loop.add_reader(channel, read_proofs, channel, watch)
        try:
            while not (why := watch.check()):
                await asyncio.sleep(liveness.CHECK_EVERY_S)
                if program.ping is not None and await program.ping():
                    watch.prove(liveness.TABLE[program.kind].silent_s)
                if watch.is_ready and program in self._left:
                    await self._end_left(program)
        finally:
            loop.remove_reader(channel)
        self._say(f"{program.name} {why}: it is aborted. See {self.log(program).name}.")
        abort(process.pid, program.abort_signal)
        try:
            await asyncio.wait_for(process.wait(), liveness.TRACEBACK_S)
        except TimeoutError:
            process.kill()

    async def _end_left(self, program: Program, number: signal.Signals = signal.SIGTERM) -> None:
        """End the children that outlived earlier processes of a program."""
        groups = self._left.pop(program, [])
        deadline_s = time.monotonic() + program.stop_within_s
        for group in groups:
            kill_group(group, number)
        while time.monotonic() < deadline_s and any(has_members(group) for group in groups):
            await asyncio.sleep(0.05)
        for group in groups:
            kill_group(group, signal.SIGKILL)

    async def _start(
        self, program: Program, *, to_console: bool = False, channel: int | None = None
    ) -> Process | Forked:
        """Start a program in its own session, so that Ctrl-C reaches only the supervisor."""
        env = {liveness.NAME: program.name}
        if channel is not None:
            env[liveness.CHANNEL] = str(channel)
        fds = (*program.pass_fds, *(() if channel is None else (channel,)))
        with self._open_log(program) as log:
            output = (1, 2) if to_console else (log.fileno(), log.fileno())
            process: Process | Forked | None = None
            if program.is_forked:
                process = await self._fork(program, env, output, fds)
            if process is None:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-IS", str(CHILD_PROCESS), str(psutil.Process().pid)),
                    *program.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output[0],
                    stderr=output[1],
                    start_new_session=True,
                    pass_fds=fds,
                    env=self._env | env,
                    cwd=self._cwd,
                )
        self._running[program] = process
        self._write_process_list()
        return process

    async def _fork(
        self, program: Program, env: dict[str, str], output: tuple[int, int], fds: tuple[int, ...]
    ) -> Forked | None:
        """Let the fork server start a program; None if there is none, or it ends before."""
        if self._forks is None:
            return None
        try:
            channel = await asyncio.shield(self._forks)
            own = {1: output[0], 2: output[1], **{number: number for number in fds}}
            return Forked(
                await fork_server.fork(
                    channel, program.command, kind=program.kind, env=env, fds=own
                )
            )
        except OSError:
            return None

    def _open_log(self, program: Program) -> IO[bytes]:
        """Open a program's log to append to; if that fails, the program runs without a log."""
        try:
            return self.log(program).open("ab")
        except OSError as error:
            self._say(f"{program.name} runs without a log: {error.strerror}.")
            return Path(os.devnull).open("ab")

    async def _stop(self, program: Program) -> None:
        task = self._tasks.pop(program, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        process = self._running.pop(program, None)
        if process is not None:
            await _end(process, program.stop_within_s)
        await self._end_left(program)

    def _write_process_list(self) -> None:
        """List the running processes, for the next supervisor if this one is killed."""
        alive = [process.pid for process in self._running.values() if process.returncode is None]
        alive += [pid for groups in self._left.values() for g in groups for pid in members(g)]
        started = {
            pid: psutil.Process(pid).create_time() for pid in alive if psutil.pid_exists(pid)
        }
        path = self._folder / "processes.json"
        draft = path.with_suffix(".draft")
        try:
            draft.write_text(json.dumps(started))
            draft.rename(path)
        except OSError:
            # The next supervisor may miss a process; the running programs are not affected.
            with suppress(OSError):
                draft.unlink()


def read_proofs(channel: socket.socket, watch: Watch) -> None:
    """Read what a program sent to its supervisor."""
    with suppress(BlockingIOError):
        while message := channel.recv(4096):
            limit_s = liveness.limit_in(message)
            if limit_s is not None:
                watch.prove(limit_s)


def abort(pid: int, number: signal.Signals) -> None:
    """Signal a process that hangs; a stopped one gets the signal as it continues."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)


def kill_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        if number != signal.SIGKILL:
            os.killpg(group, signal.SIGCONT)


def members(group: int) -> list[int]:
    """Return our own children of a process group: those that lost their parent."""
    pids = []
    for child in psutil.Process().children():
        with suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(child.pid) == group and child.status() != psutil.STATUS_ZOMBIE:
                pids.append(child.pid)
    return pids


def has_members(group: int) -> bool:
    """Whether a process group still runs; those of its members that ended are collected."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


async def _end(process: Process | Forked, within_s: float) -> None:
    """Terminate a process; kill it after ``within_s``."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), within_s)
    except TimeoutError:
        process.kill()
        await process.wait()


def end_leftovers(folder: Path, *, within_s: float = 5.0) -> int:
    """End the processes that a killed supervisor left in ``folder``; return their number."""
    try:
        started = json.loads((folder / "processes.json").read_text())
    except (FileNotFoundError, ValueError):
        return 0
    left = []
    for pid, created_s in started.items():
        try:
            process = psutil.Process(int(pid))
            # The system may have given the number to another process, with a later start.
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
    """Describe how a process ended.

    >>> describe_exit(-9), describe_exit(3)
    ('was killed (SIGKILL)', 'ended with exit code 3')
    """
    if code < 0:
        return f"was killed ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def last_line(log: Path) -> str:
    """Return the last line of a log, "none" if it is empty."""
    lines = read_end(log, 4096).strip().splitlines()
    return lines[-1] if lines else "none"


def read_end(log: Path, n_bytes: int) -> str:
    """Return the last bytes of a log as text; empty if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - n_bytes))
            return file.read(n_bytes).decode(errors="replace")
    except OSError:
        return ""


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def rotate(log: Path) -> None:
    """Copy a long log to ``<log>.1`` and truncate it; programs go on appending to it.

    On a full disk only its end is kept, in place.
    """
    if log.stat().st_size <= LOG_BYTES:
        return
    rotated, end = log.with_suffix(".log.1"), b""
    try:
        with log.open("rb") as source, rotated.open("wb") as target:
            shutil.copyfileobj(source, target)
    except OSError:
        with suppress(OSError):
            rotated.unlink()
        end = read_end(log, LOG_END_BYTES).encode()
    with log.open("r+b") as file:
        file.truncate(0)
    if end:
        with log.open("ab") as file:
            file.write(end)
