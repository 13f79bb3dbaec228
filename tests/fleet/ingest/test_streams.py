"""Numbered lines are stored once, through any process, however late."""

import json
import time
from collections.abc import Sequence

import numpy as np
import pytest

from fleet.api.ingest import arrivals_of
from fleet.ingest.nodes import NodeIngest, store_batches
from telemetry.blocks import Block
from telemetry.store.durable import QUIET_S, fold_late
from telemetry.store.history import node_series
from telemetry.store.hot import HotStore, StoreUnavailable
from tests.fleet.api.conftest import Post, hot, post, secret
from tests.helpers import NOON_S
from tests.telemetry.ingest.reports import report

__all__ = ["hot", "post", "secret"]
STREAM = "0123456789abcdef"
DAY_S = 24 * 3600


def numbered(
    at: Sequence[float], *, first: int = 1, stream: str = STREAM, user_percent: float = 10.0
) -> bytes:
    """Return numbered lines of one stream, with the time of each."""
    document = report("trn1.2xlarge")
    document["system_data"]["vcpu_usage"]["average_usage"] = {"user": user_percent}
    lines = [
        {"at": at_s, "seq": seq, "stream": stream, "report": document}
        for seq, at_s in enumerate(at, first)
    ]
    return "\n".join(json.dumps(line) for line in lines).encode()


def another_process() -> None:
    """Forget all that a process remembers, as one that was just started."""
    arrivals_of.cache_clear()


def sent_at(at_s: float, up_s: float = 10_000.0) -> dict[str, str]:
    """Return the headers of a request of a node's agent."""
    return {"X_Trnwatch_At": str(at_s), "X_Trnwatch_Up": str(up_s)}


def test_lines_count_once_in_whichever_process(post: Post, hot: HotStore) -> None:
    now = time.time()
    body = numbered([now - 3, now - 2, now - 1])
    first = post(body, **sent_at(now)).json()
    totals = hot.totals().nodes
    another_process()
    # It is later now, and the agent calculates the times again: a little off.
    again = post(numbered([now - 2.9, now - 1.9, now - 0.9, now]), **sent_at(now)).json()

    assert (first["accepted"], first["repeated"]) == (3, 0)
    assert (again["accepted"], again["repeated"]) == (1, 3)
    assert hot.counters()["ingest_reports"] == 4
    before = totals["executions_completed_per_s"]["real"]
    after = hot.totals().nodes["executions_completed_per_s"]["real"]
    assert after == pytest.approx(before * 4 / 3)


def test_a_new_stream_of_the_same_node_starts_over(post: Post, hot: HotStore) -> None:
    now = time.time()
    post(numbered([now - 2], first=900))

    again = post(numbered([now - 1], first=5, stream="fedcba9876543210")).json()

    assert again["accepted"] == 1


def test_of_many_streams_only_the_newest_are_remembered(post: Post, hot: HotStore) -> None:
    now = time.time()
    for i in range(20):
        post(numbered([now], first=1000 + i, stream=f"stream-{i:04d}"))

    held = hot.execute("ZRANGE", "ingest:streams:real", 0, -1)
    assert held == [b"stream-%04d" % i for i in range(4, 20)]


