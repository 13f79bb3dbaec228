"""Simulated probes: repeatable, and slow where a fault is."""

import numpy as np
import pytest

from telemetry.simulate import preflight
from telemetry.simulate.preflight import PROBE_KINDS, ProbedNodes, ProbeFault

FOUR = ("a", "b", "c", "d")
ALL = tuple(np.array(each) for each in zip(*[(0, 1), (0, 2), (0, 3), (2, 3)], strict=True))


def of(*faults: ProbeFault, nodes: tuple[str, ...] = FOUR) -> dict[str, np.ndarray]:
    return preflight.pairs(ProbedNodes(nodes, "trn1.32xlarge", 7, faults), *ALL)


@pytest.mark.parametrize("n", range(2, 12))
def test_rounds_bring_every_pair_together_once_and_no_node_twice_at_a_time(n: int) -> None:
    met: list[tuple[int, int]] = []
    for rows, columns in preflight.rounds(n):
        assert len({*rows.tolist(), *columns.tolist()}) == 2 * len(rows)
        met += zip(rows.tolist(), columns.tolist(), strict=True)

    assert sorted(met) == [(i, j) for i in range(n) for j in range(i + 1, n)]


def test_a_pair_measures_the_same_in_other_company_and_order() -> None:
    four = of()
    two = preflight.pairs(
        ProbedNodes(("d", "c"), "trn1.32xlarge", 7), np.array([0]), np.array([1])
    )

    for name, values in four.items():
        assert two[name][0] == pytest.approx(values[3])
    assert not np.allclose(
        four["p50_s"], preflight.pairs(ProbedNodes(FOUR, "trn1.32xlarge", 8), *ALL)["p50_s"]
    )


def test_pairs_across_racks_are_slower_by_the_given_ratios() -> None:
    def measured(**ratios: float) -> tuple[ProbedNodes, dict[str, np.ndarray]]:
        bed = ProbedNodes(FOUR, "trn1.32xlarge", 7, n_racks=2, **ratios)  # type: ignore[arg-type]
        return bed, preflight.pairs(bed, *ALL)

    bed, near = measured(rack_ratio=1.0)
    _, far = measured(rack_ratio=1.5, rack_bandwidth_ratio=2.0)
    is_across = bed.racks[ALL[0]] != bed.racks[ALL[1]]

    assert 0 < is_across.sum() < len(is_across)
    np.testing.assert_allclose(far["p50_s"] / near["p50_s"], np.where(is_across, 1.5, 1.0))
    rate = "bandwidth_bytes_per_s"
    np.testing.assert_allclose(far[rate] / near[rate], np.where(is_across, 0.5, 1.0))


def test_one_sick_device_of_eight_shows_in_the_tail_and_not_in_the_median() -> None:
    well, sick = of(), of(ProbeFault(kind="efa_latency", node="a", device=1, magnitude=3.0))

    assert sick["p50_s"] == pytest.approx(well["p50_s"])
    assert (sick["p99_s"] / well["p99_s"]) == pytest.approx([3, 3, 3, 1])
    assert (well["bandwidth_bytes_per_s"] / sick["bandwidth_bytes_per_s"])[:3] == pytest.approx(3)


def test_a_bad_pair_is_slow_to_each_other_alone() -> None:
    well, sick = of(), of(ProbeFault(kind="pair_slow", node="d", peer="a", magnitude=3.0))

    assert (sick["p50_s"] / well["p50_s"]) == pytest.approx([1, 1, 3, 1])
    silent = of(ProbeFault(kind="pair_silent", node="a", peer="d"))
    assert np.isinf(silent["p50_s"]).tolist() == [False, False, True, False]
    assert silent["bandwidth_bytes_per_s"][2] == 0


def test_healthy_probes_take_what_published_ones_take() -> None:
    """Two nodes over EFA: 17 to 28 µs for small messages in published runs."""
    assert (of()["p50_s"] > 14e-6).all()
    assert (of()["p50_s"] < 28e-6).all()
    assert (of()["bandwidth_bytes_per_s"] < 100e9).all()


def test_a_collective_follows_the_curve_and_the_worst_way_slows_it() -> None:
    well = ProbedNodes(FOUR, "trn1.32xlarge", 7)
    sick = ProbedNodes(
        FOUR, "trn1.32xlarge", 7, (ProbeFault(kind="pair_slow", node="a", peer="b", magnitude=3),)
    )

    measured = preflight.collective(well, FOUR)
    assert measured.size_bytes[[0, -1]].tolist() == [1024, 2**30]
    assert measured.time_s == pytest.approx(measured.expected_s, rel=0.12)
    assert preflight.collective(sick, FOUR).time_s[-1] > 2 * measured.time_s[-1]
    assert preflight.collective(sick, FOUR[1:]).time_s == pytest.approx(
        preflight.collective(well, FOUR[1:]).time_s
    )


def test_one_node_alone_runs_its_collective_inside() -> None:
    assert np.isfinite(
        preflight.collective(ProbedNodes(("a",), "trn2.48xlarge", 1), ("a",)).time_s
    ).all()


def test_nodes_without_efa_have_no_devices_to_probe_and_talk_all_the_same() -> None:
    bed = ProbedNodes(FOUR, "trn1.2xlarge", 1)

    assert preflight.devices(bed)[0].shape == (4, 0)
    assert np.isfinite(preflight.pairs(bed, *ALL)["p99_s"]).all()


@pytest.mark.parametrize("kind", PROBE_KINDS)
def test_a_fault_on_a_node_elsewhere_changes_nothing(kind: str) -> None:
    fault = ProbeFault(kind=kind, node="elsewhere", peer="a", magnitude=PROBE_KINDS[kind].usual)

    assert of(fault)["p99_s"] == pytest.approx(of()["p99_s"])
