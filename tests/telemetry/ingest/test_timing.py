"""Report times: periods to ticks, wrong clocks, duplicates."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from telemetry.blocks import Block, join_partial
from telemetry.ingest.neuron_monitor import NodeIdentity, Reading, Shape
from telemetry.ingest.timing import (
    HEALTH,
    HOLD_S,
    MAX_COVER_S,
    MIN_AGREEING_S,
    N_REMEMBERED,
    OFFSET_KEEP_S,
    POWER,
    BlockBuilder,
    NodeClock,
)
from tests.helpers import NOON_S
from tests.telemetry.ingest.restarts import requests


def reading(period_s: float = 1.0, at_s: float | None = None, seq: int | None = None) -> Reading:
    values = {"vcpu_usage_ratio": np.array([[0.5]])}
    return Reading(NodeIdentity(), Shape(1, 2), period_s, values, at_s, seq)


@pytest.fixture
def clock() -> NodeClock:
    return NodeClock()


def test_a_report_is_of_the_second_it_arrives_in(clock: NodeClock) -> None:
    [end_s] = clock.ends([reading()], arrived_s=NOON_S + 0.7)

    assert list(clock.ticks(end_s, 1.0)) == [NOON_S]


def test_reports_that_arrive_together_lie_end_to_end(clock: NodeClock) -> None:
    ends = clock.ends([reading(1.0), reading(2.0), reading(5.0)], arrived_s=NOON_S)

    assert ends == [NOON_S - 7.0, NOON_S - 5.0, NOON_S]


def test_a_report_of_five_seconds_fills_five_ticks(clock: NodeClock) -> None:
    first = clock.ticks(NOON_S + 0.3, 5.0002)
    second = clock.ticks(NOON_S + 5.3, 5.0002)

    assert list(second) == list(range(NOON_S + 1, NOON_S + 6))
    assert set(range(NOON_S - 4, NOON_S + 1)) <= set(first)


@pytest.mark.parametrize("period_s", [0.9, 1.0, 1.0002, 1.37, 2.5, 5.0, 5.0002, 15.0])
def test_no_second_is_left_out_however_arrival_drifts(clock: NodeClock, period_s: float) -> None:
    rng = np.random.default_rng(7)
    arrivals = NOON_S + np.arange(1, 200) * period_s + rng.uniform(0, 0.4, 199)

    seen = {tick for arrived_s in arrivals for tick in clock.ticks(arrived_s, period_s)}

    assert seen >= set(range(NOON_S + 1, int(arrivals[-1])))


def test_a_real_gap_stays_a_gap(clock: NodeClock) -> None:
    clock.ticks(NOON_S, 1.0)

    assert list(clock.ticks(NOON_S + 30.0, 1.0)) == [NOON_S + 30]


def test_a_report_covers_no_more_than_a_minute(clock: NodeClock) -> None:
    assert len(clock.ticks(NOON_S, 3600.0)) == MAX_COVER_S


def test_reports_faster_than_ticks_still_land_on_one(clock: NodeClock) -> None:
    ticks = [list(clock.ticks(NOON_S + 0.25 * i, 0.25)) for i in range(4)]

    assert ticks == [[NOON_S]] * 4


def test_the_nodes_own_time_is_believed_while_its_clock_is_right(clock: NodeClock) -> None:
    assert clock.ends([reading(at_s=NOON_S - 3.0)], arrived_s=NOON_S) == [NOON_S - 3.0]
    assert clock.correction_s == 0.0


@pytest.mark.parametrize("skew_s", [-7200.0, -60.0, -31.0, 31.0, 120.0, 86_400.0])
def test_a_clock_that_is_wrong_is_corrected(clock: NodeClock, skew_s: float) -> None:
    for second in range(5):
        at_s = NOON_S + second - skew_s
        [end_s] = clock.ends([reading(at_s=at_s)], arrived_s=NOON_S + second)
        assert end_s == pytest.approx(NOON_S + second, abs=0.001, rel=0)

    assert clock.correction_s == pytest.approx(skew_s)


def test_a_node_never_reports_from_the_future(clock: NodeClock) -> None:
    [end_s] = clock.ends([reading(at_s=NOON_S + 10.0)], arrived_s=NOON_S)

    assert end_s == NOON_S


def test_late_is_not_skewed(clock: NodeClock) -> None:
    clock.ends([reading(at_s=NOON_S)], arrived_s=NOON_S)

    [end_s] = clock.ends([reading(at_s=NOON_S - 100.0)], arrived_s=NOON_S + 1.0)

    assert end_s == NOON_S - 100.0


def test_what_a_backlog_states_of_its_sending_reports_late_from_skewed(clock: NodeClock) -> None:
    backlog = [reading(at_s=NOON_S - 300.0), reading(at_s=NOON_S - 200.0)]

    assert clock.ends(backlog, arrived_s=NOON_S, sent_s=NOON_S) == [NOON_S - 300, NOON_S - 200]


def test_a_backlog_from_a_wrong_clock_is_corrected_as_a_whole(clock: NodeClock) -> None:
    backlog = [reading(at_s=NOON_S + 700.0), reading(at_s=NOON_S + 900.0)]

    ends = clock.ends(backlog, arrived_s=NOON_S, sent_s=NOON_S + 1000.0)

    assert ends == [NOON_S - 300.0, NOON_S - 100.0]


def test_a_clock_that_was_set_right_is_believed_again(clock: NodeClock) -> None:
    clock.ends([reading(at_s=NOON_S - 600.0)], arrived_s=NOON_S)
    assert clock.correction_s == 600.0

    [end_s] = clock.ends([reading(at_s=NOON_S + 1.0)], arrived_s=NOON_S + 1.0)

    assert (end_s, clock.correction_s) == (NOON_S + 1.0, 0.0)


def sent(
    clock: NodeClock, at_s: float, *, skew_s: float = 0.0, wait_s: float = 0.02, up_s: float = 5e3
) -> float:
    """Send a report made at a true moment; gives how far from it the report was placed."""
    shown_s = at_s - skew_s
    [end_s] = clock.ends(
        [reading(at_s=shown_s)],
        sent_s=shown_s + 0.1,
        arrived_s=at_s + 0.1 + wait_s,
        up_s=up_s + at_s - NOON_S,
    )
    return end_s - at_s


def test_a_first_request_that_waited_is_not_skewed(clock: NodeClock) -> None:
    ends = clock.ends([reading(at_s=1000.5)], sent_s=1000.6, arrived_s=1032.6, up_s=5000)

    assert ends == [1000.5]
    assert clock.correction_s == 0.0


@pytest.mark.parametrize("skew_s", [31.5, 45.0, 120.0, 290.0])
def test_a_new_clock_that_is_behind_is_believed_when_requests_agree(
    clock: NodeClock, skew_s: float
) -> None:
    placed = [sent(clock, NOON_S + s, skew_s=skew_s) for s in range(20)]

    assert placed[0] == pytest.approx(-skew_s), "one request alone cannot tell"
    assert placed[int(MIN_AGREEING_S) + 1 :] == pytest.approx([0.02] * 9)


@pytest.mark.parametrize("skew_s", [-86_400.0, -40.0, -2.5, 301.0, 7_200.0])
def test_what_cannot_be_waiting_is_believed_at_once(clock: NodeClock, skew_s: float) -> None:
    assert sent(clock, NOON_S, skew_s=skew_s) == pytest.approx(0.02)


def test_a_bound_is_not_dropped_because_of_its_age(clock: NodeClock) -> None:
    sent(clock, NOON_S)
    # Nothing for longer than delays are remembered, then requests that waited.
    later_s = NOON_S + 2.5 * OFFSET_KEEP_S

    assert [sent(clock, later_s + s, wait_s=40.0 - s) for s in range(5)] == pytest.approx([0] * 5)


def test_a_clock_that_falls_behind_is_believed_when_nothing_states_otherwise(
    clock: NodeClock,
) -> None:
    """A sender without an uptime: its clock is inferred over time."""
    sent(clock, NOON_S)
    seconds = range(1, int(2 * OFFSET_KEEP_S) + 10, 5)
    for s in seconds:
        shown_s = NOON_S + s - 60.0
        [end_s] = clock.ends([reading(at_s=shown_s)], sent_s=shown_s, arrived_s=NOON_S + s + 0.02)

    assert end_s == pytest.approx(NOON_S + seconds[-1], abs=0.1)


@pytest.mark.parametrize("up_for_s", [30.0, 90.0, 1e6])
def test_a_machine_that_booted_again_is_no_clock_that_was_set(
    clock: NodeClock, up_for_s: float
) -> None:
    sent(clock, NOON_S, up_s=up_for_s)

    # It was away for 80 s and is up for 20.
    assert sent(clock, NOON_S + 100.0, up_s=20.0 - 100.0) == pytest.approx(0.0)
    assert clock.correction_s == 0.0


def test_what_was_known_of_a_clock_outlasts_the_process(clock: NodeClock) -> None:
    for s in range(15):
        sent(clock, NOON_S + s, skew_s=90.0)
    successor = NodeClock()
    successor.offset.restore(clock.offset.dump(), NOON_S + 60.0)

    assert sent(successor, NOON_S + 20.0, skew_s=90.0, wait_s=40.0) == pytest.approx(0.02)
    # During the outage the clock was corrected; the machine stayed up.
    successor = NodeClock()
    successor.offset.restore(clock.offset.dump(), NOON_S + 60.0)
    assert sent(successor, NOON_S + 30.0, wait_s=30.0) == pytest.approx(0.0)
    assert NodeClock().offset.dump() == ""


def test_what_was_written_by_a_clock_of_ours_that_was_wrong_is_dropped(clock: NodeClock) -> None:
    sent(clock, NOON_S, skew_s=-3600.0)
    successor = NodeClock()
    successor.offset.restore(clock.offset.dump(), NOON_S)

    assert sent(successor, NOON_S + 10.0) == pytest.approx(0.0)


STOPS = {"stop_s": st.floats(1.0, 30.0), "stopped_for_s": st.floats(1.0, 250.0)}


def replayed(
    clocks: tuple[NodeClock, NodeClock],
    *,
    skew_s: float,
    stop_s: float,
    stopped_for_s: float,
    seed: int,
) -> Iterator[tuple[float, float]]:
    """Yield each report's true moment and where it was placed; a successor takes over."""
    rng = np.random.default_rng(seed)
    played = requests(
        lambda: float(rng.uniform(0.001, 1.5)),
        stop_s=stop_s,
        stopped_for_s=stopped_for_s,
        until_s=stop_s + stopped_for_s + 60.0,
    )
    for one in played:
        clock = clocks[one.arrived_s >= stop_s + stopped_for_s]
        ends = clock.ends(
            [reading(at_s=NOON_S + made_s - skew_s) for made_s in one.made_s],
            sent_s=NOON_S + one.sent_s - skew_s,
            arrived_s=NOON_S + one.arrived_s,
            up_s=9_000.0 + one.sent_s,
        )
        yield from zip((NOON_S + made_s for made_s in one.made_s), ends, strict=True)


