"""The heat map: every core of every node, by run; absent differs from idle."""

import base64

import numpy as np

from fleet.charts.heat import NO_DATA, heat_groups, packed_cores, unknown_cores
from fleet.models import Node, Run
from fleet.runs.summaries import NodeNow
from tests.alerts import straggling
from tests.helpers import NOON, NOON_S, block


def unpacked(text: str) -> list[int]:
    """Read the bytes that the page's script reads."""
    return list(base64.b64decode(text))


def up(node: Node) -> NodeNow:
    """Say that a node reports."""
    return NodeNow(node, last_seen_s=NOON_S, is_up=True)


def test_a_core_is_a_byte_and_a_silent_one_has_its_own() -> None:
    cores = np.array([[0.0, 0.5, 1.0, np.nan], [-0.1, 1.2, 0.25, 0.004]])
    reported = packed_cores([block(core_utilization_ratio=cores)], {"steady", "limping"})

    assert unpacked(reported["steady"]) == [0, 127, 254, NO_DATA]
    assert unpacked(reported["limping"]) == [0, 254, 64, 1]


def test_a_node_without_readings_has_no_data_for_each_core() -> None:
    assert unpacked(unknown_cores(3)) == [NO_DATA] * 3


def test_nodes_stand_by_run_and_rank_and_those_of_no_run_last(
    run: Run, limping: Node, steady: Node
) -> None:
    loose = Node.objects.create(
        name="aaa", instance_type="trn1.2xlarge", n_cores=2, n_devices=1, first_seen_at=NOON
    )

    groups = heat_groups([up(loose), up(limping), up(steady)], [], [block()])

    assert [group.run for group in groups] == [run, None]
    assert [row.now.node.name for row in groups[0].rows] == ["steady", "limping"]


def test_a_node_that_fell_silent_shows_no_old_readings(steady: Node) -> None:
    gone = NodeNow(steady, last_seen_s=NOON_S - 60, is_up=False)

    [group] = heat_groups([gone], [], [block()])

    assert set(unpacked(group.rows[0].cores)) == {NO_DATA}


def test_the_culprit_page_names_the_cause(run: Run, limping: Node) -> None:
    alert = straggling(run, limping, at=NOON, device=17)

    [group] = heat_groups([up(limping)], [alert], [block()])

    assert group.rows[0].alert == alert
    assert group.rows[0].what == "core 17"


def test_a_name_is_distinguished_from_its_run_that_stands_above(run: Run, steady: Node) -> None:
    steady.name = f"{run.name}-07"
    [group] = heat_groups([up(steady)], [], [])

    assert (group.rows[0].stem, group.rows[0].tail) == (run.name, "-07")


def test_machines_of_different_types_are_not_called_alike(
    run: Run, limping: Node, steady: Node
) -> None:
    assert heat_groups([up(steady), up(limping)], [], [])[0].is_alike

    limping.instance_type = "trn2.48xlarge"

    assert not heat_groups([up(steady), up(limping)], [], [])[0].is_alike


def test_of_a_large_fleet_a_pixel_is_a_node_and_who_is_accused_has_a_row(run: Run) -> None:
    nodes = [
        Node.objects.create(
            name=f"{run.name}-{i:03}",
            run=run,
            rank=i,
            instance_type="trn1.32xlarge",
            n_cores=32,
            n_devices=16,
            first_seen_at=NOON,
        )
        for i in range(450)
    ]
    shown = [NodeNow(node, NOON_S, is_up=True, utilization_mean=0.5) for node in nodes]
    shown[7] = NodeNow(nodes[7], NOON_S - 60, is_up=False)
    alert = straggling(run, nodes[300], at=NOON, device=17)

    [group] = heat_groups(shown, [alert], [], most_rows=100)

    assert (group.n_nodes, group.first) == (450, nodes[0])
    own, many = group.rows[:2], group.rows[2:]
    assert [row.name for row in own] == [nodes[7].name, nodes[300].name]
    assert own[1].alert == alert
    assert [(row.n_nodes, row.place) for row in many] == [(200, 0), (200, 200), (50, 400)]
    assert unpacked(many[0].cores)[5:9] == [127, 127, NO_DATA, 127]
    assert many[2].address == f"/nodes/?run={run.name}&page=5"
    assert (many[0].mean, many[0].lowest, many[0].highest) == (0.5, 0.5, 0.5)
