"""One table of programs: how each proves that it works, and how long it may not.

A proof comes from the loop that works, never from a thread that would go on while the work hangs.
It is a message of systemd's notify protocol. `make up`, systemd, probes and `/readyz` read it.
"""

import ctypes
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import psutil
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry


@dataclass(frozen=True)
class Liveness:
    """How a program proves that it works, and for how long it may give no proof."""

    proof: str
    silent_s: float


TABLE: Mapping[str, Liveness] = {
    # 1 s between requests, and as long as uvicorn's readers wait for a page: 10 s.
    "web": Liveness("each server answers a request that it makes to itself", 10.0),
    # What the alert `monitoring_blind` allows is 60 s: half of it to notice, half to start.
    "worker": Liveness("the loop turns between tasks, and a task ends", 30.0),
    # SQLite waits up to 20 s for a lock (settings.py), and a publication to Redis follows.
    "beat": Liveness("the scheduler takes a turn, at least each second", 30.0),
    # 5 s between chores, 20 s for a lock of SQLite, 10 s for a receiver and 2 s for Redis.
    "sender": Liveness("both loops take a turn: the outbox, and the chores", 45.0),
    # It forks within milliseconds, and waits for nothing else.
    "fork-server": Liveness("it takes the next request", 10.0),
    # It is single-threaded: no command of ours takes longer than a second.
    "redis": Liveness("it answers PING", 5.0),
}
# Tasks that may take longer than the loop of a worker may be silent: they delete or read the rows
# of hours. Each is repeated at its next turn.
TASK_S: Mapping[str, float] = {
    "telemetry.tasks.forget": 600.0,
    "telemetry.tasks.merge_old_hours": 120.0,
    "telemetry.tasks.roll_up": 120.0,
    "fleet.tasks.hand_over_plans": 300.0,
    "fleet.tasks.retire_quiet_rows": 600.0,
    "fleet.tasks.compare_similar_runs": 120.0,
    "fleet.tasks.update_trials": 120.0,
    "fleet.tasks.keep_money": 120.0,
}
# Until its first proof: twice what the first page may take (services.py).
START_S = 120.0
# While the broker is away a worker waits for it. A restart would not help.
BROKER_AWAY_S = 3600.0
# A stopped process (SIGSTOP) does nothing; a person who stops one to look at it uses a debugger.
STOPPED_S = 3.0
# Between proofs, and between checks.
PROOF_EVERY_S = 1.0
CHECK_EVERY_S = 0.5
# How long a process may take to write its traceback.
TRACEBACK_S = 2.0
# A program that gave no proof for so long is gone for good: its machine was taken away.
FORGET_S = 600.0
PR_SET_CHILD_SUBREAPER = 36
KEY = "service:programs"
# The setting that names a program among others of its kind, and the descriptor for its proofs.
NAME, CHANNEL = "TRNWATCH_PROGRAM", "TRNWATCH_NOTIFY_FD"


class Pulse:
    """The proofs of this process; each of its ``parts`` must give one."""

    def __init__(
        self, kind: str, *, parts: Collection[str] = ("loop",), redis_url: str = ""
    ) -> None:
        self._kind = kind
        self._limit_s = TABLE[kind].silent_s
        self._parts = frozenset(parts)
        self._seen: set[str] = set()
        self._lock = Lock()
        self._sent_s = -PROOF_EVERY_S
        self._send = sender_of(os.environ)
        self._file = Path(os.environ.get("TRNWATCH_ALIVE_PATH") or os.devnull)
        self._register = Register(redis_url) if redis_url else None
        self.name = program_name(kind)

    def beat(self, part: str = "loop", *, limit_s: float | None = None) -> None:
        """Prove that a part works; the next proof may take ``limit_s``."""
        limit_s = TABLE[self._kind].silent_s if limit_s is None else limit_s
        with self._lock:
            self._seen.add(part)
            now_s, is_changed = time.monotonic(), limit_s != self._limit_s
            is_due = is_changed or now_s - self._sent_s >= PROOF_EVERY_S
            if not is_due or self._seen < self._parts:
                return
            self._seen.clear()
            self._sent_s, self._limit_s = now_s, limit_s
        self._send(f"READY=1\nWATCHDOG=1\nWATCHDOG_USEC={int(limit_s * 1e6)}".encode())
        due_s = time.time() + limit_s
        if self._file != Path(os.devnull):
            with suppress(OSError):
                self._file.touch()
                os.utime(self._file, (due_s, due_s))
        # Redis may hang: it must not hold a program longer than the proof is worth.
        if self._register is not None and limit_s < BROKER_AWAY_S:
            self._register.note(self.name, self._kind, due_s)

    def end(self) -> None:
        """Leave: a program that ends as it should is not missed."""
        if self._register is not None:
            self._register.forget(self.name)


