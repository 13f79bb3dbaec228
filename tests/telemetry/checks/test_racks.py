"""Slow pairs within and across racks; crossing racks alone is no finding."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.checks.preflight import judge
from telemetry.checks.preflight_measurements import Measured
from telemetry.simulate.preflight import ProbedNodes, ProbeFault
from tests.telemetry.checks.simulated_preflight import measured

RATIOS = (1.0, 1.15, 1.3, 2.0)
N_RACKS = (1, 2, 4)


def bed_of(*, seed: int, n_racks: int, ratio: float, n: int = 16) -> ProbedNodes:
    return ProbedNodes(
        tuple(f"s{seed}-{i:02d}" for i in range(n)),
        "trn2.48xlarge",
        seed,
        n_racks=n_racks,
        rack_ratio=ratio,
        rack_bandwidth_ratio=ratio,
    )


def latency_only(whole: Measured) -> Measured:
    unknown = np.full_like(whole.p50_s, np.nan)
    return replace(whole, p99_s=unknown, bandwidth_bytes_per_s=unknown)


def pair_of(bed: ProbedNodes, *, across: bool) -> tuple[str, str] | None:
    """Choose a pair of two racks, or of the largest rack."""
    racks = bed.racks.tolist()
    largest = max(racks, key=racks.count)
    place = racks.index(largest)
    for i, rack in enumerate(racks):
        if i != place and (rack != largest) == across:
            one, other = sorted((place, i))
            return bed.nodes[one], bed.nodes[other]
    return None


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("n_racks", N_RACKS)
@pytest.mark.parametrize("across", [False, True], ids=["within", "across"])
def test_a_bad_pair_is_found_and_nothing_else(n_racks: int, ratio: float, *, across: bool) -> None:
    for seed in range(2):
        bed = bed_of(seed=seed, n_racks=n_racks, ratio=ratio)
        if (pair := pair_of(bed, across=across)) is None:
            continue
        fault = ProbeFault(kind="pair_slow", node=pair[0], peer=pair[1], magnitude=2.5)
        found = measured(replace(bed, faults=(fault,)))

        for each in (found, latency_only(found)):
            findings = judge(each, bed.instance).troubles
            assert [(t.kind, t.node, t.peer) for t in findings] == [("pair_slow", *pair)]


@pytest.mark.parametrize("ratio", RATIOS)
def test_racks_alone_are_no_finding(ratio: float) -> None:
    for seed in range(8):
        for n_racks in N_RACKS:
            bed = bed_of(seed=seed, n_racks=n_racks, ratio=ratio, n=(8, 16)[seed % 2])
            assert judge(measured(bed), bed.instance).troubles == ()


def test_inferred_racks_are_those_of_the_nodes() -> None:
    bed = bed_of(seed=5, n_racks=4, ratio=1.5)
    found = judge(measured(bed), bed.instance).racks

    expected = {tuple(np.array(bed.nodes)[bed.racks == rack]) for rack in set(bed.racks.tolist())}
    assert found is not None
    assert (found.basis, set(found.racks)) == ("inferred", expected)
    assert found.ratio == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize("ratio", [1.0, 1.3, 2.0])
def test_a_node_that_is_slow_to_all_is_a_slow_node_and_not_a_rack(ratio: float) -> None:
    bed = bed_of(seed=3, n_racks=2, ratio=ratio)
    whole = latency_only(measured(bed))
    factor = np.ones(16)
    factor[4] = 1.6

    findings = judge(replace(whole, p50_s=whole.p50_s * np.outer(factor, factor)), None).troubles
    assert [(t.kind, t.node) for t in findings] == [("node_slow", bed.nodes[4])]


def test_labels_find_the_bad_pair_of_a_rack_of_two() -> None:
    """Without labels it looks like a pair across racks."""
    racks = ("a", "a", "b", "b", "c", "c")
    p50_s = np.where(np.equal.outer(racks, racks), 16e-6, 32e-6)
    p50_s[0, 1] = p50_s[1, 0] = 40e-6
    np.fill_diagonal(p50_s, np.nan)
    whole = replace(Measured.blank(tuple("123456"), n_efa=0), p50_s=p50_s)

    assert judge(whole, None).pairs == []
    [pair] = judge(replace(whole, racks=racks), None).pairs
    assert (pair.node, pair.peer) == ("1", "2")
    assert pair.usual == pytest.approx(16e-6)


def test_labels_are_used_if_the_figures_agree() -> None:
    bed = bed_of(seed=1, n_racks=2, ratio=1.3)
    right = tuple(f"rack-{rack}" for rack in bed.racks)
    found = judge(replace(measured(bed), racks=right), None).racks
    assert found is not None
    assert found.basis == "labels"

    even = bed_of(seed=1, n_racks=1, ratio=1.3)
    assert judge(replace(measured(even), racks=right), None).racks is None
