"""Two machines with all programs of trnwatch, one with Redis, one with PostgreSQL, on one network.

Each is a namespace of Linux, and ends with its first process, which ends with the test.
"""

import ctypes
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle, groupby
from pathlib import Path
from threading import Event, Thread

import psutil
import pytest
from redis import Redis
from redis.exceptions import RedisError

from fleet.ops.embedded_redis import REDIS_SERVER
from fleet.ops.liveness import KEY
from telemetry.store.hot import HotStore
from tests.fleet.notifications.receiver_server import ReceiverServer, serve_receiver
from tests.fleet.ops.installation import ROOT, environment, prepare, wait_for
from tests.helpers import running
from tests.postgres_server import start_postgres

# Addresses for tests of networks (RFC 2544), which no machine has.
NETWORK = "198.18.0"
HOSTS = {
    "redis": f"{NETWORK}.2",
    "postgres": f"{NETWORK}.3",
    "a": f"{NETWORK}.4",
    "b": f"{NETWORK}.5",
}
REDIS_URL = f"redis://{HOSTS['redis']}:6379/0"
CLONE_NEWNET = 0x40000000  # linux/sched.h
PROGRAMS = ("web", "worker-1", "worker-2", "worker-3", "beat", "sender")
WITHIN_S = 60.0

PREPARE = """
import django
django.setup()
from datetime import UTC, datetime
from django.core.management import call_command
from fleet.models import Receiver, Route, Token
call_command("migrate", "--no-input", verbosity=0)
now = datetime.now(UTC)
hook = Receiver.objects.create(name="hook", kind="webhook", target="{target}", created_at=now)
route = Route.objects.create(name="all", is_default=True, group_by="alert", group_wait_s=0)
route.receivers.add(hook)
print(Token.issue("job", "ingest", now=now)[1], Token.issue("reader", "read", now=now)[1])
"""
# A worker in the middle of a transaction.
HOLD = """
import time
import django
django.setup()
from django.db import transaction
from fleet.models import Run
with transaction.atomic():
    list(Run.objects.select_for_update())
    print("It holds all runs.", flush=True)
    time.sleep(3600)
"""


def run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"


def enter_network(file: int) -> None:
    """Let this thread use the network of a namespace; Python 3.12 has `os.setns`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def why_not() -> str:
    """Return why this machine can have no namespaces; empty: it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root on Linux may make networks"
    if missing := [name for name in ("ip", "unshare", "nsenter") if not shutil.which(name)]:
        return f"{missing[0]} is not installed (Debian: iproute2, util-linux)"
    tried = ("unshare", "--net", "--pid", "--fork", "--mount-proc", "--uts")
    done = subprocess.run(
        [*tried, "ip", "link", "add", "probe", "type", "bridge"], capture_output=True, check=False
    )
    return done.stderr.decode().strip()


pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}"),
]


