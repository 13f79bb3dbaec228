"""Reports that waited for a restart are stored at their own second."""

import json
import time
from collections import defaultdict
from collections.abc import Collection

import numpy as np
import pytest

from fleet.ingest.nodes import TIMINGS, NodeIngest, clock_of, store_batches
from fleet.ingest.steps import StepIngest
from fleet.runs.state import CLOCKS
from telemetry.ingest.timing import ClockOffset
from telemetry.store.hot import HotStore
from tests.fleet.api.training_jobs import NODES, step
from tests.telemetry.ingest.reports import report
from tests.telemetry.ingest.restarts import Sent, requests

DAY_S = 24 * 3600
STOP_S, STOPPED_FOR_S, LAST_S = 8.3, 32.0, 56
UP_S = 50_000.0
# By how much each node's clock is behind ours.
RIGHT = {f"trn-{i:02d}": 0.0 for i in range(20)}
WRONG = {"trn-03": 75.0, "trn-07": -75.0, "trn-11": 4_000.0, "trn-13": -4_000.0}


def served(nodes: Collection[str], *, seed: int) -> list[tuple[Sent, str]]:
    """Return what some nodes send while the server stops for a while, as it is served."""
    rng = np.random.default_rng(seed)
    sent = [
        (one, node)
        for node in nodes
        for one in requests(
            lambda: float(rng.uniform(0.001, 0.4)),
            stop_s=STOP_S,
            stopped_for_s=STOPPED_FOR_S,
            until_s=LAST_S + 0.9,
        )
    ]
    return sorted(sent, key=lambda each: each[0].arrived_s)


def is_after(one: Sent) -> bool:
    """Whether a request is served by the process that followed."""
    return one.arrived_s >= STOP_S + STOPPED_FOR_S


def line(second: int, at_s: float) -> bytes:
    """Return what a node reports of one second: which one it is, as its vCPUs' use."""
    shown = report("trn1.2xlarge")
    shown["system_data"]["vcpu_usage"]["average_usage"] = {"user": second + 1}
    numbers = {"seq": second + 1, "stream": "0123456789abcdef"}
    return json.dumps({"at": at_s, "report": shown} | numbers).encode()


def seconds_of(hot: HotStore, node: str, epoch_s: int) -> dict[int, int]:
    """Return which second's figure stands at each second, both from the first."""
    span = hot.window(
        f"node:{node}", ("vcpu_usage_ratio",), start=epoch_s, end=epoch_s + LAST_S + 120
    )
    ratios = span.values["vcpu_usage_ratio"][:, 0, 0]
    seen = np.isfinite(ratios)
    figures = np.rint(100 * ratios[seen]).astype(int) - 1
    return dict(zip((span.ticks[seen] - epoch_s).tolist(), figures.tolist(), strict=True))


def test_every_sample_of_twenty_nodes_stands_at_its_second(
    db: None, hot: HotStore, clocks: dict[str, float]
) -> None:
    epoch_s = int(time.time()) - 170
    before, after = (
        NodeIngest(keep_s=900, late_s=30 * DAY_S, restore_clock=lambda node: clock_of(hot, node))
        for _ in range(2)
    )
    n_taken: dict[str, int] = defaultdict(int)
    for one, node in served(clocks, seed=3):
        skew_s = clocks[node]
        delivery = (after if is_after(one) else before).deliver(
            [line(int(s), epoch_s + s - skew_s) for s in one.made_s],
            node=node,
            arrived_s=epoch_s + one.arrived_s,
            sent_s=epoch_s + one.sent_s - skew_s,
            up_s=UP_S + one.sent_s,
        )
        store_batches(hot, [delivery])
        n_taken[node] += delivery.n_accepted

    everything = {second: second for second in range(LAST_S + 1)}
    assert {node: seconds_of(hot, node, epoch_s) for node in clocks} == dict.fromkeys(
        clocks, everything
    )
    assert n_taken == dict.fromkeys(clocks, LAST_S + 1), "what is sent again counts once"


@pytest.fixture(params=["known", "unknown"])
def clocks(request: pytest.FixtureRequest, hot: HotStore) -> dict[str, float]:
    """Give by how much each node is behind; wrong clocks only where earlier processes knew."""
    if request.param == "unknown":
        return RIGHT
    for node, skew_s in (RIGHT | WRONG).items():
        clock = ClockOffset()
        clock.observe(skew_s + 0.5, time.time() - 3600, may_wait=False)
        clock.follow_boot(time.time() - 170 - skew_s - UP_S, skew_s + 0.5)
        hot.execute("HSET", TIMINGS, node, f"1.000 {skew_s} {clock.dump()}")
    return RIGHT | WRONG


