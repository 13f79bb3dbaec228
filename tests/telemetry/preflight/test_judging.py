"""What a preflight finds is what is wrong, no more and no less."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.preflight.judging import Judged, judge
from telemetry.preflight.measured import Measured
from telemetry.preflight.trouble import Verdict
from telemetry.simulate import probes
from telemetry.simulate.bed import Bed, ProbeFault
from tests.telemetry.preflight.probed import SIXTEEN, bed_of, measured

BAD_DEVICE = ProbeFault(kind="efa_latency", node="n-03", device=5, magnitude=3.0)
BAD_PAIR = ProbeFault(kind="pair_slow", node="n-06", peer="n-11", magnitude=2.0)
SHORT_NODE = ProbeFault(kind="chip_missing", node="n-09")


def judged(bed: Bed, *, take: int | None = None) -> Judged:
    return judge(measured(bed), bed.instance, take=take)


def named(found: Judged) -> list[tuple[str, str, str | None, int | None]]:
    return sorted((t.kind, t.node, t.peer, t.device) for t in found.troubles)


@pytest.mark.parametrize("seed", range(20))
def test_a_bad_device_a_bad_pair_and_a_short_node_are_named_and_nothing_else(seed: int) -> None:
    found = judged(bed_of(BAD_DEVICE, BAD_PAIR, SHORT_NODE, seed=seed), take=12)

    assert named(found) == [
        ("device_missing", "n-09", None, None),
        ("efa_latency", "n-03", None, 5),
        ("pair_slow", "n-06", "n-11", None),
    ]
    assert (found.nodes["n-03"], found.nodes["n-09"]) == (Verdict.FAIL, Verdict.FAIL)
    assert len(found.chosen) == 12
    assert not {"n-03", "n-09"} & set(found.chosen)
    assert len({"n-06", "n-11"} & set(found.chosen)) <= 1


def test_a_bad_pair_costs_one_node_and_not_two() -> None:
    found = judged(bed_of(BAD_PAIR))

    assert len(found.chosen) == 15
    assert sorted(found.nodes[node].value for node in ("n-06", "n-11")) == ["hold", "pass"]


def test_healthy_nodes_pass_whatever_the_noise() -> None:
    """Of 300 preflights of healthy nodes none may find anything: below 1 % with 95 % surety."""
    beds = [
        bed_of(n=n, kind=kind, seed=seed)
        for seed in range(100)
        for n, kind in ((16, "trn2.48xlarge"), (5, "trn1.32xlarge"), (8, "trn1.2xlarge"))
    ]

    assert [trouble for bed in beds for trouble in judged(bed).troubles] == []


@pytest.mark.parametrize("n", [3, 4, 5, 16])
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (ProbeFault(kind="efa_latency", node="n-01", device=2, magnitude=1.5), "efa_latency"),
        (ProbeFault(kind="efa_loss", node="n-01", device=2, magnitude=0.01), "efa_loss"),
        (ProbeFault(kind="efa_down", node="n-01", device=2), "efa_down"),
        (ProbeFault(kind="ecc_uncorrected", node="n-01", magnitude=6), "ecc_uncorrected"),
        (ProbeFault(kind="rest_moving", node="n-01", magnitude=9), "rest_moving"),
        (ProbeFault(kind="chip_missing", node="n-01"), "device_missing"),
        (ProbeFault(kind="pair_slow", node="n-01", peer="n-02", magnitude=2.0), "pair_slow"),
        (ProbeFault(kind="pair_silent", node="n-01", peer="n-02"), "pair_silent"),
    ],
    ids=lambda value: value.kind if isinstance(value, ProbeFault) else "",
)
def test_each_fault_is_told_by_its_own_name_in_small_groups_too(
    fault: ProbeFault, expected: str, n: int
) -> None:
    found = judged(bed_of(fault, n=n, kind="trn1.32xlarge"))

    assert [(t.kind, t.node, t.peer, t.device) for t in found.troubles] == [
        (expected, fault.node, fault.peer, fault.device)
    ]


def test_without_probes_of_devices_the_node_is_named() -> None:
    whole = measured(bed_of(BAD_DEVICE))
    blind = replace(
        whole,
        device_s=np.full((16, 16), np.nan),
        device_loss_ratio=np.full((16, 16), np.nan),
    )

    [trouble] = judge(blind, bed_of().instance).troubles

    assert (trouble.kind, trouble.node, trouble.device) == ("node_slow", "n-03", None)


def test_a_node_that_nobody_reaches_is_silent_and_its_peers_are_not() -> None:
    whole = measured(bed_of())
    p50_s = whole.p50_s.copy()
    p50_s[4, :] = p50_s[:, 4] = np.inf
    p50_s[4, 4] = np.nan

    found = judge(replace(whole, p50_s=p50_s), bed_of().instance)

    assert named(found) == [("node_silent", "n-04", None, None)]
    assert len(found.chosen) == 15


def test_what_nobody_probed_is_held_and_not_passed() -> None:
    nothing = Measured.nothing_of(SIXTEEN[:3], n_efa=8)

    found = judge(nothing, bed_of().instance)

    assert set(found.nodes.values()) == {Verdict.HOLD}
    assert found.chosen == ()
    assert [t.kind for t in found.troubles] == ["not_measured"] * 3


def test_one_node_has_no_pairs_and_passes() -> None:
    assert judged(bed_of(n=1)).chosen == ("n-00",)


def test_a_collective_over_the_chosen_that_is_slow_is_told() -> None:
    bed = bed_of(BAD_DEVICE, n=8, kind="trn1.32xlarge")
    whole = measured(bed)
    chosen = judge(whole, bed.instance).chosen

    over_all = replace(whole, collectives=(probes.collective(bed, bed.nodes),))
    over_chosen = replace(whole, collectives=(probes.collective(bed, chosen),))

    assert np.isnan(judge(over_all, bed.instance).slowdown)
    assert judge(over_chosen, bed.instance).slowdown == pytest.approx(1, abs=0.05)
    assert judge(over_all, None, take=8).chosen == chosen
