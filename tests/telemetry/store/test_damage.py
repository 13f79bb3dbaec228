"""Damaged values in Redis: unknown and counted, never other values, never an exception."""

import logging
from collections.abc import Iterator

import numpy as np
import pytest
from redis import Redis

from telemetry.blocks import Block
from telemetry.steps import PHASES, StepBatch
from telemetry.store.durable import LAYOUT, QUIET_S, fold_late, save_late
from telemetry.store.hot import HotStore
from telemetry.store.models import MinuteRollup
from telemetry.store.packing import (
    CHECK_BYTES,
    DIGEST_BYTES,
    PackedLayout,
    digest,
    pack,
    pack_steps,
    read_layout,
)
from tests.helpers import NOON_S, block, steps

MINUTE = f"hot:llama/0:{NOON_S}"
STEPS = f"steps:llama:{NOON_S}"
HOUR_S = 3600


def damaged(content: bytes) -> Iterator[bytes]:
    """Yield the content with each of its bytes wrong, by one bit and by all."""
    for i, byte in enumerate(content):
        for flip in (1 << i % 8, 0xFF):
            yield content[:i] + bytes([byte ^ flip]) + content[i + 1 :]


def small() -> Block:
    """Return a block with sections that are compressed and some that are not."""
    rng = np.random.default_rng(1)
    return Block(
        "llama/0",
        NOON_S,
        ("steady", "limping"),
        {
            "vcpu_usage_ratio": np.array([[0.25], [0.75]]),
            "core_utilization_ratio": rng.uniform(0, 1, (2, 64)),
            "core_flops_per_s": rng.uniform(1e12, 9e13, (2, 64)),
        },
    )


def halves() -> tuple[Block, Block]:
    """Return the small block as two deliveries of its second."""
    whole, last = small(), "core_flops_per_s"
    rest = {name: values for name, values in whole.values.items() if name != last}
    return (
        Block(whole.shard, whole.tick, whole.nodes, rest),
        Block(whole.shard, whole.tick, whole.nodes, {last: whole.values[last]}),
    )


def as_before(block_: Block) -> tuple[PackedLayout, bytes]:
    """Return a block as code without checks stored it."""
    layout, blob = pack(block_)
    older = read_layout(layout.encoded.rstrip())
    return older, older.digest + blob[DIGEST_BYTES:-CHECK_BYTES]


def test_any_wrong_byte_of_a_block_leaves_a_gap_and_counts(hot: HotStore, redis: Redis) -> None:
    hot.append([small()])
    [second] = redis.hkeys(MINUTE)
    blob = redis.hget(MINUTE, second)
    assert isinstance(blob, bytes)

    for n, wrong in enumerate(damaged(blob), 1):
        redis.hset(MINUTE, second, wrong)
        assert hot.latest() == {}
        assert hot.latest_packed() == {}
        assert hot.counters()["damaged_blocks"] == n
    span = hot.window("llama/0", ("core_flops_per_s",), start=NOON_S, end=NOON_S)
    assert span.values["core_flops_per_s"].size == 0

    redis.hset(MINUTE, second, blob)
    np.testing.assert_allclose(
        hot.latest()["llama/0"].values["core_flops_per_s"],
        small().values["core_flops_per_s"],
        rtol=1 / 256,
    )


