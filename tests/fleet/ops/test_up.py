"""`manage.py up` end to end: start, killed processes, clean stop."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from telemetry.store.hot import HotStore, StoreUnavailable
from tests.fleet.ops.installation import (
    ODD,
    START_S,
    Up,
    manage,
    prepare,
    running,
    simulate,
    wait_for,
)
from tests.helpers import free_port


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ODD


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("up") / ODD) as one:
        yield one


def test_ticks_continue_whatever_is_killed_and_none_is_lost_or_doubled(up: Up) -> None:
    simulate(up.folder, "pretrain-gpt")
    store = up.store()
    wait_for(lambda: "pretrain-gpt/0" in store.newest(), within_s=up.recovery_s)
    shard, first = "pretrain-gpt/0", store.newest()["pretrain-gpt/0"]

    for word in (
        "worker-1@",
        "web_server",
        "redis-server",
        "worker-2@",
        "worker-3@",
        "worker-4@",
        "beat",
    ):
        up.kill(word)
        seen = time.time()
        wait_for(partial(is_past, store, shard, seen + 1), within_s=up.recovery_s)
        assert up.answers() == 200

    last = newest(store, shard)
    span = store.window(shard, ["vcpu_usage_ratio"], start=first, end=last)
    present = np.isfinite(span.values["vcpu_usage_ratio"]).any(axis=(1, 2))
    assert present.all()
    numbers = store.steps(shard.partition("/")[0], since_s=first).step
    assert (np.diff(numbers) == 1).all()


def is_past(store: HotStore, shard: str, at_s: float) -> bool:
    """Whether a shard has been ticked since."""
    return newest(store, shard) >= at_s


def newest(store: HotStore, shard: str) -> int:
    """Return the newest tick of a shard; 0 while the store is away."""
    try:
        return store.newest().get(shard, 0)
    except StoreUnavailable:
        return 0


def test_a_second_one_states_where_the_first_is(up: Up) -> None:
    code, shown = manage(up.folder, "up")

    assert code == 2
    assert shown == (
        f"CommandError: trnwatch is already running here, at http://127.0.0.1:{up.port}.\n"
    )


def test_it_copes_with_what_a_killed_one_left_and_ctrl_c_stops_everything(folder: Path) -> None:
    with running(folder) as killed:
        left = killed.children
        killed.process.kill()

    with running(folder) as up:
        assert up.answers() == 200
        assert [child for child in left if child.is_running()] == []
        wait_for(lambda: up.is_whole, within_s=START_S)
        children = up.children

        began_s = time.monotonic()
        code = up.stop()

        assert time.monotonic() - began_s < 60
        assert code == 0
        assert up.shown.endswith("Stopping.\n")
        assert [child for child in children if child.is_running()] == []


@pytest.mark.parametrize(
    ("setting", "value", "shown"),
    [
        ("PORT", "web", "PORT must be a number from 1 to 65535, not 'web'."),
        ("BIND", "203.0.113.7", "BIND=203.0.113.7 is not an address of this machine"),
        ("REDIS_URL", "redis://127.0.0.1:1/0", "Redis does not answer; see REDIS_URL."),
        ("DATABASE_URL", "postgres://127.0.0.1:1/x", "The database cannot be used; see DATABASE"),
    ],
)
def test_a_bad_setting_is_named(folder: Path, setting: str, value: str, shown: str) -> None:
    prepare(folder)

    code, message = manage(folder, "up", **{"PORT": str(free_port()), setting: value})

    assert code == 2
    assert message.splitlines()[-1].startswith(f"CommandError: {shown}")
