"""Which programs run in which environment."""

import subprocess
from pathlib import Path

from pytest_django import Settings
from uvicorn.importer import import_from_string

from fleet.api.connections import LimitedProtocol
from fleet.celery import app
from fleet.ops import services, web_server
from fleet.ops.liveness import TABLE
from telemetry.store.hot import HotStore
from telemetry.tasks import start_tick

ROOT = Path(__file__).parents[3]


def test_the_web_server_limits_clients_that_are_not_known() -> None:
    assert "fleet.ops.web_server" in services.web(listener=3).command
    assert "-m fleet.ops.web_server" in (ROOT / "deploy/run").read_text()

    assert import_from_string(web_server.PROTOCOL) is LimitedProtocol


def test_a_program_that_is_gone_says_what_takes_its_place() -> None:
    done = subprocess.run(
        [ROOT / "deploy/run", "long-term"], check=False, capture_output=True, text=True
    )

    assert done.returncode == 2
    assert "docs/long-term.md" in done.stderr


def test_no_tick_waits_behind_anything_else(settings: Settings) -> None:
    """Nor an evaluation behind a chore; and the workers of `make up` take all queues."""
    each_second = {
        "telemetry.tasks.start_tick": "ticks",
        "telemetry.tasks.simulate_shards": "ticks",
        "fleet.tasks.assemble_scrapes": "ticks",
        "fleet.tasks.watch_fleet": "watch",
    }
    scheduled = {each["task"] for each in settings.CELERY_BEAT_SCHEDULE.values()}
    queues = {
        name: app.amqp.router.route({}, name)["queue"].name for name in {*scheduled, *each_second}
    }

    assert {name: queue for name, queue in queues.items() if queue != "celery"} == each_second
    workers = services.workers(3)
    taken = [queues.split(",") for queues in workers.values()]
    assert taken.count(["ticks"]) == 1
    assert taken.count(["watch"]) == 3
    assert {queue for each in taken for queue in each} == {*settings.CELERY_TASK_QUEUES}
    for name, its in workers.items():
        command = services.worker(name, its).command
        assert command[command.index("--queues") + 1] == its


def test_a_message_is_delivered_to_its_queue_alone(hot: HotStore) -> None:
    """Queues that share a routing key would each get it."""
    before = [hot.queue_depth(name) for name in ("ticks", "watch", "celery")]
    start_tick.apply_async(expires=0.001)
    after = [hot.queue_depth(name) for name in ("ticks", "watch", "celery")]

    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 0, 0]


def test_every_program_is_in_the_table_of_liveness() -> None:
    programs = [services.web(listener=3), services.worker("worker-1", "ticks"), services.beat()]
    programs += [services.sender(), services.fork_server()]

    assert {program.kind for program in programs} | {"redis"} == set(TABLE)