@given(skew_s=st.floats(-0.4, 20.0), seed=st.integers(0, 2**32 - 1), **STOPS)
def test_a_new_process_moves_nothing_of_a_clock_that_is_right(
    skew_s: float, seed: int, stop_s: float, stopped_for_s: float
) -> None:
    clocks = (NodeClock(), NodeClock())
    found = list(
        replayed(clocks, skew_s=skew_s, stop_s=stop_s, stopped_for_s=stopped_for_s, seed=seed)
    )

    assert {made_s for made_s, _ in found} >= set(
        range(NOON_S, NOON_S + int(stop_s + stopped_for_s))
    )
    assert max(abs(end_s - made_s + skew_s) for made_s, end_s in found) < 0.001


@given(
    skew_s=st.one_of(st.floats(-7_200.0, -4.0), st.floats(32.0, 7_200.0)),
    seed=st.integers(0, 2**32 - 1),
    **STOPS,
)
def test_a_new_process_that_recalls_a_wrong_clock_corrects_what_waited(
    skew_s: float, seed: int, stop_s: float, stopped_for_s: float
) -> None:
    before, after = NodeClock(), NodeClock()
    for s in range(-20, 0):
        sent(before, NOON_S + s, skew_s=skew_s, wait_s=0.5, up_s=9_000.0)
    after.offset.restore(before.offset.dump(), NOON_S + stop_s + stopped_for_s)
    found = replayed(
        (before, after), skew_s=skew_s, stop_s=stop_s, stopped_for_s=stopped_for_s, seed=seed
    )

    assert max(abs(end_s - made_s) for made_s, end_s in found) <= 1.5