def sender_of(env: Mapping[str, str]) -> Callable[[bytes], None]:
    """Return how to reach the supervisor: ours by descriptor, systemd by NOTIFY_SOCKET."""
    if number := env.get(CHANNEL):
        channel, address = socket.socket(fileno=os.dup(int(number))), ""
    elif address := env.get("NOTIFY_SOCKET", ""):
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # systemd writes an abstract address with "@".
        address = "\0" + address[1:] if address.startswith("@") else address
    else:
        return lambda _: None
    channel.setblocking(False)  # noqa: FBT003

    def send(message: bytes) -> None:
        # A supervisor that does not read has enough proofs.
        with suppress(OSError):
            if address:
                channel.sendto(message, address)
            else:
                channel.send(message)

    return send


def limit_in(message: bytes) -> float | None:
    r"""Return the limit that a message of the notify protocol carries; None: it is no proof.

    >>> limit_in(b"READY=1\nWATCHDOG=1\nWATCHDOG_USEC=30000000")
    30.0
    >>> limit_in(b"STOPPING=1")
    """
    fields = dict(line.partition(b"=")[::2] for line in message.splitlines())
    if b"WATCHDOG" not in fields:
        return None
    text = fields.get(b"WATCHDOG_USEC", b"")
    return int(text) / 1e6 if text.isdigit() else None


@dataclass
class Watch:
    """Counts how long a process gives no proof.

    A pause of the process that watches does not count: on a busy machine it waits as well.
    """

    pid: int
    limit_s: float = START_S
    is_ready: bool = False
    _silent_s: float = 0.0
    _stopped_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _looked_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._looked_s = self.clock()

    def prove(self, limit_s: float) -> None:
        self.is_ready = True
        self._silent_s, self.limit_s = 0.0, limit_s

    def check(self) -> str:
        """Return why the process counts as hung; empty while it does not."""
        now_s = self.clock()
        passed_s = min(now_s - self._looked_s, 4 * CHECK_EVERY_S)
        self._looked_s = now_s
        self._silent_s += passed_s
        self._stopped_s = self._stopped_s + passed_s if is_stopped(self.pid) else 0.0
        if self._stopped_s >= STOPPED_S:
            return "is stopped (SIGSTOP)"
        if self._silent_s >= self.limit_s:
            return f"has not proved for {self.limit_s:g} s that it works"
        return ""


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped; one that a debugger holds is not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def program_name(kind: str) -> str:
    """Return how pages and metrics call this program: by its name and its host."""
    return f"{os.environ.get(NAME) or kind}@{socket.gethostname()}"


def impatient_redis(url: str, *, within_s: float = 1.0) -> Redis:
    """Return a client that gives up soon: one that waits cannot prove that it works."""
    return Redis.from_url(
        url,
        socket_timeout=within_s,
        socket_connect_timeout=within_s,
        retry=Retry(NoBackoff(), 0),
    )


class Register:
    """The programs that run anywhere, in Redis: by when each must prove itself again."""

    def __init__(self, url: str, *, within_s: float = 1.0) -> None:
        self._redis = impatient_redis(url, within_s=within_s)
        self._not_before_s = 0.0

    def note(self, name: str, kind: str, due_s: float) -> None:
        if time.monotonic() < self._not_before_s:
            return
        try:
            self._redis.hset(KEY, name, f"{kind} {due_s:.1f}")
        except RedisError:
            # The outage has its own check. Do not wait for each proof.
            self._not_before_s = time.monotonic() + 5 * PROOF_EVERY_S

    def forget(self, name: str) -> None:
        with suppress(RedisError):
            self._redis.hdel(KEY, name)

    def overdue_s(self, *, now_s: float) -> dict[str, float]:
        """Return for each program how long its proof is overdue; negative: until it is due.

        Raises RedisError.
        """
        heard: dict[bytes, bytes] = self._redis.hgetall(KEY)  # type: ignore[assignment]
        overdue_s = overdue_in(heard, now_s=now_s)
        gone = [name for name in heard if name.decode() not in overdue_s]
        if gone:
            self._redis.hdel(KEY, *gone)
        return overdue_s


def overdue_in(held: Mapping[bytes, bytes], *, now_s: float) -> dict[str, float]:
    """Read a register as `Register.overdue_s` does, without those that are gone for good."""
    overdue = ((name.decode(), now_s - float(held[name].split()[-1])) for name in sorted(held))
    return {name: late_s for name, late_s in overdue if late_s <= FORGET_S}


def late_in(overdue_s: Mapping[str, float]) -> dict[str, int]:
    """Return for how many seconds the programs are overdue that did not prove in time."""
    return {name: round(late_s) for name, late_s in overdue_s.items() if late_s > 0}


def adopt_orphans() -> None:
    """Become the parent of processes whose parent ends (Linux), so that none is lost."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
