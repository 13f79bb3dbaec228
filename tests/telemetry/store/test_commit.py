"""A tick's commit is atomic: clock, blocks and steps."""

import multiprocessing

import pytest
from redis import Redis

from telemetry.store.hot import HotStore
from tests.helpers import NOON_S, block, steps

RACERS, TICKS = 2, 200


def test_the_first_commit_starts_the_clock(hot: HotStore) -> None:
    assert hot.clock("llama/0") is None
    assert hot.commit("llama/0", before=None, after=b"1", blocks=[block()], steps=steps())
    assert hot.clock("llama/0") == b"1"
    assert len(hot.steps("llama", since_s=0)) == 10
    assert hot.last_seen()["steady"] == NOON_S


def test_the_second_writer_writes_nothing(hot: HotStore) -> None:
    hot.commit("llama/0", before=None, after=b"1", blocks=[], steps=None)

    assert not hot.commit("llama/0", before=None, after=b"2", blocks=[block()], steps=steps())
    assert hot.clock("llama/0") == b"1"
    assert hot.latest() == {}
    assert len(hot.steps("llama", since_s=0)) == 0


def test_a_long_catch_up_is_one_commit(hot: HotStore) -> None:
    missed = [block(tick=NOON_S + second) for second in range(150)]

    assert hot.commit("llama/0", before=None, after=b"1", blocks=missed, steps=None)
    assert hot.latest()["llama/0"].tick == NOON_S + 149


def test_blocks_of_another_shard_are_refused(hot: HotStore) -> None:
    with pytest.raises(ValueError, match=r"blocks: are of \['x/0'\]"):
        hot.commit("llama/0", before=None, after=b"1", blocks=[block("x/0")], steps=None)

    assert hot.clock("llama/0") is None


def race(url: str) -> None:
    """Tick as fast as possible; of each tick, one racer's commit holds."""
    with Redis.from_url(url) as client:
        hot = HotStore(client)
        while (tick := int(hot.clock("llama/0") or 0)) < TICKS:
            hot.commit(
                "llama/0",
                before=str(tick).encode() if tick else None,
                after=str(tick + 1).encode(),
                blocks=[block(tick=NOON_S + tick)],
                steps=steps(n_steps=1, first=tick, ended_at_s=NOON_S + tick),
            )
            hot.count("tried")


def test_racing_processes_neither_lose_nor_double_a_tick(hot: HotStore, redis_url: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    racers = [spawn.Process(target=race, args=(redis_url,)) for _ in range(RACERS)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()

    assert [racer.exitcode for racer in racers] == [0] * RACERS
    span = hot.window("llama/0", ["vcpu_usage_ratio"], start=NOON_S, end=NOON_S + TICKS - 1)
    assert (span.values["vcpu_usage_ratio"] > 0).all()
    assert hot.totals().tokens == {"llama": TICKS * 4096.0}
    # Each tick adds 8 EFA devices' half byte per second, once.
    assert hot.totals().nodes["efa_tx_bytes_per_s"]["steady"] == TICKS * 8 * 0.5
    assert hot.counters()["tried"] >= TICKS
