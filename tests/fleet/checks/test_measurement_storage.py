"""Stored preflight measurements round-trip to seven digits."""

from dataclasses import fields, replace

import numpy as np

from fleet.checks.preflights import pack, places, unpack
from fleet.models import Node
from telemetry.checks.preflight_measurements import Measured
from telemetry.simulate import preflight
from telemetry.simulate.preflight import ProbedNodes


def test_everything_comes_back() -> None:
    bed = ProbedNodes(("a", "b", "ü"), "trn1.32xlarge", 1)
    blank = Measured.blank(bed.nodes, n_efa=8)
    full = replace(
        blank.with_pairs(*preflight.rounds(3)[0], preflight.pairs(bed, *preflight.rounds(3)[0])),
        rest=preflight.at_rest(bed),
        rest_s=30.0,
        racks=("r1", "", "r2"),
        device_s=preflight.devices(bed)[0],
        collectives=(preflight.collective(bed, bed.nodes), preflight.collective(bed, ("a", "b"))),
    )

    for measured in (blank, full):
        again = unpack(pack(measured))
        assert (again.nodes, again.racks) == (measured.nodes, measured.racks)
        assert list(again.rest) == list(measured.rest)
        for field in fields(Measured):
            if field.name not in {"nodes", "rest", "collectives", "racks"}:
                np.testing.assert_allclose(
                    getattr(again, field.name), getattr(measured, field.name), rtol=1e-6
                )
        for one, other in zip(again.collectives, measured.collectives, strict=True):
            assert (one.nodes, one.op) == (other.nodes, other.op)
            np.testing.assert_array_equal(one.time_s, other.time_s)


def test_sixteen_nodes_take_few_bytes() -> None:
    nodes = tuple(f"n-{i:02d}" for i in range(16))
    measured = Measured.blank(nodes, n_efa=16)
    for rows, columns in preflight.rounds(16):
        bed = ProbedNodes(nodes, "trn2.48xlarge", 1)
        measured = measured.with_pairs(rows, columns, preflight.pairs(bed, rows, columns))

    assert len(pack(measured)) < 12_000


def test_nodes_are_grouped_by_ultraserver_if_all_of_one_zone_have_one() -> None:
    nodes = [Node(name=name, zone="us-east-2b", ultraserver_id=f"u{name}") for name in "ab"]

    assert places(["b", "a"], nodes) == ("ub", "ua")
    assert places(["a", "new"], nodes) == ("us-east-2b", "")
    nodes[1].zone = "us-east-2a"
    assert places(["b", "a"], nodes) == ("us-east-2a", "us-east-2b")
