"""Tasks of Celery workers, called as a worker calls them, on a real Redis."""

import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from pytest_django import Settings

from telemetry import tasks
from telemetry.blocks import Block
from telemetry.simulate.background import environment, stopped
from telemetry.simulate.plan import Fault, Noise, Plan, shard_nodes_for
from telemetry.simulate.shard import RunClock, resume, start_clock
from telemetry.store import durable
from telemetry.store.hot import HotStore, hot_store
from telemetry.store.models import MinuteRollup, RunChunk
from telemetry.store.node_state import read_sidecars, save_agent_request
from telemetry.store.reading import AGENT_RESTART_S
from telemetry.store.rollups import decode_single
from tests.helpers import LLAMA, redis_server, steps


@pytest.fixture
def now() -> int:
    return int(time.time())


@pytest.fixture
def plan(hot: HotStore, now: int) -> Plan:
    plan = Plan(run=LLAMA, seed=7, epoch_s=now - 100, shard_size=2)
    hot.put_plan("llama", msgspec.json.encode(plan))
    return plan


def ticks(hot: HotStore, shard: str, *, start: int, end: int) -> np.ndarray:
    """Return which ticks of [start, end] are there."""
    span = hot.window(shard, ["core_utilization_ratio"], start=start, end=end)
    if not span.nodes:
        return np.array([])
    heard = np.isfinite(span.values["core_utilization_ratio"]).any(axis=(1, 2))
    return span.ticks[heard]


def clock(hot: HotStore, shard: str) -> RunClock:
    return msgspec.json.decode(hot.clock(shard) or b"", type=RunClock)


def test_a_shard_is_played_up_to_the_second_asked_for(hot: HotStore, plan: Plan, now: int) -> None:
    tasks.simulate_shards([("llama", ["llama/0"])], now)

    assert clock(hot, "llama/0").tick == now
    assert list(ticks(hot, "llama/0", start=now - 9, end=now)) == list(range(now - 9, now + 1))


def test_simulated_agents_answer_requested_probes(
    hot: HotStore, now: int, settings: Settings
) -> None:
    settings.REQUEST_PROBES = True
    nodes = LLAMA.node_names[:2]
    slow = Fault(
        kind="efa_latency", node=nodes[1], device=2, start_s=0, duration_s=900, magnitude=9
    )
    plan = Plan(run=LLAMA, seed=7, epoch_s=now - 100, shard_size=2, faults=(slow,))
    hot.put_plan("llama", msgspec.json.encode(plan))
    tasks.simulate_shards([("llama", ["llama/0"])], now - 2)
    assert read_sidecars(hot, "agent", nodes) == {node: {} for node in nodes}

    request = {"id": 12, "name": "efa_latency"}
    save_agent_request(hot, nodes[1], "probe", request, wait_s=60)
    tasks.simulate_shards([("llama", ["llama/0"])], now - 1)
    answer = read_sidecars(hot, "agent", nodes)[nodes[1]]["probe"]
    tasks.simulate_shards([("llama", ["llama/0"])], now)

    assert read_sidecars(hot, "agent", nodes) == {nodes[0]: {}, nodes[1]: {"probe": answer}}
    assert answer["id"] == 12
    ports = [port["device"] for port in read_sidecars(hot, "efa", nodes)[nodes[1]]]
    assert list(answer["latency_s"]) == ports
    assert max(answer["latency_s"], key=answer["latency_s"].get) == ports[2]


def test_what_is_asked_of_no_node_is_read_of_no_node(
    hot: HotStore, now: int, settings: Settings
) -> None:
    """Requested probes cost a tick the same, however many shards and nodes there are."""

    spec = msgspec.structs.replace(LLAMA, nodes=32, global_batch=512)
    large = Plan(run=spec, seed=7, epoch_s=now - 100, shard_size=2)
    hot.put_plan("llama", msgspec.json.encode(large))

    def n_commands(second: int) -> int:
        hot.execute("CONFIG", "RESETSTAT")
        tasks.simulate_shards([("llama", list(large.shards))], second)
        stats = hot.execute("INFO", "commandstats")
        # What agents said and what they are asked; a step that ends changes neither.
        return sum(
            stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("hmget", "mget")
        )

    n_commands(now - 4)
    before = n_commands(now - 3)
    settings.REQUEST_PROBES = True
    n_commands(now - 2)

    assert n_commands(now - 1) - before <= 1


