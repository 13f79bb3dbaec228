"""Sentences of preflight findings and of the verdict."""

import pytest

from fleet.checks.preflight_text import listed, reason
from fleet.checks.support import basis_of, basis_sentence, headline, remedy
from telemetry.checks.preflight_pairs import KINDS, PAIRS, PreflightFinding
from telemetry.checks.support import Basis, OperatorJudgement, SupportState
from tests.telemetry.checks.files import from_file, judged


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_finding_has_its_text(kind: str) -> None:
    peer = "b" if kind in PAIRS else None
    finding = PreflightFinding(kind, "a", peer, device=3, metric="p99_s", value=6e-5, usual=2e-5)

    assert len(reason(finding, of="a")) > 10


def test_a_pair_is_distinguished_from_either_side() -> None:
    pair = PreflightFinding("pair_slow", "a", "b", metric="p50_s", value=6e-5, usual=2e-5)

    assert reason(pair, of="a").startswith("slow with b only: median latency")
    assert reason(pair, of="b").startswith("slow with a only: median latency")


def test_long_lists_are_cut() -> None:
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(list("abcdefghijk")) == "a, b, c, d, e, f, g, h and 3 more"


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ((47, 3, 9), "3 of 47 operators are unsupported, 9 unknown."),
        ((47, 1, 0), "1 of 47 operators is unsupported, none unknown."),
        ((47, 0, 9), "None is known to be unsupported, but 9 of 47 operators are unknown."),
        ((2, 0, 1), "None is known to be unsupported, but 1 of 2 operators is unknown."),
        ((12, 0, 0), "All 12 operators are supported."),
        ((1, 0, 0), "The only operator is supported."),
    ],
)
def test_what_stands_comes_first(counts: tuple[int, int, int], shown: str) -> None:
    assert headline(*counts) == shown


def test_the_compiler_refuses_a_listed_operator() -> None:
    found = judged(from_file("result.json"))

    assert basis_of(found["aten::mul"]) == (
        "the compiler refused 1 of 2 uses (neuronx-cc, policy.py 24); "
        "the published list has it, but the report overrides it"
    )
    assert basis_of(found["aten::cumsum"]) == "the compiler took it; the published list lacks it"
    assert basis_of(found["aten::add"]) == "the compiler took it"


def test_what_is_known_of_a_list() -> None:
    found = judged(from_file("export.txt"))

    assert basis_of(found["aten::add"]) == "on the published list"
    assert basis_of(found["aten::add_"]) == "on the published list as aten::add"
    refused = found["aten::triangular_solve"]
    assert basis_of(refused) == "the compiler refuses it: NCC_EVRF001"
    assert basis_of(found["aten::cumsum"]) == (
        "not on the published list; torch_xla lowers it to XLA, so that it reaches the compiler"
    )
    assert basis_of(found["rl::advantage"]).startswith("a custom operator")


def test_every_operator_that_is_not_supported_has_something_to_do() -> None:
    for name in ("export.txt", "list.txt", "result.json"):
        for each in judged(from_file(name)).values():
            assert bool(remedy(each)) == (each.state is not SupportState.SUPPORTED)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("aten::cumsum", "compile a model of one layer"),
        ("hlo::while", "neuronx-cc list-operators"),
        ("rl::advantage", "NKI"),
    ],
)
def test_an_unknown_operator_states_how_to_find_out(name: str, shown: str) -> None:
    judgement = OperatorJudgement(name, name, 1, 1, SupportState.UNKNOWN, Basis.NONE)

    assert shown in remedy(judgement)


def test_the_list_is_incomplete_and_states_it() -> None:
    shown = basis_sentence(41, "2026-04", has_report=False)

    assert "41 operators" in shown
    assert "incomplete" in shown
    assert "overrides" in basis_sentence(41, "2026-04", has_report=True)
