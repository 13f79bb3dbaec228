"""Every program that hangs is noticed, aborted with a traceback, and replaced."""

import asyncio
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from django.test import Client
from redis import Redis

from fleet.metrics.collectors import ProgramCollector, fleet_registry
from fleet.ops import fork_server, liveness, services
from fleet.ops.liveness import Pulse, Register, Watch
from fleet.ops.supervisor import Program, Supervisor
from telemetry.exporter.exposition import write_page
from telemetry.store.hot import HotStore
from tests.fleet.ops.installation import START_S, Up, manage, prepare, running, wait_for
from tests.fleet.ops.test_outages import asked
from tests.helpers import free_port, just_now

ROOT = Path(__file__).resolve().parents[3]
# Proves itself once, says its number, and then does what it was given.
ONCE = """
import os, sys, time
sys.path.insert(0, os.getcwd())
from fleet.ops.liveness import Pulse
pulse = Pulse("worker")
pulse.beat(limit_s=float(sys.argv[1]))
print(os.getpid(), flush=True)
def hang():
    while True:
        pass
def prove():
    while True:
        pulse.beat(limit_s=float(sys.argv[1]))
        time.sleep(0.1)
globals()[sys.argv[2]]()
"""


def supervise(folder: Path, what: str, *, silent_s: float, restarts: int, within_s: float) -> str:
    """Keep a program until it was started again so often; return its log."""
    program = Program("it", (sys.executable, "-c", ONCE, str(silent_s), what), kind="worker")

    async def scenario() -> None:
        kept = Supervisor(folder, env=os.environ, cwd=ROOT, say=lambda _: None)
        kept.keep([program])
        try:
            async with asyncio.timeout(within_s):
                while len(numbers(folder)) <= restarts:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pass
        await kept.stop([program])

    asyncio.run(scenario())
    return (folder / "log" / "it.log").read_text()


def numbers(folder: Path) -> list[str]:
    """Return what a program printed as its process number, once per start."""
    log = folder / "log" / "it.log"
    return [line for line in log.read_text().split("\n") if line.isdigit()] if log.exists() else []


def test_what_computes_without_end_is_aborted_with_its_traceback(tmp_path: Path) -> None:
    log = supervise(tmp_path, "hang", silent_s=0.5, restarts=1, within_s=60)

    assert len(numbers(tmp_path)) == 2
    assert "Fatal Python error: Aborted" in log
    assert "in hang" in log


def test_what_proves_itself_is_left_alone(tmp_path: Path) -> None:
    supervise(tmp_path, "prove", silent_s=4.0, restarts=1, within_s=8)

    assert len(numbers(tmp_path)) == 1


def test_a_pause_of_the_one_who_watches_is_not_counted() -> None:
    now_s = 1_000.0
    watch = Watch(os.getpid(), clock=lambda: now_s)
    watch.prove(5.0)
    now_s += 3_600.0

    assert watch.check() == ""
    for _ in range(10):
        now_s += liveness.CHECK_EVERY_S
        why = watch.check()
    assert "5 s" in why


def test_a_program_is_late_only_when_all_its_parts_are_not_heard(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(liveness.NAME, "sender-7")
    register = Register(redis_url)
    pulse = Pulse("sender", parts=("outbox", "chores"), redis_url=redis_url)
    pulse.beat("outbox")
    assert register.overdue_s(now_s=time.time()) == {}

    pulse.beat("chores")
    [(name, overdue_s)] = register.overdue_s(now_s=time.time()).items()
    assert name.startswith("sender-7@")
    assert -46 <= overdue_s < 0
    assert list(liveness.late_in(register.overdue_s(now_s=time.time() + 46))) == [name]
    assert register.overdue_s(now_s=time.time() + 46 + liveness.FORGET_S) == {}


def test_prometheus_sees_for_how_long_a_program_is_late(hot: HotStore, db: None) -> None:
    now = just_now()
    due_s = {"beat@a": -40, "worker-1@a": 20, "sender@gone": -liveness.FORGET_S - 1}
    for name, left_s in due_s.items():
        hot.execute("HSET", liveness.KEY, name, f"kind {now.timestamp() + left_s:.1f}")

    page = write_page(ProgramCollector(hot, now=now).collect()).decode()
    [*lines] = (line for line in page.splitlines() if not line.startswith("#"))

    assert [line.partition(" ")[0] for line in lines] == [
        'trnwatch_program_late_seconds{program="beat@a"}',
        'trnwatch_program_late_seconds{program="worker-1@a"}',
    ]
    assert [float(line.rpartition(" ")[2]) for line in lines] == pytest.approx([40, 0], abs=0.1)
    names = {family.name for family in fleet_registry(hot, now=now, with_nodes=False).collect()}
    assert "trnwatch_program_late_seconds" in names


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("liveness") / "data") as one:
        wait_for(lambda: one.is_whole, within_s=START_S)
        yield one