@dataclass
class Machine:
    """A namespace of network, processes and host name; it ends with its first process."""

    name: str
    holder: "subprocess.Popen[bytes]"
    up: "subprocess.Popen[bytes] | None" = None

    @classmethod
    def start(cls, name: str) -> "Machine":
        own = ("--net", "--pid", "--fork", "--mount-proc", "--uts", "--kill-child")
        script = f"hostname {name}; ip link set lo up; echo; exec sleep infinity"
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", *own, "sh", "-c", script]
        holder = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        with holder.stdout as ready:
            ready.readline()
        return cls(name, holder)

    @property
    def first(self) -> psutil.Process:
        """Its process 1, as the machine that it is on numbers it."""
        [first] = psutil.Process(self.holder.pid).children()
        return first

    def inside(self, *more: str) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self.first.pid), "--net", *more)

    @contextmanager
    def network(self) -> Iterator[None]:
        """Let this thread, and what it starts, use this machine's network.

        A network of the tests' own machine must not change: Chromium then ends what it loads.
        """
        files = [f"/proc/{pid}/ns/net" for pid in ("thread-self", self.first.pid)]
        with ExitStack() as stack:
            ours, its = (stack.enter_context(Path(file).open()).fileno() for file in files)
            enter_network(its)
            try:
                yield
            finally:
                enter_network(ours)

    def start_up(self, folder: Path, env: dict[str, str]) -> None:
        """Start all programs, by `manage.py up`."""
        prepare(folder / self.name)
        command = [
            *self.inside("--pid", "--mount", "--uts", f"--wd={ROOT}"),
            sys.executable,
            "manage.py",
            "up",
        ]
        with (folder / f"{self.name}.log").open("ab") as log:
            its = environment(folder / self.name, **env)
            self.up = subprocess.Popen(command, env=its, stdout=log, stderr=log)

    @contextmanager
    def holds_rows(self, env: dict[str, str]) -> Iterator[None]:
        """Hold rows of the database by a transaction that ends with the block."""
        command = [*self.inside("--pid", f"--wd={ROOT}"), sys.executable, "-c", HOLD]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            try:
                yield
            finally:
                for child in psutil.Process(process.pid).children():
                    child.kill()

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Stop all its processes (SIGSTOP) for as long as the block lasts."""
        assert self.up is not None
        stopped: list[psutil.Process] = []
        # A process that is not stopped yet may start others.
        while more := {*psutil.Process(self.up.pid).children(recursive=True)} - {*stopped}:
            for process in more:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            stopped += more
        try:
            yield
        finally:
            # nsenter stops with the program that it started.
            for process in (psutil.Process(self.up.pid), *stopped):
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def end(self) -> None:
        """Cut its power: all its processes end at once."""
        self.holder.kill()
        self.holder.wait(WITHIN_S)
        if self.up is not None:
            self.up.kill()
            self.up.wait(WITHIN_S)


@dataclass
class Network:
    """A switch, and the machines on it."""

    switch: Machine
    machines: dict[str, Machine]

    def plug(self, name: str, *, is_in: bool) -> None:
        run(*self.switch.inside("ip", "link", "set", "dev", name, "up" if is_in else "down"))


@contextmanager
def network() -> Iterator[Network]:
    """Connect machines by a bridge in a namespace of its own: the switch."""
    with ExitStack() as stack:
        switch = Machine.start("switch")
        stack.callback(switch.end)
        machines = {}
        for name in (*HOSTS, "test"):
            machines[name] = Machine.start(name)
            stack.callback(machines[name].end)
        run(*switch.inside("ip", "link", "add", "bridge", "type", "bridge"))
        run(*switch.inside("ip", "link", "set", "bridge", "up"))
        for name, address in (*HOSTS.items(), ("test", f"{NETWORK}.1")):
            inside, pid = machines[name].inside(), str(machines[name].first.pid)
            peer = ("type", "veth", "peer", "name", "eth0", "netns", pid)
            run(*switch.inside("ip", "link", "add", "name", name, *peer))
            run(*switch.inside("ip", "link", "set", "dev", name, "master", "bridge", "up"))
            run(*inside, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            run(*inside, "ip", "link", "set", "dev", "eth0", "up")
        stack.enter_context(machines["test"].network())
        yield Network(switch, machines)


@dataclass
class Job:
    """A training job of three runs: each step is reported until a web server has it."""

    token: str
    losses: dict[str, object] = field(default_factory=lambda: dict.fromkeys(("x", "y", "z"), 2.0))
    step: int = 0
    _stopping: Event = field(default_factory=Event)

    def work(self) -> None:
        webs = cycle((HOSTS["a"], HOSTS["b"]))
        while not self._stopping.wait(0.3):
            lines = [
                {"kind": "step", "run": run, "worker": f"node-{run}", "n_workers": 1, "tokens": 7}
                | {"step": self.step + 1, "ended_at": time.time(), "step_s": 0.3, "loss": loss}
                for run, loss in self.losses.items()
            ]
            body = "\n".join(map(json.dumps, lines)).encode()
            while not any(
                asked(next(webs), "/api/v1/ingest/steps", self.token, body) for _ in "ab"
            ):
                if self._stopping.is_set():
                    return
            self.step += 1

    @contextmanager
    def works(self) -> Iterator[None]:
        thread = Thread(target=self.work)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()


def asked(host: str, path: str, token: str = "", body: bytes | None = None) -> str:
    """Ask the web server of a machine; empty: it did not answer well."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"http://{host}:8000{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return str(answer.read().decode()) or "-"
    except OSError:
        return ""


@dataclass
class Senders:
    """Which machine each message of a scheduler came from, as Redis saw it."""

    redis: Redis
    hosts: list[str] = field(default_factory=list)

    def watch(self) -> None:
        names = {address: name for name, address in HOSTS.items()}
        with suppress(RedisError), self.redis.monitor() as monitor:  # type: ignore[no-untyped-call]
            for command in monitor.listen():
                if command["command"].startswith("LPUSH") and "celery_beat" in command["command"]:
                    self.hosts.append(names[command["client_address"]])

    def send(self, name: str) -> bool:
        return bool(self.hosts) and self.hosts[-1] == name

    @property
    def turns(self) -> list[str]:
        """The machines in turn.

        One that is cut off while it sends a message may end that one later.
        """
        lasting = [host for host, its in groupby(self.hosts) if len(list(its)) > 1]
        return [host for host, _ in groupby(lasting)]


