"""The result does not depend on how an interval is cut or which process plays it."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.blocks import FloatArray
from telemetry.simulate.inputs import FULL
from telemetry.simulate.plan import Benign, Fault, Noise, Plan
from telemetry.simulate.shard import (
    PlayedShard,
    RunClock,
    play,
    play_together,
    resume,
    start_clock,
)
from tests.telemetry.simulate.played import EPOCH, SMALL, VISION, plan_of

LENGTH_S = 420
EVENTFUL = plan_of(
    msgspec.structs.replace(VISION, compile_s=20, checkpoint_every_s=50, evaluate_every_s=170),
    shard_size=3,
    faults=[
        Fault(kind="slow_core", node="vit-01", start_s=80.3, duration_s=33.3, magnitude=1.5),
        Fault(kind="efa_loss", node="vit-00", start_s=95, duration_s=40, magnitude=0.04),
        Fault(kind="recompile", run="vit", start_s=130, duration_s=20, magnitude=7.7),
        Fault(kind="hang", node="vit-03", start_s=150.7, duration_s=11),
        Fault(kind="node_crash", node="vit-02", start_s=180.2, duration_s=20),
        Fault(kind="node_silent", node="vit-03", start_s=370, duration_s=20),
    ],
    benign=[
        Benign(kind="node_leaves", run="vit", node="vit-01", start_s=350, duration_s=50),
        Benign(kind="planned_compile", run="vit", start_s=110, duration_s=9),
    ],
)
FAST = plan_of(
    msgspec.structs.replace(SMALL, checkpoint_every_s=13),
    faults=[Fault(kind="seq_imbalance", run="bert", start_s=33.3, duration_s=50, magnitude=1)],
)

MEASURED = msgspec.structs.replace(EVENTFUL, noise=Noise(measured=True, background=True))


def in_pieces(plan: Plan, shard: str, cuts: list[int]) -> list[PlayedShard]:
    """Play a shard in pieces; the clock goes through JSON in between, as it does in life."""
    clock, pieces = start_clock(plan), []
    for cut in cuts:
        clock = msgspec.json.decode(msgspec.json.encode(clock), type=RunClock)
        pieces.append(play(plan, shard, clock, cut))
        clock = pieces[-1].clock
    return pieces


def assert_alike(whole: PlayedShard, pieces: list[PlayedShard]) -> None:
    assert pieces[-1].clock == whole.clock
    for name, values in whole.span.values.items():
        joined = np.concatenate([piece.span.values[name] for piece in pieces])
        np.testing.assert_array_equal(joined, values, err_msg=name)
    for name, values in whole.steps.phases.items():
        joined = np.concatenate([piece.steps.phases[name] for piece in pieces])
        np.testing.assert_array_equal(joined, values, err_msg=name)
    ended = np.concatenate([piece.steps.ended_at_s for piece in pieces])
    np.testing.assert_array_equal(ended, whole.steps.ended_at_s)


@pytest.mark.parametrize("plan", [EVENTFUL, FAST, MEASURED], ids=["eventful", "fast", "measured"])
@settings(max_examples=15, deadline=None)
@given(cuts=st.sets(st.integers(EPOCH, EPOCH + LENGTH_S - 1), max_size=12))
def test_cutting_the_interval_changes_nothing(plan: Plan, cuts: set[int]) -> None:
    shard, end = plan.shards[-1], EPOCH + LENGTH_S
    whole = play(plan, shard, start_clock(plan), end)

    assert_alike(whole, in_pieces(plan, shard, [*sorted(cuts), end]))


@pytest.mark.parametrize("shard_size", [1, 3])
def test_splitting_the_nodes_changes_nothing(shard_size: int) -> None:
    whole, split = (
        msgspec.structs.replace(EVENTFUL, inputs=FULL, shard_size=size) for size in (4, shard_size)
    )

    def played(plan: Plan) -> dict[str, FloatArray]:
        clock, until = start_clock(plan), EPOCH + LENGTH_S
        parts = [play(plan, shard, clock, until).span.values for shard in plan.shards]
        return {name: np.concatenate([p[name] for p in parts], axis=1) for name in parts[0]}

    wanted, got = played(whole), played(split)
    assert "execution_latency_p50_s" in got
    for name, values in wanted.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)


def test_second_by_second_is_the_same_as_at_once() -> None:
    whole = play(EVENTFUL, "vit/0", start_clock(EVENTFUL), EPOCH + LENGTH_S)

    assert_alike(whole, in_pieces(EVENTFUL, "vit/0", list(range(EPOCH, EPOCH + LENGTH_S + 1))))


def test_every_shard_brings_the_same_steps_and_clock() -> None:
    first, second = (
        play(EVENTFUL, shard, start_clock(EVENTFUL), EPOCH + LENGTH_S) for shard in EVENTFUL.shards
    )

    assert first.clock == second.clock
    np.testing.assert_array_equal(first.steps.step_s, second.steps.step_s)
    assert first.span.nodes + second.span.nodes == EVENTFUL.run.node_names


def test_a_node_reports_the_same_in_whatever_shard_it_is() -> None:
    alone = msgspec.structs.replace(EVENTFUL, shard_size=1)
    one = play(alone, "vit/2", start_clock(alone), EPOCH + LENGTH_S).span
    among = play(EVENTFUL, "vit/0", start_clock(EVENTFUL), EPOCH + LENGTH_S).span.of(["vit-02"])

    for name, values in one.values.items():
        np.testing.assert_array_equal(values, among.values[name], err_msg=name)


def test_neighbours_played_together_are_as_played_alone() -> None:
    plan = msgspec.structs.replace(EVENTFUL, shard_size=1)
    until = EPOCH + LENGTH_S
    together = play_together(plan, plan.shards[1:], start_clock(plan), until)

    for shard, span in zip(plan.shards[1:], together.spans, strict=True):
        alone = play(plan, shard, start_clock(plan), until)
        assert (span.shard, span.nodes) == (shard, alone.span.nodes)
        assert_alike(alone, [PlayedShard(together.clock, span, together.steps)])


def test_only_neighbours_in_order_are_played_together() -> None:
    plan = msgspec.structs.replace(EVENTFUL, shard_size=1)
    for shards in (("vit/0", "vit/2"), ("vit/1", "vit/0")):
        with pytest.raises(ValueError, match="not neighbours in order"):
            play_together(plan, shards, start_clock(plan), EPOCH + 1)


def test_thinning_keeps_every_tenth_tick_and_all_steps() -> None:
    whole = play(EVENTFUL, "vit/0", start_clock(EVENTFUL), EPOCH + LENGTH_S)
    thin = play(EVENTFUL, "vit/0", start_clock(EVENTFUL), EPOCH + LENGTH_S, every_s=10)
    kept = whole.span.ticks % 10 == 0

    assert thin.span.every_s == 10
    np.testing.assert_array_equal(thin.span.ticks, whole.span.ticks[kept])
    np.testing.assert_array_equal(thin.steps.step, whole.steps.step)
    for name, values in thin.span.values.items():
        np.testing.assert_array_equal(values, whole.span.values[name][kept], err_msg=name)


def test_an_interval_between_two_kept_ticks_has_none() -> None:
    clock = play(EVENTFUL, "vit/0", start_clock(EVENTFUL), EPOCH + 61).clock

    span = play(EVENTFUL, "vit/0", clock, EPOCH + 65, every_s=10).span

    assert span.values["core_utilization_ratio"].shape == (0, 3, 64)


def test_seeds_differ_and_repeat() -> None:
    first, again, other = (
        play(plan, "vit/0", start_clock(plan), EPOCH + 90).steps.step_s
        for plan in (plan_of(), plan_of(), plan_of(seed=8))
    )

    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other[: len(first)])


def test_a_clock_does_not_run_backwards() -> None:
    clock = play(EVENTFUL, "vit/0", start_clock(EVENTFUL), EPOCH + 10).clock

    with pytest.raises(ValueError, match="until: "):
        play(EVENTFUL, "vit/0", clock, EPOCH + 10)
    with pytest.raises(ValueError, match="shard: 'vit/9'"):
        play(EVENTFUL, "vit/9", clock, EPOCH + 20)


def test_after_an_outage_the_run_continues_where_it_stood() -> None:
    plan = plan_of()
    before = play(plan, "vit/0", start_clock(plan), EPOCH + 100)
    resumed = resume(before.clock, EPOCH + 5_000)
    after = play(plan, "vit/0", resumed, EPOCH + 5_060)

    assert (resumed.step, resumed.n_tokens) == (before.clock.step, before.clock.n_tokens)
    assert after.span.ticks[0] == EPOCH + 5_001
    assert after.steps.step[0] == before.steps.step[-1] + 1
    assert EPOCH + 5_000 < after.steps.ended_at_s[0] < EPOCH + 5_002


def test_an_outage_while_compiling_costs_no_progress() -> None:
    plan = plan_of(msgspec.structs.replace(VISION, compile_s=100))
    before = play(plan, "vit/0", start_clock(plan), EPOCH + 50).clock
    after = play(plan, "vit/0", resume(before, EPOCH + 5_000), EPOCH + 5_001).clock

    assert after.phase == "compiling"
    assert after.phase_progress_ratio == pytest.approx(before.phase_progress_ratio, abs=0.02)