def web_servers(up: Up) -> list[psutil.Process]:
    """Return the processes that serve pages, without their parent."""
    found = [child for child in up.children if "fleet.ops.web_server" in words(child)]
    return [child for child in found if not has_servers(child)]


def has_servers(child: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return any("fleet.ops.web_server" in words(each) for each in child.children())
    return False


def words(process: psutil.Process) -> list[str]:
    """Return the command of a process; empty if it has ended."""
    try:
        return " ".join(process.cmdline()).split()
    except psutil.Error:
        return []


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("word", ["worker-1@", "beat", "send_notifications", "redis-server"])
def test_a_stopped_program_is_replaced(up: Up, word: str) -> None:
    stopped = up.child(word)
    assert stopped is not None
    stopped.suspend()

    wait_for(lambda: up.pid(word) not in {None, stopped.pid}, within_s=START_S)
    wait_for(lambda: asked(up.port, "/readyz")[0] == 200, within_s=START_S)
    assert not stopped.is_running()
    assert "is stopped (SIGSTOP): it is aborted." in up.shown


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("who", ["parent", "server"])
def test_pages_are_served_whichever_web_process_is_lost(
    up: Up, who: str, number: signal.Signals
) -> None:
    servers = web_servers(up)
    [parent] = {server.ppid() for server in servers}
    lost = psutil.Process(parent) if who == "parent" else servers[0]
    lost.send_signal(number)

    gone = [lost, *(servers if who == "parent" else ())]

    deadline_s = time.monotonic() + START_S
    while len({*web_servers(up)} - {*gone}) < 2 or any(is_alive(each) for each in gone):
        assert up.answers() == 200
        assert time.monotonic() < deadline_s
        # Asked without a pause, the answers themselves would take the cores.
        time.sleep(0.05)


@pytest.mark.skipif(not fork_server.IS_SUPPORTED, reason="Linux alone has pidfd_open")
def test_every_program_of_up_is_forked_and_lives_without_the_fork_server(up: Up) -> None:
    workers = [f"worker-{i}@" for i in range(1, 5)]
    names = ("web_server", *workers, "beat", "send_notifications")
    wait_for(lambda: up.is_whole, within_s=START_S)
    server = up.pid("fleet.ops.fork_server")
    before = {name: up.pid(name) for name in names}
    assert None not in before.values()
    # A program that loaded for itself would have done so: none has any other parent.
    assert all(psutil.Process(pid).ppid() == up.process.pid for pid in before.values())
    up.kill("fleet.ops.fork_server")
    assert {name: up.pid(name) for name in names} == before
    assert up.answers() == 200
    # A program that ends meanwhile waits for the next fork server.
    psutil.Process(before["send_notifications"]).kill()
    wait_for(
        lambda: up.pid("send_notifications") not in {None, before["send_notifications"]},
        within_s=up.recovery_s + 30,
    )
    assert up.pid("fleet.ops.fork_server") not in {None, server}
    assert services.fork_server().kind == fork_server.KIND


def test_readyz_names_a_redis_that_hangs_and_a_program_that_is_late(
    client: Client, db: None, redis_url: str
) -> None:
    with Redis.from_url(redis_url) as redis:
        redis.hset(liveness.KEY, "worker-1@elsewhere", f"worker {time.time() - 5}")
        late = client.get("/readyz")
        redis.execute_command("CLIENT", "PAUSE", 4_000)
        hung = client.get("/readyz")

    assert late.status_code == hung.status_code == 503
    assert list(late.json()["checks"]["programs"]["late_s"]) == ["worker-1@elsewhere"]
    checks = hung.json()["checks"]
    assert checks["redis"] == {"ok": False, "why": "StoreUnavailable"}
    assert checks["programs"] == {"ok": False, "why": "needs redis"}


def test_a_newer_database_is_refused_with_the_way_out(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    prepare(folder)
    with closing(sqlite3.connect(folder / "trnwatch.sqlite3")) as database:
        database.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('fleet', '9999_x', '2026')"
        )
        database.commit()

    code, shown = manage(folder, "up", PORT=str(free_port()))

    assert code == 2
    assert "newer release of trnwatch" in shown
    assert "fleet.9999_x" in shown
    assert "Traceback" not in shown

    code, shown = manage(folder, "migrate")

    assert code == 2
    assert "newer release of trnwatch" in shown
