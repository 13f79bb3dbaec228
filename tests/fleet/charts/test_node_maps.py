"""Maps over time: the culprit is the bright row, whether a part or a worker."""

import time
from dataclasses import replace

import numpy as np
import pytest

from fleet.charts.deviations import SIGNALS
from fleet.charts.node_maps import MOST_ROWS, compare_node, map_points, node_map, worker_map
from fleet.charts.windows import Window
from fleet.models import Node, Run
from fleet.runs.devices import nearest
from telemetry.store.hot import HotStore
from tests.helpers import block, steps

NODES = ("steady", "limping")


@pytest.fixture
def rng() -> np.random.Generator:
    """The same noise for each test, in whatever order they run."""
    return np.random.default_rng(3)


@pytest.fixture
def now_s(hot: HotStore, steady: Node, limping: Node, rng: np.random.Generator) -> int:
    """Let EFA 4 of limping answer late for half a minute, after one of quiet; gives now."""
    now_s = int(time.time())
    latency = 16.5e-6 * (1 + 0.02 * rng.standard_normal((60, 2, 8)))
    latency[30:, 1, 4] = 144e-6
    hot.append(block(tick=now_s - 59 + i, efa_latency_s=each) for i, each in enumerate(latency))
    return now_s


def window(now_s: int) -> Window:
    return Window(now_s - 900, now_s, "15m")


def test_the_slow_link_is_the_bright_row_from_its_onset_on(
    hot: HotStore, now_s: int, limping: Node
) -> None:
    drawn = node_map(hot, limping, SIGNALS["efa-latency"], window(now_s))

    assert drawn.strengths is not None
    assert drawn.peers is not None
    after = drawn.t_s > now_s - 27
    before = np.isfinite(drawn.strengths[4]) & (drawn.t_s < now_s - 33)
    assert (drawn.strengths[4, after] == 1).all()
    assert np.abs(drawn.strengths[:, before]).max() < 0.5
    assert np.abs(np.delete(drawn.strengths, 4, axis=0)[:, after]).max() < 0.5
    np.testing.assert_allclose(drawn.peers[after], 16.5e-6, rtol=0.02)
    assert drawn.rows[4] == "EFA 4"


def test_a_node_that_computes_while_others_wait_has_no_stripes(
    hot: HotStore, steady: Node, limping: Node, rng: np.random.Generator
) -> None:
    """Its bandwidth rises and falls at other times within a step; only a slow device is slow."""
    now_s = int(time.time())
    bandwidth = 2e11 * (1 + 0.02 * rng.standard_normal((90, 2, 4)))
    for i in range(90):
        bandwidth[i, int(i % 12 < 7)] *= 10
    bandwidth[:, 1, 3] *= 0.5
    for i, each in enumerate(bandwidth):
        hot.append([block(tick=now_s - 89 + i, hbm_bandwidth_bytes_per_s=each)])
    drawn = node_map(hot, limping, SIGNALS["hbm"], window(now_s))

    assert drawn.strengths is not None
    after = drawn.t_s > now_s - 45
    assert np.abs(drawn.strengths[:3, after]).max() < 0.5
    assert (drawn.strengths[3, after] == -1).all()


def test_what_is_not_stored_is_unknown_and_no_deviation(
    hot: HotStore, now_s: int, limping: Node
) -> None:
    drawn = node_map(hot, limping, SIGNALS["efa-latency"], window(now_s))

    assert drawn.strengths is not None
    assert np.isnan(drawn.strengths[:, drawn.t_s < now_s - 65]).all()


def test_it_appends_what_it_draws(hot: HotStore, now_s: int, limping: Node) -> None:
    drawn = node_map(hot, limping, SIGNALS["efa-latency"], window(now_s)).as_json()
    new = map_points(hot, limping, since_s=now_s - 12, now_s=now_s)["efa-latency-heat"]

    at = [drawn["t"].index(moment) for moment in new["t"]]
    assert [[row[i] for i in at] for row in drawn["values"]] == new["values"][:8]
    assert new["values"][8 + 4] == [1.0] * len(at)
    assert len(new["values"]) == 8 + 8 + 1