def test_simulated_agents_say_that_they_end(hot: HotStore, now: int) -> None:
    plan = Plan(run=LLAMA, seed=7, epoch_s=now, noise=Noise(background=True))
    hours = [s for s in range(now, now + 24 * 3600, 9) if stopped(plan, s, within_s=9)]
    moved = msgspec.structs.replace(plan, epoch_s=now - (hours[0] - now))
    hot.put_plan("llama", msgspec.json.encode(moved))
    before = msgspec.json.encode(resume(start_clock(moved), now - 9))
    assert hot.commit("llama/0", before=None, after=before, blocks=(), steps=None)
    tasks.simulate_shards([("llama", ["llama/0"])], now)

    assert hot.quiet_s() == dict.fromkeys(stopped(moved, now, within_s=9), AGENT_RESTART_S)
    assert hot.quiet_s()


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0])
def test_an_agent_that_said_that_it_ends_is_back_before_it_is_missed(factor: float) -> None:
    slowest_report_s = 5
    assert environment(factor)["rollout"].high + 2 * slowest_report_s < AGENT_RESTART_S


def test_a_tick_played_twice_changes_nothing(hot: HotStore, plan: Plan, now: int) -> None:
    tasks.simulate_shards([("llama", ["llama/0"])], now)
    before = (hot.clock("llama/0"), hot.totals(), hot.counters())

    tasks.simulate_shards([("llama", ["llama/0"])], now)
    tasks.simulate_shards([("llama", ["llama/0"])], now - 5)

    assert (hot.clock("llama/0"), hot.totals(), hot.counters()) == before


def test_both_shards_carry_the_same_run_and_steps_are_reported_once(
    hot: HotStore, plan: Plan, now: int
) -> None:
    tasks.simulate_shards([("llama", list(plan.shards))], now)

    steps = hot.steps("llama", since_s=0.0)
    assert clock(hot, "llama/0") == clock(hot, "llama/1")
    assert list(steps.step) == list(range(steps.step[0], steps.step[0] + len(steps)))
    assert hot.totals().tokens["llama"] == clock(hot, "llama/0").n_tokens


def test_a_short_outage_is_made_up_for_and_counted_as_late(
    hot: HotStore, plan: Plan, now: int
) -> None:
    tasks.simulate_shards([("llama", ["llama/0"])], now - 30)
    tasks.simulate_shards([("llama", ["llama/0"])], now)

    assert len(ticks(hot, "llama/0", start=now - 60, end=now)) == 61
    assert hot.counters()["ticks_late"] >= 29
    assert hot.gauges()["caught_up_at_s"] == pytest.approx(time.time(), abs=60)


def test_a_long_outage_leaves_a_gap_but_no_step_is_lost(hot: HotStore, now: int) -> None:
    plan = Plan(run=LLAMA, seed=7, epoch_s=now - 700)
    hot.put_plan("llama", msgspec.json.encode(plan))
    for until in range(now - 690, now - 300, 100):
        tasks.simulate_shards([("llama", ["llama/0"])], until)
    n_before = len(hot.steps("llama", since_s=0.0))

    tasks.simulate_shards([("llama", ["llama/0"])], now)
    tasks.simulate_shards([("llama", ["llama/0"])], now + 1)

    steps = hot.steps("llama", since_s=0.0)
    assert list(ticks(hot, "llama/0", start=now - 300, end=now - 1)) == []
    assert list(ticks(hot, "llama/0", start=now, end=now + 1)) == [now, now + 1]
    assert list(np.diff(steps.step)) == [1] * (len(steps) - 1)
    assert len(steps) >= n_before