def test_a_numbered_report_counts_once(clock: NodeClock) -> None:
    first = reading(seq=1)

    assert not clock.is_repeated(first, b"one")
    assert clock.is_repeated(first, b"one")
    assert not clock.is_repeated(replace(first, seq=2), b"one")
    assert not clock.is_repeated(first, b"two"), "a restarted agent starts its numbers again"
    assert not clock.is_repeated(replace(first, seq=None), b"one")


def test_memory_of_numbers_is_bounded(clock: NodeClock) -> None:
    for seq in range(2 * N_REMEMBERED):
        clock.is_repeated(reading(seq=seq), b"%d" % seq)

    assert len(clock.remembered) == N_REMEMBERED


def test_a_block_per_second_of_the_nodes_own_shard() -> None:
    made = BlockBuilder().blocks("real", reading(3.0), NodeClock(), NOON_S)

    assert [block.tick for block in made] == [NOON_S - 2, NOON_S - 1, NOON_S]
    assert {(block.shard, block.nodes) for block in made} == {("node:real", ("real",))}


def measured(*power: float, at_s: tuple[float, ...] = ()) -> Reading:
    """Return a reading with the power of each device."""
    plain = replace(reading(), shape=Shape(len(power), 2 * len(power)))
    return replace(plain, values={**plain.values, POWER: np.array([power])}, power_at_s=at_s)


