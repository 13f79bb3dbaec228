"""The writer sends every settled second and minute, in order."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import cramjam
import numpy as np
import pytest

from telemetry.long_term.remote_write import StoppedError
from telemetry.long_term.writer import MINUTES, SECONDS, Position
from telemetry.store import durable
from telemetry.store.durable import queue_rewrites
from telemetry.store.hot import HotStore
from telemetry.store.models import LongTermPosition
from telemetry.write_request import WriteRequest
from tests.helpers import NOON, NOON_S, block
from tests.long_term_stores import Moody, moody_server
from tests.telemetry.long_term.writers import write_all, writer_to
from tests.telemetry.store.samples import training

pytestmark = pytest.mark.django_db
VCPU = "trnwatch_node_vcpu_usage_ratio"
Written = dict[tuple[str, str], dict[int, float]]


@pytest.fixture
def store() -> Iterator[Moody]:
    with moody_server() as moody:
        yield moody


def written_to(store: Moody) -> Written:
    """Return the samples of one metric by series name and node, and by second."""
    found: Written = {}
    for body in store.bodies:
        message = WriteRequest.FromString(bytes(cramjam.snappy.decompress_raw(body)))
        for one in message.timeseries:
            labels = {label.name: label.value for label in one.labels}
            name = labels["__name__"]
            if name.startswith(VCPU):
                mine = found.setdefault((name.removeprefix(VCPU), labels["node"]), {})
                mine |= {s.timestamp // 1000: s.value for s in one.samples}
    return found


def write(store: Moody, hot: HotStore, now_s: float, *, every_s: int = 15) -> Written:
    """Write what is due at a time, and return what that was."""
    store.bodies.clear()
    write_all(writer_to(store.url, hot, now_s=now_s, every_s=every_s))
    return written_to(store)


def test_each_second_is_sent_under_its_own_time(store: Moody, hot: HotStore) -> None:
    span = training(start=NOON_S, n_ticks=60)
    hot.append(span.blocks())

    sent = write(store, hot, NOON_S + 75, every_s=1)

    assert list(sent["", "steady"]) == list(range(NOON_S, NOON_S + 60))
    np.testing.assert_allclose(
        list(sent["", "limping"].values()), span.values["vcpu_usage_ratio"][:, 1, 0], atol=0.0021
    )


def test_of_fifteen_seconds_the_newest_report_is_sent_under_its_own_time(
    store: Moody, hot: HotStore
) -> None:
    hot.append([block(tick=NOON_S + t, nodes=("steady",), fill=t / 100) for t in (3, 9, 21)])
    hot.append([block("slow/0", tick=NOON_S + 14, nodes=("slow",), fill=0.5)])

    sent = write(store, hot, NOON_S + 60)

    assert sent["", "steady"] == pytest.approx({NOON_S + 9: 0.09, NOON_S + 21: 0.21}, abs=0.002)
    assert sent["", "slow"] == pytest.approx({NOON_S + 14: 0.5}, abs=0.002)


def test_what_is_sent_is_not_sent_again(store: Moody, hot: HotStore) -> None:
    hot.append(training(start=NOON_S, n_ticks=90).blocks())
    first = write(store, hot, NOON_S + 60, every_s=1)
    second = write(store, hot, NOON_S + 90, every_s=1)

    assert list(first["", "steady"]) == list(range(NOON_S, NOON_S + 45))
    assert list(second["", "steady"]) == list(range(NOON_S + 45, NOON_S + 75))
    row = LongTermPosition.objects.get(stream=SECONDS)
    assert (row.second, row.n_dropped, row.n_retries) == (NOON_S + 75, 0, 0)
    assert row.n_sent > 0


def test_what_was_not_accepted_is_sent_again(store: Moody, hot: HotStore) -> None:
    hot.append(training(start=NOON_S, n_ticks=60).blocks())
    store.answers += [(503, {}, b"")] * 10_000
    writer = writer_to(store.url, hot, now_s=NOON_S + 75, every_s=1)
    threading.Timer(0.3, writer.client.stopping.set).start()
    with pytest.raises(StoppedError):
        write_all(writer)
    store.answers.clear()

    sent = write(store, hot, NOON_S + 75, every_s=1)

    assert list(sent["", "steady"]) == list(range(NOON_S, NOON_S + 60))


def test_minutes_are_sent_when_they_are_settled_as_the_durable_tier_has_them(
    store: Moody, hot: HotStore
) -> None:
    durable.write_rollups(training(start=NOON_S, n_ticks=600))
    Position(MINUTES).rewind(NOON_S, now=NOON)

    sent = write(store, hot, NOON_S + 600)

    middle = [NOON_S + 60 * i + 30 for i in range(4)]
    for stat in ("min_1m", "avg_1m", "max_1m"):
        assert list(sent[f":{stat}", "steady"]) == middle
    low, mean, high = (sent[f":{s}", "steady"][middle[0]] for s in ("min_1m", "avg_1m", "max_1m"))
    assert low < mean < high


def test_an_hour_that_was_folded_is_sent_whole(store: Moody, hot: HotStore) -> None:
    durable.write_rollups(training(start=NOON_S - 1800, n_ticks=9000 // 30, every_s=30))
    Position(MINUTES).rewind(NOON_S - 1800, now=NOON)

    sent = write(store, hot, NOON_S + 9000)

    assert list(sent[":avg_1m", "limping"]) == [NOON_S - 1800 + 60 * i + 30 for i in range(150)]


def test_after_a_long_outage_minutes_stand_in_for_seconds(store: Moody, hot: HotStore) -> None:
    now_s = NOON_S + 7200
    durable.write_rollups(training(start=NOON_S, n_ticks=7200 // 30, every_s=30))
    hot.append(training(start=now_s - 1200, n_ticks=1200).blocks())
    Position(SECONDS).rewind(NOON_S + 7, now=NOON)

    sent = write(store, hot, now_s)["", "steady"]

    seconds = sorted(sent)
    assert seconds == list(sent)
    hot_from = (now_s - 900) // 60 * 60 + 60
    stand_ins = [second for second in seconds if second < hot_from]
    assert stand_ins == list(range(NOON_S + 30, hot_from, 60))
    assert [second for second in seconds if second >= hot_from] == list(
        range(hot_from + 14, now_s - 15, 15)
    )


def test_a_gap_stays_a_gap(store: Moody, hot: HotStore) -> None:
    span = training(start=NOON_S, n_ticks=30)
    values = {name: array.copy() for name, array in span.values.items()}
    for array in values.values():
        array[10:20, 0] = np.nan
    hot.append(replace(span, values=values).blocks())

    sent = write(store, hot, NOON_S + 60, every_s=1)

    assert list(sent["", "steady"]) == [NOON_S + t for t in [*range(10), *range(20, 30)]]
    assert len(sent["", "limping"]) == 30


@pytest.mark.parametrize("every_s", [0, 7, 61, 120])
def test_an_interval_must_fit_into_a_minute(store: Moody, hot: HotStore, every_s: int) -> None:
    with pytest.raises(ValueError, match="does not divide a minute"):
        writer_to(store.url, hot, now_s=NOON_S, every_s=every_s)


def test_another_interval_than_before_loses_nothing(store: Moody, hot: HotStore) -> None:
    hot.append(training(start=NOON_S, n_ticks=120).blocks())
    write(store, hot, NOON_S + 60, every_s=15)

    sent = write(store, hot, NOON_S + 120, every_s=10)["", "steady"]

    assert list(sent) == [NOON_S + 49 + 10 * i for i in range(6)]


def test_a_minute_that_changes_late_is_sent_again(store: Moody, hot: HotStore) -> None:
    Position(MINUTES).rewind(NOON_S, now=NOON)
    durable.write_rollups(training(start=NOON_S, n_ticks=60))
    before = write(store, hot, NOON_S + 900)[":avg_1m", "steady"]

    span = training(start=NOON_S, n_ticks=60)
    busier = {"vcpu_usage_ratio": 2 * span.values["vcpu_usage_ratio"]}
    durable.write_rollups(replace(span, values=busier))
    queue_rewrites(hot, [NOON_S], now_s=NOON_S + 901)
    after = write(store, hot, NOON_S + 902)[":avg_1m", "steady"]

    assert list(after) == list(before) == [NOON_S + 30]
    assert after != before
    assert (":avg_1m", "steady") not in write(store, hot, NOON_S + 903)