def test_shards_of_different_clocks_are_brought_to_the_same_second(
    hot: HotStore, plan: Plan, now: int
) -> None:
    """As after the end of a worker between two commits."""
    tasks.simulate_shards([("llama", ["llama/0"])], now - 3)
    tasks.simulate_shards([("llama", ["llama/1"])], now - 8)

    tasks.simulate_shards([("llama", list(plan.shards))], now)

    assert clock(hot, "llama/0") == clock(hot, "llama/1")
    for shard in plan.shards:
        assert list(ticks(hot, shard, start=now - 9, end=now)) == list(range(now - 9, now + 1))
    steps = hot.steps("llama", since_s=0.0)
    assert list(steps.step) == list(range(steps.step[0], steps.step[0] + len(steps)))


def test_a_run_that_cannot_be_played_stops_no_other_of_its_task(
    hot: HotStore, plan: Plan, now: int
) -> None:
    other = Plan(run=msgspec.structs.replace(LLAMA, name="other"), seed=8, epoch_s=now - 100)
    hot.put_plan("other", msgspec.json.encode(other))

    with pytest.raises(ExceptionGroup) as raised:
        tasks.simulate_shards([("llama", ["llama/9"]), ("other", ["other/0"])], now)

    [error] = raised.value.exceptions
    assert "llama/9" in str(error)
    assert clock(hot, "other/0").tick == now


def test_a_task_that_has_waited_brings_its_shards_to_the_present(
    hot: HotStore, plan: Plan, now: int
) -> None:
    batch = [("llama", list(plan.shards))]
    tasks.simulate_shards(batch, now - 7)
    tasks.simulate_shards(batch)

    assert {clock(hot, shard).tick for shard in plan.shards} <= {*range(now, now + 60)}
    assert len({clock(hot, shard).tick for shard in plan.shards}) == 1
    assert len(ticks(hot, "llama/0", start=now - 7, end=now)) == 8


def test_a_task_takes_few_round_trips_however_many_shards_it_plays(
    tmp_path: Path, now: int, settings: Settings
) -> None:
    """The plan, the clocks, the commits and the counts."""
    run = msgspec.structs.replace(LLAMA, nodes=64, global_batch=1024)
    plan = Plan(run=run, seed=7, epoch_s=now - 100, shard_size=4)
    batch = [("llama", list(plan.shards))]
    # Other tests talk to the Redis that all of them share.
    with redis_server(tmp_path) as url:
        settings.REDIS_URL = url
        hot = hot_store()
        hot.put_plan("llama", msgspec.json.encode(plan))
        tasks.simulate_shards(batch, now - 1)

        def n_reads() -> int:
            return int(hot.execute("INFO", "stats")["total_reads_processed"])

        before = n_reads()
        asking = n_reads() - before
        before = n_reads()
        tasks.simulate_shards(batch, now)
        n_round_trips = n_reads() - before - asking

    assert len(plan.shards) == 16
    # A message of several commits is read in parts, one for each at most. Alone, each shard would
    # ask for its plan and its clock, commit, and count three times: 96 in all.
    assert n_round_trips <= len(plan.shards) + 8


def test_a_large_fleet_is_divided_into_few_tasks(hot: HotStore, now: int) -> None:
    sizes = {"one": 31_250, "two": 4_000} | {f"small-{i}": 4 for i in range(40)}
    plans = {
        name: Plan(
            run=msgspec.structs.replace(LLAMA, name=name, nodes=n),
            seed=7,
            epoch_s=now,
            shard_size=shard_nodes_for(n),
        )
        for name, n in sizes.items()
    }
    for name, plan in plans.items():
        hot.put_plan(name, msgspec.json.encode(plan))

    batches = tasks.batches_due(hot)

    asked = [(run, shard) for batch in batches for run, shards in batch for shard in shards]
    wanted = [(name, shard) for name, plan in plans.items() for shard in plan.shards]
    assert sorted(asked) == sorted(wanted)
    assert len(batches) <= 14
    for batch in batches:
        assert len(batch) <= tasks.BATCH_RUNS
        n_shards = [(plans[run].shard_size, len(shards)) for run, shards in batch]
        assert sum(size * n for size, n in n_shards if size > 32) <= tasks.BATCH_NODES


def test_a_run_without_a_plan_is_left_alone(hot: HotStore, now: int) -> None:
    tasks.simulate_shards([("missing", ["missing/0"])], now)

    assert hot.shards() == ()


