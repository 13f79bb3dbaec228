"""The heat map: every part of every node, by run; absent differs from idle."""

import time

import numpy as np
import pytest

from fleet.charts.heat import HeatGroup, heat_groups
from fleet.charts.readings import fleet_readings, past_readings
from fleet.models import Alert, Node, Run
from fleet.runs.node_columns import node_columns, node_columns_at
from telemetry.blocks import Span
from telemetry.store import durable
from telemetry.store.hot import HotStore
from telemetry.store.packing import ABSENT_RATIO
from tests.alerts import straggling
from tests.helpers import NOON, block, watch_since


@pytest.fixture(autouse=True)
def now_s(hot: HotStore) -> float:
    now_s = time.time()
    watch_since(hot, now_s - 3600)
    return now_s


def groups_of(
    hot: HotStore, *alerts: Alert, most_rows: int = 512, most_groups: int = 100
) -> list[HeatGroup]:
    runs = {run.pk: run for run in Run.objects.all()}
    columns = node_columns(hot, now_s=time.time())
    readings = fleet_readings(hot, columns, [], now_s=time.time())
    return heat_groups(
        columns, alerts, runs, readings, most_rows=most_rows, most_groups=most_groups
    )


def past_groups(hot: HotStore, *, at_s: int) -> list[HeatGroup]:
    runs = {run.pk: run for run in Run.objects.all()}
    columns = node_columns_at(hot, at_s=at_s, runs=runs)
    readings = past_readings(hot, columns, ["llama"], at_s=at_s)
    return heat_groups(columns, (), runs, readings)


def test_a_core_is_a_byte_and_a_silent_one_has_its_own(
    hot: HotStore, now_s: float, steady: Node, limping: Node
) -> None:
    cores = np.array([[0.0, 0.5, 1.0, np.nan], [-0.1, 1.2, 0.25, 0.004]])
    hot.append([block(tick=int(now_s), core_utilization_ratio=cores)])

    [group] = groups_of(hot)

    assert [list(row.values[:4]) for row in group.rows] == [
        [0, 127, 254, ABSENT_RATIO],
        [0, 254, 64, 1],
    ]
    assert set(group.rows[0].values[4:]) == {ABSENT_RATIO}
    assert group.rows[0].mean == pytest.approx(0.5)
    assert (group.rows[1].lowest, group.rows[1].highest) == (0.0, 1.0)


def test_nodes_stand_by_run_and_rank_and_those_of_no_run_last(
    hot: HotStore, run: Run, limping: Node, steady: Node
) -> None:
    Node.objects.create(
        name="aaa", instance_type="trn1.2xlarge", n_cores=2, n_devices=1, first_seen_at=NOON
    )

    groups = groups_of(hot)

    assert [group.run for group in groups] == [run, None]
    assert [group.name for group in groups] == [run.name, "no run"]
    assert [row.name for row in groups[0].rows] == ["steady", "limping"]


def test_a_node_that_fell_silent_shows_no_old_readings(
    hot: HotStore, now_s: float, steady: Node
) -> None:
    hot.append([block(tick=int(now_s) - 60, nodes=("steady",), fill=0.5)])

    [group] = groups_of(hot)

    assert set(group.rows[0].values) == {ABSENT_RATIO}
    assert len(group.rows[0].values) == steady.n_cores
    assert (group.rows[0].state, group.rows[0].mean) == ("silent", None)


def test_the_culprit_page_names_the_cause(hot: HotStore, run: Run, limping: Node) -> None:
    alert = straggling(run, limping, at=NOON, device=17)

    [group] = groups_of(hot, alert)

    assert group.rows[0].alert == alert
    assert group.rows[0].what == "core 17"


def test_a_name_is_distinguished_from_its_run_that_stands_above(
    hot: HotStore, run: Run, steady: Node
) -> None:
    Node.objects.update(name=f"{run.name}-07")

    [group] = groups_of(hot)

    assert (group.rows[0].stem, group.rows[0].tail) == (f"{run.name}-", "07")


def test_the_part_that_stands_out_has_the_strongest_colour_and_the_first_row(
    hot: HotStore, now_s: float, run: Run
) -> None:
    nodes = fleet_of(run, 8)
    names = [node.name for node in nodes]
    latency = 16.5e-6 * (1 + 0.02 * np.random.default_rng(7).standard_normal((28, 8, 8)))
    latency[:, 5, 4] = 144e-6
    busy = np.full((8, 32), 0.97)
    hot.append(
        block(tick=int(now_s) - i, nodes=names, core_utilization_ratio=busy, efa_latency_s=each)
        for i, each in enumerate(latency)
    )

    [group] = groups_of(hot)

    assert group.signal.name == "efa-latency"
    assert group.finding.startswith("EFA 4 of 005: EFA latency 144")
    assert group.rows[0].name == nodes[5].name
    culprit, *peers = (row.strengths for row in group.rows)
    assert culprit[4] == 254
    # Noise alone reaches the first tint now and then, and no more.
    assert max(abs(byte - 127) for row in [culprit[:4], *peers] for byte in row) < 32