def test_what_the_store_refused_is_accepted_when_sent_again(
    post: Post, hot: HotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    with monkeypatch.context() as broken:
        broken.setattr(HotStore, "merge", away)
        assert post(numbered([now - 1])).status_code == 503

    assert post(numbered([now - 1])).json()["accepted"] == 1


def away(*_: object) -> int:
    """Fail as a store that is away."""
    raise StoreUnavailable


def minute_of(hot: HotStore, minute: int) -> list[float]:
    """Return lowest, mean and highest of the host's vCPUs in a minute, as charts show them."""
    metric, end = "vcpu_usage_ratio", minute + 59
    series = node_series(hot, shard="node:real", node="real", metric=metric, start=minute, end=end)
    assert series.low is not None
    assert series.high is not None
    return [float(stat[0, 0]) for stat in (series.low, series.values, series.high)]


def test_hours_late_is_history_and_not_lost(post: Post, hot: HotStore) -> None:
    now = time.time()
    minute = int(now - 5 * 3600) // 60 * 60
    ticks = [minute + second + 0.5 for second in range(120)]
    headers = sent_at(now)

    first = post(numbered(ticks[:70]), **headers).json()
    another_process()
    second = post(numbered(ticks), **headers).json()

    assert (first["accepted"], first["late"]) == (70, 0)
    assert (second["accepted"], second["repeated"]) == (50, 70)
    assert fold_late(hot, now_s=time.time() + QUIET_S + 1) == 2
    assert minute_of(hot, minute) == pytest.approx([0.1, 0.1, 0.1], rel=0.02)
    assert minute_of(hot, minute + 60) == pytest.approx([0.1, 0.1, 0.1], rel=0.02)
    assert fold_late(hot, now_s=time.time() + QUIET_S + 1) == 0


def test_older_than_history_is_late(post: Post, hot: HotStore) -> None:
    now = time.time()

    stated = post(numbered([now - 40 * DAY_S, now]), **sent_at(now)).json()

    assert (stated["accepted"], stated["late"]) == (1, 1)
    assert "2592000 s are kept" in stated["refused"][0]["reason"]


def test_a_minute_that_came_in_two_parts_is_whole(post: Post, hot: HotStore) -> None:
    """Its first half came in time and was rolled up; its second half came hours later."""
    now = time.time()
    minute = int(now - 2 * 3600) // 60 * 60
    post(numbered([minute + s + 0.5 for s in range(30)]), **sent_at(now))
    fold_late(hot, now_s=time.time() + QUIET_S + 1)
    late = [minute + s + 0.5 for s in range(30, 60)]
    busier = numbered(late, first=31, user_percent=30.0)

    assert post(busier, **sent_at(now)).json()["accepted"] == 30
    fold_late(hot, now_s=time.time() + QUIET_S + 1)

    assert minute_of(hot, minute) == pytest.approx([0.1, 0.2, 0.3], rel=0.02)


@pytest.mark.parametrize("set_by", [7_200.0, -7_200.0])
def test_a_clock_that_is_set_makes_no_gap_and_nothing_twice(db: None, set_by: float) -> None:
    """Two hours off for ten seconds, then set right again; the machine knows how long it is up."""
    arrivals = NodeIngest(keep_s=900, late_s=DAY_S)
    ticks: list[int] = []
    for second in range(30):
        now_s = NOON_S + second + 0.5
        shown_s = now_s + (set_by if 10 <= second < 20 else 0.0)
        delivery = arrivals.deliver(
            numbered([shown_s], first=second).splitlines(),
            node="real",
            arrived_s=now_s + 0.1,
            sent_s=shown_s,
            up_s=5_000.0 + second,
        )
        ticks += [block.tick for line in delivery.numbered for block in line.blocks]

    assert ticks == list(range(NOON_S, NOON_S + 30))


UP_S = 10_000.0


def reported(*lines: tuple[int, float]) -> bytes:
    """Return numbered lines, given as (number, time), each with its number as vCPU usage."""
    return b"\n".join(numbered([at_s], first=seq, user_percent=float(seq)) for seq, at_s in lines)


def percents_of(hot: HotStore, since: int, until: int) -> dict[int, int]:
    """Return the vCPU usage of each second, in percent, by seconds before ``until``."""
    span = hot.window("node:real", ("vcpu_usage_ratio",), start=since, end=until)
    ratios = span.values["vcpu_usage_ratio"][:, 0, 0]
    seen = np.isfinite(ratios)
    percents = np.rint(100 * ratios[seen]).astype(int)
    return dict(zip((until - span.ticks[seen]).tolist(), percents.tolist(), strict=True))


def delivered(
    arrivals: NodeIngest, hot: HotStore, *lines: tuple[int, float], now: float, waited_s: float = 0
) -> tuple[int, int]:
    """Store lines that were sent so long ago; return how many are new, and how many repeated."""
    batch = arrivals.deliver(
        reported(*lines).splitlines(),
        node="real",
        arrived_s=now + 0.1,
        sent_s=now - waited_s,
        up_s=UP_S - waited_s,
    )
    store_batches(hot, [batch])
    return len(lines) - batch.n_repeated, batch.n_repeated


def ingest() -> NodeIngest:
    return NodeIngest(keep_s=900, late_s=DAY_S)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_resend_replaces_a_copy_that_was_placed_wrong(
    db: None, hot: HotStore, *, restarts: bool
) -> None:
    now, arrivals = int(time.time()), ingest()
    first = [(seq, now - 314.5 + seq) for seq in (1, 2, 3)]
    # It waited for so long that its node's clock looks wrong.
    delivered(arrivals, hot, *first, now=now, waited_s=311)
    assert min(percents_of(hot, now - 400, now + 5)) < 10
    totals = hot.totals().nodes
    arrivals = ingest() if restarts else arrivals

    again = delivered(arrivals, hot, *first, (4, now - 1.5), now=now)
    # A copy that was sent before, and comes late, changes nothing.
    delivered(arrivals, hot, *first, now=now, waited_s=200)

    assert again == (1, 3)
    assert percents_of(hot, now - 400, now + 5) == {319: 1, 318: 2, 317: 3, 7: 4}
    name = "executions_completed_per_s"
    before, after = totals[name]["real"], hot.totals().nodes[name]["real"]
    assert after == pytest.approx(before * 4 / 3), "moved seconds count once"


def test_a_moved_copy_leaves_the_seconds_of_others(db: None, hot: HotStore) -> None:
    now, arrivals = int(time.time()), ingest()
    late = (1, now - 310.5)
    delivered(arrivals, hot, late, now=now, waited_s=310)
    [ago] = percents_of(hot, now - 400, now + 5)
    probed = {"efa_latency_s": np.full((1, 1), 2e-5)}
    hot.merge([Block("node:real", now + 5 - ago, ("real",), probed)])

    delivered(arrivals, hot, late, now=now)

    percents = percents_of(hot, now - 400, now + 5)
    assert percents[316] == 1, "it is at its second"
    assert ago in percents, "a second with figures of another sender stays"


def test_copies_in_one_batch_are_placed_by_the_best(post: Post, hot: HotStore) -> None:
    now = int(time.time())
    arrivals = ingest()
    batches = [
        arrivals.deliver(
            [reported((1, now - 400.5))],
            node="real",
            arrived_s=float(now),
            sent_s=now - waited_s,
            up_s=UP_S - waited_s,
        )
        for waited_s in (400, 320, 5)
    ]

    store_batches(hot, batches)

    assert percents_of(hot, now - 800, now) == {401: 1}
    assert [batch.n_repeated for batch in batches] == [0, 1, 1]