@pytest.mark.parametrize("forgets", [False, True])
def test_what_one_process_learnt_the_next_one_knows(
    db: None, hot: HotStore, *, forgets: bool
) -> None:
    """A clock that is a minute behind, and a request that waited for the process that followed."""
    epoch_s = int(time.time()) - 100
    placed = []
    for second in (*range(20), 60):
        if second in {0, 60}:
            arrivals = NodeIngest(keep_s=900, restore_clock=lambda node: clock_of(hot, node))
        if second == 60 and forgets:
            hot.execute("DEL", TIMINGS)
        shown_s = epoch_s + second - 60.0
        delivery = arrivals.deliver(
            [line(second, shown_s)],
            node="real",
            arrived_s=epoch_s + second + (25.0 if second == 60 else 0.1),
            sent_s=shown_s,
            up_s=UP_S + second,
        )
        store_batches(hot, [delivery])
        placed.append([block.tick - epoch_s for block in delivery.blocks])

    assert placed[19][-1] == 19
    # Not knowing better, the node's own clock is believed.
    assert placed[-1][-1] == (0 if forgets else 60)


@pytest.mark.parametrize("skew_s", [0.0, 1.0, 30.0, -30.0])
def test_every_step_stands_at_its_second(db: None, hot: HotStore, skew_s: float) -> None:
    epoch_s = int(time.time()) - 170
    for node in NODES:
        hot.execute("HSET", CLOCKS, node, f"{skew_s + 0.002:.3f} {epoch_s - skew_s - UP_S:.3f}")
    if abs(skew_s) <= 2:
        hot.execute("DEL", CLOCKS)
    before, after = StepIngest(time.monotonic), StepIngest(time.monotonic)
    for one, node in served(NODES, seed=5):
        (after if is_after(one) else before).deliver(
            hot,
            [step(int(s) + 1, node, ended_at=epoch_s + s - skew_s) for s in one.made_s],
            arrived_s=epoch_s + one.arrived_s,
            sent_s=epoch_s + one.sent_s - skew_s,
            up_s=UP_S + one.sent_s,
        )

    batch = hot.steps("real", since_s=epoch_s - 600)
    assert batch.step.tolist() == list(range(1, LAST_S + 2))
    is_own = abs(skew_s) <= 2
    off_s = batch.ended_at_s - epoch_s - np.arange(LAST_S + 1)
    np.testing.assert_allclose(off_s, -skew_s if is_own else 0.0, atol=0.001 if is_own else 0.5)


def test_a_sender_of_steps_that_is_behind_is_believed_when_requests_agree(
    db: None, hot: HotStore
) -> None:
    epoch_s, intake = int(time.time()) - 60, StepIngest(time.monotonic)
    skews = [
        intake.deliver(
            hot,
            [step(s + 1, NODES[0], ended_at=epoch_s + s - 20.0)],
            arrived_s=epoch_s + s + 0.1,
            sent_s=epoch_s + s - 20.0,
        ).skew_s
        for s in range(15)
    ]

    assert skews[0] == 0.0
    assert skews[-1] == pytest.approx(20.1)


@pytest.mark.parametrize("is_assembled", [True, False])
@pytest.mark.parametrize("off_s", [20.0, 150.0])
def test_a_resent_step_replaces_a_copy_that_was_placed_wrong(
    db: None, hot: HotStore, *, off_s: float, is_assembled: bool
) -> None:
    """A clock that was 20 s or more behind when a process before noted it is right now."""
    epoch_s = int(time.time()) - 170
    senders = NODES if is_assembled else NODES[:3]
    for node in NODES:
        hot.execute("HSET", CLOCKS, node, f"{off_s:.3f} {epoch_s - UP_S:.3f}")
    for waited_s in (off_s, 0.1, 3.0):
        # Each request is served by another process.
        for node in senders:
            result = StepIngest(time.monotonic).deliver(
                hot,
                [step(1, node, ended_at=epoch_s + 0.5, tokens=100.0)],
                arrived_s=epoch_s + 1 + waited_s,
                sent_s=epoch_s + 1.0,
                up_s=UP_S + 1,
            )
        if waited_s == off_s:
            assert result.skew_s == off_s
    for node in set(NODES) - set(senders):
        StepIngest(time.monotonic).deliver(
            hot, [step(1, node, ended_at=epoch_s + 0.5)], arrived_s=epoch_s + 5.0
        )

    batch = hot.steps("real", since_s=epoch_s - 600)
    assert batch.step.tolist() == [1]
    assert batch.ended_at_s.tolist() == [epoch_s + 0.5]
    assert np.isfinite(batch.phases["compute_s"]).all()
    near = hot.steps("real", since_s=epoch_s, until_s=epoch_s + 1)
    assert near.step.tolist() == [1], "it is in the minute where it ended"
    assert hot.totals().tokens == {"real": 100.0}
    assert hot.totals().steps == {"real": 1}
