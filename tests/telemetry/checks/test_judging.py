"""A preflight finds the simulated faults and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.checks.operators import CompilerReport
from telemetry.checks.preflight import PreflightResult, judge
from telemetry.checks.preflight_measurements import Measured
from telemetry.checks.preflight_pairs import NodeVerdict
from telemetry.checks.support import Basis, Risk, SupportState, published
from telemetry.checks.support import judge as support_judge
from telemetry.simulate import preflight
from telemetry.simulate.preflight import ProbedNodes, ProbeFault
from tests.telemetry.checks.files import from_file, read
from tests.telemetry.checks.files import judged as files_judged
from tests.telemetry.checks.simulated_preflight import SIXTEEN, bed_of, measured

BAD_DEVICE = ProbeFault(kind="efa_latency", node="n-03", device=5, magnitude=3.0)
BAD_PAIR = ProbeFault(kind="pair_slow", node="n-06", peer="n-11", magnitude=2.0)
SHORT_NODE = ProbeFault(kind="chip_missing", node="n-09")


def judged(bed: ProbedNodes, *, take: int | None = None) -> PreflightResult:
    return judge(measured(bed), bed.instance, take=take)


def named(found: PreflightResult) -> list[tuple[str, str, str | None, int | None]]:
    return sorted((t.kind, t.node, t.peer, t.device) for t in found.troubles)


@pytest.mark.parametrize("seed", range(20))
def test_a_bad_device_a_bad_pair_and_a_short_node_are_named_and_nothing_else(seed: int) -> None:
    found = judged(bed_of(BAD_DEVICE, BAD_PAIR, SHORT_NODE, seed=seed), take=12)

    assert named(found) == [
        ("device_missing", "n-09", None, None),
        ("efa_latency", "n-03", None, 5),
        ("pair_slow", "n-06", "n-11", None),
    ]
    assert (found.nodes["n-03"], found.nodes["n-09"]) == (NodeVerdict.FAIL, NodeVerdict.FAIL)
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

    assert [finding for bed in beds for finding in judged(bed).troubles] == []


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
def test_each_fault_is_reported_by_its_own_name_in_small_groups_too(
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

    [finding] = judge(blind, bed_of().instance).troubles

    assert (finding.kind, finding.node, finding.device) == ("node_slow", "n-03", None)


def test_a_node_that_no_one_reaches_is_silent_and_its_peers_are_not() -> None:
    whole = measured(bed_of())
    p50_s = whole.p50_s.copy()
    p50_s[4, :] = p50_s[:, 4] = np.inf
    p50_s[4, 4] = np.nan

    found = judge(replace(whole, p50_s=p50_s), bed_of().instance)

    assert named(found) == [("node_silent", "n-04", None, None)]
    assert len(found.chosen) == 15


def test_what_no_one_probed_is_held_and_not_passed() -> None:
    nothing = Measured.blank(SIXTEEN[:3], n_efa=8)

    found = judge(nothing, bed_of().instance)

    assert set(found.nodes.values()) == {NodeVerdict.HOLD}
    assert found.chosen == ()
    assert [t.kind for t in found.troubles] == ["not_measured"] * 3


def test_one_node_has_no_pairs_and_passes() -> None:
    assert judged(bed_of(n=1)).chosen == ("n-00",)


def test_a_collective_over_the_chosen_that_is_slow_is_reported() -> None:
    bed = bed_of(BAD_DEVICE, n=8, kind="trn1.32xlarge")
    whole = measured(bed)
    chosen = judge(whole, bed.instance).chosen

    over_all = replace(whole, collectives=(preflight.collective(bed, bed.nodes),))
    over_chosen = replace(whole, collectives=(preflight.collective(bed, chosen),))

    assert judge(over_all, bed.instance).slowdown is None
    assert judge(over_chosen, bed.instance).slowdown == pytest.approx(1, abs=0.05)
    assert judge(over_all, None, take=8).chosen == chosen


def compiler_report(**verdicts: tuple[int, int]) -> CompilerReport:
    """Make a report: passed and failed uses of operators of PyTorch."""
    names = {f"aten::{name}": counts for name, counts in verdicts.items()}
    return CompilerReport(
        torch_neuronx="",
        neuronx_cc="2.15",
        passed={name: n for name, (n, _) in names.items() if n},
        failed={name: n for name, (_, n) in names.items() if n},
        failures={name: ("neuronx-cc",) for name, (_, n) in names.items() if n},
    )


def test_the_report_overrides_the_list() -> None:
    reading = read("aten::add\naten::cumsum\naten::mm\n")

    found = {
        each.name: each
        for each in support_judge(reading, published(), compiler_report(add=(3, 1), cumsum=(2, 0)))
    }
    assert found["aten::add"].state is SupportState.UNSUPPORTED
    assert (found["aten::add"].n_failed, found["aten::add"].n_tried) == (1, 4)
    assert found["aten::add"].is_listed
    assert found["aten::cumsum"].state is SupportState.SUPPORTED
    assert not found["aten::cumsum"].is_listed
    assert found["aten::mm"].basis is Basis.LIST


def test_the_report_overrides_what_error_pages_refuse() -> None:
    graph = from_file("export.txt")

    found = {
        each.name: each
        for each in support_judge(graph, published(), compiler_report(triangular_solve=(1, 0)))
    }
    assert found["aten::triangular_solve"].state is SupportState.SUPPORTED
    assert found["rl::advantage"].state is SupportState.UNKNOWN


def test_the_report_names_an_operator_with_or_without_a_place() -> None:
    graph = from_file("export.txt")

    found = {
        each.name: each for each in support_judge(graph, published(), compiler_report(add=(0, 2)))
    }
    assert found["aten::add_"].state is SupportState.UNSUPPORTED


def test_an_operator_may_pass_here_and_fail_there() -> None:
    found = files_judged(from_file("result.json"))["aten::mul"]

    assert (found.n_failed, found.n_tried) == (1, 2)
    assert found.detail == "neuronx-cc, policy.py 24"


def test_what_no_one_names_is_unknown_never_refused() -> None:
    found = support_judge(read("aten::nobody_wrote_this\n"), published())

    assert [(each.state, each.basis) for each in found] == [(SupportState.UNKNOWN, Basis.NONE)]


def test_the_worst_come_first_then_the_most_used() -> None:
    reading = read("aten::cumsum 2\naten::erf 9\naten::add 50\naten::triangular_solve\n")

    names = [each.name for each in support_judge(reading, published())]
    assert names == ["aten::triangular_solve", "aten::erf", "aten::cumsum", "aten::add"]


def test_unknown_operators_are_ranked_by_evidence() -> None:
    reading = read("aten::erf 9\naten::made_up 8\naten::nonzero\naten::sort_ 3\naten::topk 2\n")
    found = support_judge(reading, published())

    assert {each.state for each in found} == {SupportState.UNKNOWN}
    assert [(each.name, each.risk, each.basis) for each in found] == [
        ("aten::sort_", Risk.LIKELY, Basis.EVIDENCE),
        ("aten::nonzero", Risk.LIKELY, Basis.EVIDENCE),
        ("aten::made_up", Risk.OPEN, Basis.NONE),
        ("aten::erf", Risk.UNLIKELY, Basis.EVIDENCE),
        ("aten::topk", Risk.UNLIKELY, Basis.EVIDENCE),
    ]
    assert "NCC_EMOD025" in found[1].detail


def test_a_compiler_report_overrides_the_evidence() -> None:
    found = support_judge(read("aten::sort\n"), published(), compiler_report(sort=(2, 0)))

    assert [(each.state, each.risk) for each in found] == [(SupportState.SUPPORTED, Risk.OPEN)]


@given(
    st.dictionaries(st.from_regex(r"aten::[a-z]{1,6}", fullmatch=True), st.integers(1, 99)),
    st.data(),
)
def test_every_operator_is_judged_once_with_its_count(
    operators: dict[str, int], data: st.DataObject
) -> None:
    lines = data.draw(st.permutations([f"{name} {n}" for name, n in operators.items()]))
    if not lines:
        return
    found = support_judge(read("\n".join(lines)), published())

    assert {each.name: each.n for each in found} == operators