def test_the_beat_asks_for_every_shard(hot: HotStore, plan: Plan) -> None:
    asked = tasks.batches_due(hot)

    assert asked == [[("llama", ["llama/0", "llama/1"])]]


@pytest.mark.django_db
def test_minutes_are_rolled_up_once_however_often_asked(
    hot: HotStore, plan: Plan, now: int
) -> None:
    for until in range(now - 90, now + 1, 90):
        tasks.simulate_shards([("llama", ["llama/0"])], until)

    tasks.roll_up()
    n_rows = MinuteRollup.objects.count()
    tasks.roll_up()

    assert n_rows > 0
    assert MinuteRollup.objects.count() == n_rows


@pytest.mark.django_db
def test_a_minute_is_read_once(hot: HotStore, now: int) -> None:
    minute = now // 60 * 60 - 120
    values = {"vcpu_usage_ratio": np.array([[0.5]])}
    hot.append([Block("node:a", tick, ("a",), values) for tick in range(minute, minute + 60)])
    tasks.roll_up()
    assert MinuteRollup.objects.get().minute == minute

    MinuteRollup.objects.all().delete()
    tasks.roll_up()

    assert not MinuteRollup.objects.exists()


@pytest.mark.django_db
def test_what_comes_after_its_minute_was_rolled_up_still_counts(hot: HotStore, now: int) -> None:
    minute = now // 60 * 60 - 120
    half, whole = ({"vcpu_usage_ratio": np.array([[value]])} for value in (0.5, 1.0))
    hot.append([Block("node:a", tick, ("a",), half) for tick in range(minute, minute + 30)])
    tasks.roll_up()

    late = [Block("node:a", tick, ("a",), whole) for tick in range(minute + 30, minute + 60)]
    hot.merge(late)
    tasks.roll_up()
    assert mean_of(minute) == 0.5
    assert durable.fold_late(hot, now_s=now + durable.QUIET_S + 60) == 1
    assert mean_of(minute) == pytest.approx(0.75, abs=0.01)

    hot.remove(late)
    assert durable.fold_late(hot, now_s=now + durable.QUIET_S + 60) == 1
    assert mean_of(minute) == 0.5
    assert durable.fold_late(hot, now_s=now + durable.QUIET_S + 60) == 0


def mean_of(minute: int) -> float:
    row = MinuteRollup.objects.get(minute=minute)
    [found] = decode_single(row.shard, [(minute, bytes(row.layout), bytes(row.data))])
    return float(found.values["vcpu_usage_ratio"][0, 0, 1])


@pytest.mark.django_db
def test_steps_that_come_after_their_minute_was_rolled_up_are_stored(
    hot: HotStore, now: int
) -> None:
    minute = now // 60 * 60 - 120
    hot.append_steps(steps(ended_at_s=minute + 20, compute_s=1.0, n_steps=5))
    tasks.roll_up()
    assert n_steps_kept() == 5

    hot.append_steps(steps(first=6, ended_at_s=minute + 30, compute_s=1.0, n_steps=3))
    # A worker that ends before it has stored them takes them with it, and the next one again.
    assert durable.take_late_steps(hot) == {"llama": minute}
    tasks.roll_up()

    assert n_steps_kept() == 8
    assert durable.take_late_steps(hot) == {}


def n_steps_kept() -> int:
    return sum(RunChunk.objects.values_list("n_steps", flat=True))


def test_minutes_that_an_outage_kept_from_being_rolled_up_are_when_it_is_over(
    hot: HotStore, db: None
) -> None:
    """Ten minutes ago everything stopped, just before the last minute was written down."""
    minute = int(time.time()) // 60 * 60 - 10 * 60
    values = {"vcpu_usage_ratio": np.array([[0.5]])}
    hot.append([Block("node:a", tick, ("a",), values) for tick in range(minute, minute + 60)])
    tasks.roll_up()
    assert not MinuteRollup.objects.exists()

    hot.execute("SET", tasks.ROLLED_UP_TO, minute)
    tasks.roll_up()

    assert MinuteRollup.objects.get().minute == minute