def test_a_damaged_second_leaves_the_others(
    hot: HotStore, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    hot.append([block(tick=NOON_S + i) for i in range(3)])
    redis.hset(MINUTE, "1", b"\0" * 100)

    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            span = hot.window("llama/0", ("vcpu_usage_ratio",), start=NOON_S, end=NOON_S + 2)

    known = np.isfinite(span.values["vcpu_usage_ratio"]).all(axis=(1, 2))
    assert known.tolist() == [True, False, True]
    assert hot.counters()["damaged_blocks"] == 1
    assert [record.getMessage()[:50] for record in caplog.records] == [
        "Redis: 1 stored blocks of llama/0 are damaged and "
    ]


def test_two_readers_count_it_once(hot: HotStore, redis: Redis) -> None:
    hot.append([block()])
    redis.hset(MINUTE, "0", b"\0" * 100)

    for reader in (hot, HotStore(redis)):
        assert reader.latest() == {}

    assert hot.counters()["damaged_blocks"] == 1


def test_nothing_is_added_to_a_damaged_second(hot: HotStore, redis: Redis) -> None:
    first, second = halves()
    hot.merge([first])
    blob = redis.hget(MINUTE, "0")
    assert isinstance(blob, bytes)
    redis.hset(MINUTE, "0", blob[:-10] + b"\0" * 10)

    assert hot.merge([second]) == 0
    assert hot.latest() == {}

    redis.hset(MINUTE, "0", blob)
    assert hot.merge([second]) == 1
    assert hot.latest()["llama/0"].values.keys() == small().values.keys()


def test_any_wrong_byte_of_a_layout_leaves_a_gap_until_it_is_stored_again(
    hot: HotStore, redis: Redis
) -> None:
    hot.append([small()])
    [key] = redis.scan_iter("hot:layout:*")
    encoded = redis.get(key)
    assert isinstance(encoded, bytes)

    for wrong in damaged(encoded):
        redis.set(key, wrong)
        assert HotStore(redis).latest() == {}
        assert not redis.exists(key)

    assert hot.counters()["damaged_blocks"] == 1
    later = small()
    hot.append([Block(later.shard, NOON_S + 1, later.nodes, later.values)])
    assert HotStore(redis).latest()["llama/0"].nodes == later.nodes


def test_any_wrong_byte_of_a_step_leaves_it_out_and_counts(hot: HotStore, redis: Redis) -> None:
    hot.append_steps(steps(n_steps=3, compute_s=[0.1, 0.3]))
    record = redis.lindex(STEPS, 1)
    assert isinstance(record, bytes)

    for n, wrong in enumerate(damaged(record), 1):
        hot.execute("LSET", STEPS, 1, wrong)
        found = hot.steps("llama", since_s=0)
        assert found.step.tolist() == [1, 3]
        assert found.phases["compute_s"].tolist() == [[0.1, 0.3], [0.1, 0.3]]
        assert hot.counters()["damaged_steps"] == n

    hot.execute("LSET", STEPS, 1, record)
    assert hot.steps("llama", since_s=0).step.tolist() == [1, 2, 3]


def test_damaged_names_of_workers_leave_their_steps_out(hot: HotStore, redis: Redis) -> None:
    hot.append_steps(steps(n_steps=2, compute_s=1.0))
    [key] = redis.scan_iter("hot:layout:*")
    redis.set(key, b'["steady","other"]')

    assert len(hot.steps("llama", since_s=0)) == 0
    assert hot.counters()["damaged_steps"] == 2


def test_an_amended_step_replaces_the_stored_one(hot: HotStore) -> None:
    hot.append_steps(steps(workers=["a"], n_steps=2, compute_s=1.0))
    hot.append_steps(steps(workers=["a", "b"], n_steps=2, compute_s=1.0), amends=True)

    assert hot.steps("llama", since_s=0).phases["compute_s"].tolist() == [[1, 1], [1, 1]]


def test_blocks_of_earlier_code_are_read_and_merged(hot: HotStore, redis: Redis) -> None:
    first, second = halves()
    hot.append([first])
    layout, blob = as_before(first)
    redis.hset(MINUTE, "0", blob)
    redis.set(b"hot:layout:" + layout.digest, layout.encoded)
    assert hot.latest()["llama/0"].values.keys() == first.values.keys()

    assert hot.merge([second]) == 1

    found = hot.latest()["llama/0"].values
    np.testing.assert_allclose(
        found["core_flops_per_s"], second.values["core_flops_per_s"], rtol=1 / 256
    )
    np.testing.assert_allclose(found["vcpu_usage_ratio"], [[0.25], [0.75]], atol=1 / 254)
    assert "damaged_blocks" not in hot.counters()


@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_steps_of_earlier_code_are_read_beside_new_ones(
    hot: HotStore, redis: Redis, n_workers: int
) -> None:
    batch: StepBatch = steps(workers=["a", "b", "c"][:n_workers], n_steps=3, compute_s=1.0)
    hot.append_steps(batch)
    _, _, records = pack_steps(batch)
    hot.execute("LSET", STEPS, 1, records[1][:-CHECK_BYTES])

    found = hot.steps("llama", since_s=0)

    assert found.step.tolist() == [1, 2, 3]
    for phase in PHASES:
        np.testing.assert_array_equal(found.phases[phase], batch.phases[phase])
    assert "damaged_steps" not in hot.counters()


@pytest.mark.django_db
@pytest.mark.parametrize("what", ["block", "layout"])
def test_a_damaged_late_block_does_not_stop_its_minute(
    hot: HotStore, redis: Redis, what: str
) -> None:
    start = NOON_S - 2 * HOUR_S
    late = [block(tick=start + i, fill=0.5) for i in range(2)]
    other = Block("llama/0", start + 2, ("else",), {"vcpu_usage_ratio": np.array([[0.5]])})
    save_late(hot, [*late, other], now_s=NOON_S)
    key = f"late:llama/0:{start}"
    name = LAYOUT + pack(other)[0].digest if what == "layout" else None
    field = name or next(
        f for f in hot.execute("HKEYS", key) if f.startswith(b"%d:" % (start + 2))
    )
    content = redis.hget(key, field)
    assert isinstance(content, bytes)
    redis.hset(key, field, content[:-6] + bytes([content[-6] ^ 1]) + content[-5:])

    assert fold_late(hot, now_s=NOON_S + QUIET_S) == 1

    row = MinuteRollup.objects.get(minute=start)
    assert read_layout(bytes(row.layout)).nodes == late[0].nodes
    assert hot.counters()["damaged_blocks"] == 1
    assert not redis.exists(key)


def test_a_layout_is_named_by_its_content() -> None:
    layout, blob = pack(small())

    assert blob[:DIGEST_BYTES] == layout.digest == digest(layout.encoded)
