"""The test helpers work."""

import sys
import urllib.request
from pathlib import Path

import pytest
from django.contrib.auth.models import Group, User
from pytest_django import Settings
from redis import Redis

from fleet.access.roles import ROLES
from fleet.models import Node, Run, Silence
from telemetry.store.hot import HotStore, open_store
from tests import warm
from tests.helpers import NOON, block, number_from, steps


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_gets_an_empty_redis(redis: Redis, turn: int) -> None:
    assert redis.dbsize() == 0
    redis.set("left behind by", turn)


@pytest.mark.parametrize("turn", [1, 2])
def test_the_roles_outlive_a_test_that_empties_the_database(
    transactional_db: None, turn: int
) -> None:
    assert set(Group.objects.values_list("name", flat=True)) == set(ROLES)
    assert User.objects.create_user(f"{turn}").pk > 0


def test_counting_begins_where_a_test_states(db: None) -> None:
    number_from(41, Silence)
    made = [
        Silence.objects.create(matchers="rule=x", reason="x", starts_at=NOON, ends_at=NOON)
        for _ in range(2)
    ]

    assert [each.pk for each in made] == [41, 42]


def test_a_step_lasts_as_long_as_its_phases() -> None:
    batch = steps(n_steps=2, compute_s=[0.9, 1.2], wait_s=[0.3, 0.0])

    assert batch.step_s.tolist() == [1.2, 1.2]
    assert batch.ended_at_s[1] - batch.ended_at_s[0] == pytest.approx(1.2)


def test_a_block_states_every_metric_of_every_node() -> None:
    assert block().reported.all()


def test_the_nodes_share_a_run(
    run: Run, steady: Node, limping: Node, silent: Node, hot_node: Node
) -> None:
    assert list(run.nodes.order_by("rank")) == [steady, limping, silent, hot_node]


def test_a_store_opened_by_the_settings_sees_the_same(hot: HotStore, settings: Settings) -> None:
    hot.count("ticks", 3)

    assert open_store(settings.REDIS_URL).counters()["ticks"] == 3


def test_everything_is_served(address: str) -> None:
    with urllib.request.urlopen(f"{address}/sign-in/") as response:
        assert response.status == 200


def test_a_program_has_the_environment_it_was_given_and_nothing_of_ours_before(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, psutil, sys\n"
        "print(sorted(os.environ), sys.argv[1:], ' '.join(psutil.Process().cmdline()))\n"
        "print([name for name in sys.modules if name.startswith(('fleet', 'telemetry'))])\n"
        "sys.exit('ended')\n"
    )

    python = Path(sys.executable).name
    done = warm.run([str(script), "a b"], env={"TRNWATCH_X": "1"})

    assert done.returncode == 1
    assert done.stdout.splitlines() == [f"['TRNWATCH_X'] ['a b'] {python} {script} a b", "[]"]
    assert done.stderr == "ended\n"


def test_programs_end_one_by_one_and_are_killed(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        first, second = (
            warm.start(["-m", "asyncio"], env={}, stdout=out, stderr=out) for _ in range(2)
        )
        sleeper = tmp_path / "sleeper.py"
        sleeper.write_text("import time\ntime.sleep(600)\n")
        third = warm.start([str(sleeper)], env={}, stdout=out, stderr=out)
    # Without input it ends by itself.
    assert [first.wait(60), second.wait(60)] == [0, 0]
    assert third.poll() is None
    third.kill()
    assert third.wait(60) == -9
