"""Judgements: the compiler's word first, then what is published, and never a guess."""

from hypothesis import given
from hypothesis import strategies as st

from telemetry.support import Basis, Report, State, judge, published
from tests.telemetry.support.files import from_file, judged, read


def said(**verdicts: tuple[int, int]) -> Report:
    """Make a report: passed and failed uses of operators of PyTorch."""
    names = {f"aten::{name}": counts for name, counts in verdicts.items()}
    return Report(
        torch_neuronx="",
        neuronx_cc="2.15",
        passed={name: n for name, (n, _) in names.items() if n},
        failed={name: n for name, (_, n) in names.items() if n},
        failures={name: ("neuronx-cc",) for name, (_, n) in names.items() if n},
    )


def test_the_report_overrides_the_list() -> None:
    reading = read("aten::add\naten::cumsum\naten::mm\n")

    found = {
        each.name: each for each in judge(reading, published(), said(add=(3, 1), cumsum=(2, 0)))
    }
    assert found["aten::add"].state is State.UNSUPPORTED
    assert (found["aten::add"].n_failed, found["aten::add"].n_tried) == (1, 4)
    assert found["aten::add"].is_listed
    assert found["aten::cumsum"].state is State.SUPPORTED
    assert not found["aten::cumsum"].is_listed
    assert found["aten::mm"].basis is Basis.LIST


def test_the_report_overrides_what_error_pages_refuse() -> None:
    graph = from_file("export.txt")

    found = {each.name: each for each in judge(graph, published(), said(fft_fft=(1, 0)))}
    assert found["aten::fft_fft"].state is State.SUPPORTED
    assert found["aten::mul"].state is State.UNSUPPORTED


def test_the_report_speaks_of_an_operator_in_place_or_not() -> None:
    graph = from_file("export.txt")

    found = {each.name: each for each in judge(graph, published(), said(add=(0, 2)))}
    assert found["aten::add_"].state is State.UNSUPPORTED


def test_an_operator_may_pass_here_and_fail_there() -> None:
    found = judged(from_file("result.json"))["aten::mul"]

    assert (found.n_failed, found.n_tried) == (1, 2)
    assert found.detail == "neuronx-cc, policy.py 24"


def test_what_nobody_names_is_unknown_never_refused() -> None:
    found = judge(read("aten::nobody_wrote_this\n"), published())

    assert [(each.state, each.basis) for each in found] == [(State.UNKNOWN, Basis.NONE)]


def test_the_worst_come_first_then_the_most_used() -> None:
    reading = read("aten::cumsum 2\naten::erf 9\naten::add 50\naten::triangular_solve\n")

    names = [each.name for each in judge(reading, published())]
    assert names == ["aten::triangular_solve", "aten::erf", "aten::cumsum", "aten::add"]


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
    found = judge(read("\n".join(lines)), published())

    assert {each.name: each.n for each in found} == operators