def test_a_past_second_shows_what_stood_out_then_from_seconds_or_minutes(
    hot: HotStore, now_s: float, run: Run
) -> None:
    nodes, minute = fleet_of(run, 4), int(now_s) // 60 * 60 - 120
    names = tuple(node.name for node in nodes)
    latency = 16.5e-6 * (1 + 0.02 * np.random.default_rng(7).standard_normal((60, 4, 8)))
    latency[:, 2, 4] = 144e-6
    values = {"core_utilization_ratio": np.full((60, 4, 32), 0.97), "efa_latency_s": latency}
    hot.append(
        block(tick=minute + i, nodes=names, **{name: each[i] for name, each in values.items()})
        for i in range(60)
    )
    recent = past_groups(hot, at_s=minute + 59)[0]
    early = minute - 3600
    ticks = np.arange(early, early + 60)
    durable.write_rollups(Span(nodes[0].shard, ticks, names, values, 1))
    late = past_groups(hot, at_s=early + 59)[0]

    for group in (recent, late):
        assert group.finding.startswith("EFA 4 of 002: EFA latency 144")
        assert group.rows[0].name == names[2]
        # What differs by rounding alone is like its peers.
        assert max(abs(byte - 127) for row in group.rows[1:] for byte in row.strengths) < 64


def test_a_silent_node_is_unknown_and_no_outlier(
    hot: HotStore, now_s: float, steady: Node, limping: Node
) -> None:
    hot.append([block(tick=int(now_s), nodes=("steady",), fill=0.5)])

    [group] = groups_of(hot)

    silent = next(row for row in group.rows if row.state == "silent")
    assert set(silent.strengths) == {ABSENT_RATIO}
    assert group.outlier is None


def fleet_of(run: Run, n_nodes: int) -> list[Node]:
    return Node.objects.bulk_create(
        Node(
            name=f"{run.name}-{i:03}",
            run=run,
            rank=i,
            shard=f"{run.name}/0",
            instance_type="trn1.32xlarge",
            n_cores=32,
            n_devices=16,
            first_seen_at=NOON,
        )
        for i in range(n_nodes)
    )


def test_of_a_large_fleet_a_pixel_is_a_node_and_who_is_accused_has_a_row(
    hot: HotStore, now_s: float, run: Run
) -> None:
    nodes = fleet_of(run, 450)
    names = [node.name for node in nodes if node.rank != 7]
    cores = np.full((449, 32), 0.5)
    hot.append([block(tick=int(now_s), nodes=names, core_utilization_ratio=cores)])
    alert = straggling(run, nodes[300], at=NOON, device=17)

    [group] = groups_of(hot, alert, most_rows=100)

    assert group.n_nodes == 450
    own, many = group.rows[:2], group.rows[2:]
    assert [row.name for row in own] == [nodes[7].name, nodes[300].name]
    assert (own[0].what, own[1].alert) == ("silent", alert)
    assert [(row.n_nodes, row.place) for row in many] == [(200, 0), (200, 200), (50, 400)]
    assert list(many[0].values[5:9]) == [127, 127, ABSENT_RATIO, 127]
    assert many[2].address == f"/nodes/?run={run.name}&sort=run&page=5"
    assert (many[0].mean, many[0].lowest, many[0].highest) == (0.5, 0.5, 0.5)


def test_small_runs_of_a_large_fleet_share_rows_and_none_is_in_two(
    hot: HotStore, run: Run
) -> None:
    runs = [run]
    for i in range(1, 4):
        run.pk, run.name = None, f"llama-{i}"
        run.save()
        runs.append(Run.objects.get(name=f"llama-{i}"))
    runs[0] = Run.objects.get(name="llama")
    for each, n_nodes in zip(runs, (250, 90, 90, 90), strict=True):
        fleet_of(each, n_nodes)

    shared, large = groups_of(hot, most_rows=100, most_groups=3)

    assert (shared.n_runs, shared.run, shared.n_nodes) == (3, None, 270)
    assert (large.run, large.n_nodes) == (runs[0], 250)
    rows = [row for row in shared.rows if row.runs]
    assert [row.runs for row in rows] == ["llama-1 0,llama-2 90", "llama-3 0"]
    assert [row.tail for row in rows] == ["llama-1 … llama-2", "llama-3"]
    assert rows[1].address == "/nodes/?run=llama-3&sort=run&page=1"