def held_at(
    builder: BlockBuilder, end_s: float, sent: Reading | None = None
) -> list[float] | None:
    """Return the power that is stored of a report."""
    sent = sent or replace(reading(), shape=Shape(2, 4))
    [block] = builder.blocks("real", sent, NodeClock(), end_s)
    return block.values[POWER][0].tolist() if POWER in block.values else None


def test_power_stands_until_the_next_and_not_much_longer() -> None:
    builder, nan = BlockBuilder(), math.nan
    assert held_at(builder, NOON_S) is None

    first = held_at(builder, NOON_S + 5, measured(0.5, 0.25, at_s=(NOON_S + 1, NOON_S + 2)))
    assert first == [0.5, 0.25]
    assert held_at(builder, NOON_S + 30) == [0.5, 0.25]
    again = held_at(builder, NOON_S + 65, measured(0.75, nan, at_s=(NOON_S + 61, nan)))
    assert again == [0.75, 0.25]
    assert held_at(builder, NOON_S + 2 + HOLD_S) == [0.75, 0.25]
    np.testing.assert_equal(held_at(builder, NOON_S + 3 + HOLD_S), [0.75, nan])
    assert held_at(builder, NOON_S + 62 + HOLD_S) is None


def test_power_that_was_measured_long_ago_is_not_stored() -> None:
    sent = measured(0.5, 0.5, at_s=(NOON_S - 80, NOON_S - 90))

    assert held_at(BlockBuilder(), NOON_S, sent) is None


def test_a_late_line_does_not_replace_newer_power() -> None:
    builder = BlockBuilder()
    held_at(builder, NOON_S + 60, measured(0.5, 0.5, at_s=(NOON_S + 60, NOON_S + 60)))

    late = held_at(builder, NOON_S + 5, measured(0.1, 0.1, at_s=(NOON_S, NOON_S)))

    assert late == [0.1, 0.1]
    assert held_at(builder, NOON_S + 61) == [0.5, 0.5]


def test_power_without_a_time_is_of_its_report() -> None:
    builder = BlockBuilder()

    assert held_at(builder, NOON_S, measured(0.5, 0.5)) == [0.5, 0.5]
    assert held_at(builder, NOON_S + HOLD_S) == [0.5, 0.5]


def test_the_health_of_devices_stands_until_the_next_report_of_it() -> None:
    builder, plain = BlockBuilder(), replace(reading(), shape=Shape(2, 4))
    sick = replace(plain, values={**plain.values, HEALTH: np.array([[0.0, 1.0]])})

    def states(end_s: float, sent: Reading = plain) -> list[float] | None:
        [block] = builder.blocks("real", sent, NodeClock(), end_s)
        return block.values[HEALTH][0].tolist() if HEALTH in block.values else None

    assert states(NOON_S - 1) is None
    assert states(NOON_S, sick) == [0, 1]
    assert states(NOON_S + HOLD_S) == [0, 1]
    assert states(NOON_S + HOLD_S + 1) is None


def test_power_of_a_wrong_clock_is_corrected() -> None:
    clock, builder = NodeClock(), BlockBuilder()
    [end_s] = clock.ends([reading(at_s=NOON_S - 3600)], arrived_s=NOON_S)
    sent = measured(0.5, at_s=(NOON_S - 3610,))

    [block] = builder.blocks("real", sent, clock, end_s)

    assert block.values[POWER].tolist() == [[0.5]]
    assert builder.power.at_s.tolist() == [NOON_S - 10]


@pytest.mark.parametrize("period_s", [0.062, 0.25, 0.5, 0.75])
def test_counts_of_part_of_a_second_are_neither_stretched_nor_lost(period_s: float) -> None:
    clock, builder = NodeClock(), BlockBuilder()
    n_reports, blocks = 40, list[Block]()
    for number in range(n_reports):
        end_s = NOON_S + 0.01 + number * max(period_s, 0.4)
        sent = replace(reading(period_s), values={"executions_completed_per_s": np.array([[3.0]])})
        blocks += builder.blocks("real", sent, clock, end_s)
    joined = join_partial(blocks)

    stored = {b.tick: b.values["executions_completed_per_s"][0, 0] for b in joined}
    assert len(stored) == len(joined)
    assert sum(stored.values()) == pytest.approx(3.0 * n_reports)
    assert max(stored.values()) <= 9.0, "a second has at most the three reports that ended in it"


def test_a_repeated_line_is_not_added_to_its_second() -> None:
    clock, builder = NodeClock(), BlockBuilder()
    sent = replace(reading(0.062), values={"executions_completed_per_s": np.array([[3.0]])})

    flags = [
        block.is_partial
        for _ in range(2)
        for block in builder.blocks("real", sent, clock, NOON_S + 0.5)
    ]

    assert flags == [True, False]
