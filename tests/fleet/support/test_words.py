"""What is said of judgements."""

import pytest

from fleet.support.words import headline, rests_on, to_do, why
from telemetry.support import Basis, Judgement, State
from tests.telemetry.support.files import from_file, judged


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((47, 3, 9), "3 of 47 operators are unsupported, 9 unknown."),
        ((47, 1, 0), "1 of 47 operators is unsupported, none unknown."),
        ((47, 0, 9), "None is known to be unsupported, but 9 of 47 operators are unknown."),
        ((2, 0, 1), "None is known to be unsupported, but 1 of 2 operators is unknown."),
        ((12, 0, 0), "All 12 operators are supported."),
        ((1, 0, 0), "The only operator is supported."),
    ],
)
def test_what_stands_comes_first(counts: tuple[int, int, int], said: str) -> None:
    assert headline(*counts) == said


def test_the_compiler_refuses_a_listed_operator() -> None:
    found = judged(from_file("result.json"))

    assert why(found["aten::mul"]) == (
        "the compiler refused 1 of 2 uses (neuronx-cc, policy.py 24); "
        "the published list has it, but its word stands"
    )
    assert why(found["aten::cumsum"]) == "the compiler took it; the published list lacks it"
    assert why(found["aten::add"]) == "the compiler took it"


def test_what_is_known_of_a_graph() -> None:
    found = judged(from_file("export.txt"))

    assert why(found["aten::add"]) == "on the published list"
    assert why(found["aten::add_"]) == "on the published list as aten::add"
    assert why(found["aten::mul"]).endswith("a type that the compiler refuses: c64, NCC_EVRF004")
    assert why(found["aten::cumsum"]) == "nothing published names it"
    assert why(found["rl::advantage"]).startswith("an operator of your own")


def test_every_operator_that_is_not_supported_has_something_to_do() -> None:
    for name in ("export.txt", "nodes.txt", "module.hlo", "module.mlir", "result.json"):
        for each in judged(from_file(name)).values():
            assert bool(to_do(each)) == (each.state is not State.SUPPORTED)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aten::cumsum", "compile a model of one layer"),
        ("hlo::while", "neuronx-cc list-operators"),
        ("module::conv", "torch.export"),
        ("rl::advantage", "NKI"),
    ],
)
def test_an_unknown_operator_says_how_to_find_out(name: str, said: str) -> None:
    judgement = Judgement(name, name, 1, 1, State.UNKNOWN, Basis.NONE)

    assert said in to_do(judgement)


def test_the_list_is_no_oracle_and_says_so() -> None:
    said = rests_on(41, "2026-04", has_report=False)

    assert "41 operators" in said
    assert "no oracle" in said
    assert "overrides" in rests_on(41, "2026-04", has_report=True)
