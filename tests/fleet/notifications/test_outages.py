"""PostgreSQL and Redis killed during sending: every notification arrives."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from redis import Redis

from fleet.models import Alert, Delivery, Receiver, Run, SenderHeartbeat
from tests import warm
from tests.fleet.notifications.conftest import an_alert, say
from tests.fleet.notifications.processes import ROOT, Senders, environment, senders, until
from tests.fleet.notifications.receiver_server import ReceiverServer, thinks
from tests.helpers import redis_server
from tests.postgres_server import PostgresServer, start_postgres

N_ALERTS = 24


@pytest.mark.postgresql
def test_a_database_that_is_killed_loses_no_page(
    tmp_path: Path, hook_server: ReceiverServer
) -> None:
    hook_server.answers = [thinks(0.02)]
    with start_postgres() as database, senders(tmp_path, database.url) as home:
        env = environment(tmp_path, database.url, DJANGO_SETTINGS_MODULE="fleet.settings")
        migrate = ["manage.py", "migrate", "--verbosity=0", "--skip-checks"]
        assert warm.run(migrate, env=env).returncode == 0
        with start_pager(tmp_path, env, hook_server) as pager:
            home.start()
            for n_before in (3, 8, 14):
                hook_server.until(n_before)
                database.kill()
                time.sleep(0.3)
                database.start()
            assert pager.wait(timeout=60) == 0
        committed = set((tmp_path / "committed").read_text().split())
        until(lambda: unsent(database) == "0", within_s=60)

        assert len(committed) > N_ALERTS / 2
        assert committed <= set(hook_server.keys)
        assert len(hook_server.keys) <= len(set(hook_server.keys)) + 2 * 3


def start_pager(folder: Path, env: dict[str, str], to: ReceiverServer) -> subprocess.Popen[bytes]:
    """Start a process that fires alerts, and store the keys it committed."""
    script = Path(__file__).with_name("alert_process.py")
    command = [sys.executable, str(script), to.url, str(N_ALERTS), "0.1"]
    with (folder / "committed").open("wb") as file:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=file)


def unsent(database: PostgresServer) -> str:
    """Return how many notifications wait or are on their way."""
    question = "SELECT count(*) FROM fleet_delivery WHERE state IN ('pending', 'sending')"
    command = ["psql", "-tA", "-h", str(database.folder), "-U", "trnwatch", "postgres"]
    done = subprocess.run([*command, "-c", question], capture_output=True, text=True, check=False)
    return done.stdout.strip()


@pytest.mark.django_db(transaction=True)
def test_without_redis_pages_go_out_and_the_sender_states_that_no_one_watches(
    senders: Senders, hook: Receiver, run: Run, hook_server: ReceiverServer, tmp_path: Path
) -> None:
    with redis_server(tmp_path) as url:
        with Redis.from_url(url) as redis:
            redis.hset("service:gauges", "watched_at_s", str(time.time()))
        senders.start(env={"REDIS_URL": url}, **{"blind-after": 1.5})
        say(an_alert(run), "fired")
        hook_server.until(1)
    say(an_alert(run, "node:steady", "node_silent"), "fired")

    until(lambda: blind() and len(hook_server.posts) == 3)
    assert {alert["rule"] for post in hook_server.posts for alert in post.json["alerts"]} == {
        "allreduce_share",
        "node_silent",
        "monitoring_blind",
    }
    until(lambda: set(Delivery.objects.values_list("state", flat=True)) == {"sent"})


def blind() -> bool:
    return Alert.objects.open().filter(rule="monitoring_blind").exists()


@pytest.mark.django_db(transaction=True)
def test_the_dead_mans_switch_is_held_only_while_evaluation_runs(
    senders: Senders, hook: Receiver, hook_server: ReceiverServer, tmp_path: Path
) -> None:
    with redis_server(tmp_path) as url, Redis.from_url(url) as redis:
        redis.hset("service:gauges", "watched_at_s", str(time.time()))
        senders.start(
            env={
                "REDIS_URL": url,
                "TRNWATCH_HEARTBEAT_URL": hook_server.url,
                "TRNWATCH_HEARTBEAT_EVERY_S": "0",
            }
        )
        hook_server.until(2)
        redis.hset("service:gauges", "watched_at_s", str(time.time() - 60))
        until(lambda: not SenderHeartbeat.objects.get().is_watched)
        n_beats = len(hook_server.posts)
        time.sleep(1)

    assert len(hook_server.posts) == n_beats