@dataclass
class Installation:
    network: Network
    folder: Path
    redis: Redis
    senders: Senders
    hook: ReceiverServer
    job: Job
    reader: str
    env: dict[str, str]

    def machine(self, name: str) -> Machine:
        return self.network.machines[name]

    def has_taken_over(self, name: str) -> None:
        """Wait until the scheduler of a machine sends."""
        wait_for(lambda: self.senders.send(name), within_s=WITHIN_S)

    def fires_once(self, run: str, *, of: str) -> None:
        """Let a run fail: a message about it arrives, and the other machine lists the alert."""
        self.job.losses[run] = "NaN"
        wait_for(lambda: f"firing {run}" in self.pages(), within_s=WITHIN_S)
        assert run in asked(HOSTS[of], "/api/v1/alerts?state=open", self.reader)

    def pages(self) -> list[str]:
        """Return kind and run of all messages; one that came again counts once."""
        by_key = {post.key: post.json for post in self.hook.posts}
        return [
            f"{message['kind']} {alert['run']}"
            for message in by_key.values()
            for alert in message["alerts"]
            if alert["rule"] == "loss_not_finite"
        ]

    def proves(self, *names: str) -> None:
        """Wait until each program of these machines has proved again that it works."""
        store = HotStore(self.redis)
        before = store.execute("HGETALL", KEY)
        programs = {f"{program}@{name}".encode() for program in PROGRAMS for name in names}

        def has_proved() -> bool:
            proofs = store.execute("HGETALL", KEY)
            return all(proofs.get(each) not in {None, before.get(each)} for each in programs)

        wait_for(has_proved, within_s=WITHIN_S)


def answers(redis: Redis) -> bool:
    with suppress(RedisError):
        return bool(redis.ping())
    return False


@contextmanager
def installation(folder: Path) -> Iterator[Installation]:
    with ExitStack() as stack:
        net = stack.enter_context(network())
        redis, postgres = net.machines["redis"], net.machines["postgres"]
        who = pwd.getpwnam("postgres")
        its = ("--pid", "--setuid", str(who.pw_uid), "--setgid", str(who.pw_gid))
        database = stack.enter_context(start_postgres(HOSTS["postgres"], postgres.inside(*its)))
        client = stack.enter_context(Redis.from_url(REDIS_URL, socket_timeout=None))
        senders = Senders(client)
        # It ends with Redis.
        monitor = Thread(target=senders.watch)
        stack.callback(monitor.join)
        options = ("--bind", HOSTS["redis"], "--protected-mode", "no", "--save", "")
        command = [*redis.inside("--pid", REDIS_SERVER), *options, "--dir", str(folder)]
        stack.enter_context(running(command, folder / "redis.log"))
        stack.callback(redis.end)
        wait_for(lambda: answers(client), within_s=WITHIN_S)
        monitor.start()
        hook = stack.enter_context(serve_receiver(f"{NETWORK}.1"))
        env = {
            "DATABASE_URL": database.url,
            "REDIS_URL": REDIS_URL,
            "TRNWATCH_SECRET_KEY": "only-for-this-test-" * 3,
            "TRNWATCH_ALLOWED_HOSTS": "*",
            "TRNWATCH_NOTIFY_ALLOW": f"{NETWORK}.0/24",
            "DJANGO_SETTINGS_MODULE": "fleet.settings",
            "BIND": "0.0.0.0",
        }
        script = PREPARE.format(target=hook.url)
        made = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env=environment(folder / "prepared", **env),
            check=True,
            capture_output=True,
            text=True,
        )
        job, reader = made.stdout.split()
        for name in ("a", "b"):
            stack.callback(net.machines[name].end)
            net.machines[name].start_up(folder, env)
        yield Installation(net, folder, client, senders, hook, Job(job), reader, env)


def test_work_moves_to_the_machine_that_is_left_and_nothing_is_doubled(tmp_path: Path) -> None:
    with installation(tmp_path) as all_:
        with all_.job.works():
            all_.proves("a", "b")
            wait_for(lambda: all_.senders.hosts, within_s=WITHIN_S)
            first = all_.senders.hosts[-1]
            second = "b" if first == "a" else "a"
            all_.fires_once("x", of=second)

            with all_.machine(first).holds_rows(environment(tmp_path / first, **all_.env)):
                all_.network.plug(first, is_in=False)
                all_.has_taken_over(second)
                all_.fires_once("y", of=second)
            all_.network.plug(first, is_in=True)
            all_.proves("a", "b")

            with all_.machine(second).hung():
                all_.has_taken_over(first)
            all_.proves("a", "b")

            all_.machine(first).end()
            all_.has_taken_over(second)
            all_.fires_once("z", of=second)
        # What was acknowledged counts once.
        steps = HotStore(all_.redis).totals().steps
        assert steps == dict.fromkeys(("x", "y", "z"), all_.job.step)
        assert sorted(all_.pages()) == ["firing x", "firing y", "firing z"]
        assert all_.senders.turns == [first, second, first, second]
