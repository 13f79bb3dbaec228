"""When a report was: periods that fill ticks, clocks that are wrong, reports that come twice."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.ingest.neuron_monitor import Identity, Reading, Shape
from telemetry.ingest.timing import MAX_COVER_S, N_REMEMBERED, NodeClock, blocks
from tests.parts import NOON_S


def reading(period_s: float = 1.0, at_s: float | None = None, seq: int | None = None) -> Reading:
    values = {"vcpu_usage_ratio": np.array([[0.5]])}
    return Reading(Identity(), Shape(1, 2), period_s, values, at_s, seq)


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
        assert end_s == pytest.approx(NOON_S + second)

    assert clock.correction_s == pytest.approx(skew_s)


def test_a_node_never_reports_from_the_future(clock: NodeClock) -> None:
    [end_s] = clock.ends([reading(at_s=NOON_S + 10.0)], arrived_s=NOON_S)

    assert end_s == NOON_S


def test_late_is_not_skewed(clock: NodeClock) -> None:
    clock.ends([reading(at_s=NOON_S)], arrived_s=NOON_S)

    [end_s] = clock.ends([reading(at_s=NOON_S - 100.0)], arrived_s=NOON_S + 1.0)

    assert end_s == NOON_S - 100.0


def test_what_a_backlog_says_of_its_sending_tells_late_from_skewed(clock: NodeClock) -> None:
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


def test_a_numbered_report_counts_once(clock: NodeClock) -> None:
    first = reading(seq=1)

    assert not clock.is_repeated(first, b"one")
    assert clock.is_repeated(first, b"one")
    assert not clock.is_repeated(replace(first, seq=2), b"one")
    assert not clock.is_repeated(first, b"two"), "an agent that restarted numbers anew"
    assert not clock.is_repeated(replace(first, seq=None), b"one")


def test_memory_of_numbers_is_bounded(clock: NodeClock) -> None:
    for seq in range(2 * N_REMEMBERED):
        clock.is_repeated(reading(seq=seq), b"%d" % seq)

    assert len(clock.remembered) == N_REMEMBERED


def test_a_block_per_second_of_the_nodes_own_shard() -> None:
    made = blocks("real", reading(), range(NOON_S, NOON_S + 3))

    assert [block.tick for block in made] == [NOON_S, NOON_S + 1, NOON_S + 2]
    assert {(block.shard, block.nodes) for block in made} == {("node:real", ("real",))}