def test_a_node_names_what_stands_out_and_a_healthy_one_nothing(
    hot: HotStore, now_s: int, steady: Node, limping: Node
) -> None:
    found, calm = compare_node(hot, limping), compare_node(hot, steady)

    assert found.outlier is not None
    assert (found.outlier.signal.name, found.outlier.number) == ("efa-latency", 4)
    assert calm.outlier is None
    assert found.drawn("") is SIGNALS["efa-latency"]
    assert found.drawn("hbm") is SIGNALS["hbm"]
    assert calm.drawn("nonsense") is SIGNALS["utilization"]


def played(hot: HotStore, run: Run, n_workers: int, now_s: int) -> list[str]:
    """Store steps in which all workers wait for the third one for half a minute."""
    names = [f"w-{i:03}" for i in range(n_workers)]
    compute = 1.0 + 0.004 * np.random.default_rng(3).standard_normal((60, n_workers))
    compute[30:, 2] += 0.5
    batch = steps(run.name, names, n_steps=60, ended_at_s=now_s - 60, transfer_s=0.1)
    wait = compute.max(axis=1, keepdims=True) - compute
    phases = dict(batch.phases) | {"compute_s": compute, "wait_s": wait}
    hot.append_steps(replace(batch, phases=phases, ended_at_s=now_s - 59.5 + np.arange(60)))
    return names


def test_a_straggler_is_one_bright_line_as_all_others_wait(hot: HotStore, run: Run) -> None:
    now_s = int(time.time())
    names = played(hot, run, 8, now_s)

    drawn = worker_map(hot, run, SIGNALS["wait"], window(now_s))

    assert list(drawn.rows) == names
    assert drawn.strengths is not None
    shown = drawn.strengths[:, (drawn.t_s > now_s - 25) & (drawn.t_s < now_s - 3)]
    assert (shown[2] == -1).all()
    assert np.abs(np.delete(shown, 2, axis=0)).max() < 0.5
    assert np.isnan(drawn.values[:, drawn.t_s < now_s - 70]).all()


def test_the_cause_leads_and_not_its_mirror_image(hot: HotStore, run: Run, steady: Node) -> None:
    names = played(hot, run, 8, int(time.time()))
    Node.objects.filter(pk=steady.pk).update(name=names[2])

    outlier = compare_node(hot, Node.objects.select_related("run").get(pk=steady.pk)).outlier

    assert outlier is not None
    assert (outlier.signal.name, outlier.place, outlier.deviation > 0) == (
        "compute",
        "w-002",
        True,
    )


def test_of_many_workers_those_that_stand_out_have_rows(hot: HotStore, run: Run) -> None:
    now_s = int(time.time())
    played(hot, run, MOST_ROWS + 20, now_s)

    drawn = worker_map(hot, run, SIGNALS["wait"], window(now_s))

    assert len(drawn.rows) == len(drawn.values) == len(drawn.places) == MOST_ROWS
    assert "w-002" in drawn.rows
    assert drawn.rows[-1] == "21 others, median"


def test_a_run_without_steps_has_an_empty_map(hot: HotStore, run: Run) -> None:
    drawn = worker_map(hot, run, SIGNALS["wait"], window(int(time.time())))

    assert drawn.values.shape == (0, 0)


def test_peers_have_the_same_stage_and_the_nearest_ranks(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(pp=2, n_nodes=8)
    nodes = [
        Node.objects.create(
            name=f"n{i}",
            run=run,
            rank=i,
            shard="llama/0",
            instance_type="trn1.32xlarge",
            n_cores=32,
            n_devices=16,
            first_seen_at=run.started_at,
        )
        for i in range(8)
    ]

    node = Node.objects.select_related("run").get(pk=nodes[5].pk)

    assert [peer.name for peer in nearest(node)] == ["n4", "n6", "n7"]
