"""Operator files of every format, with known answers."""

import pytest

from telemetry.checks.operators import OperatorFileKind
from tests.telemetry.checks.files import from_file, judged, read

# form; operator: (uses, first line)
KNOWN: dict[str, tuple[OperatorFileKind, dict[str, tuple[int, int]]]] = {
    "export.txt": (
        OperatorFileKind.LIST,
        {
            "aten::t": (1, 5),
            "aten::mm": (1, 6),
            "aten::relu": (1, 7),
            "aten::add": (1, 8),
            "aten::add_": (1, 9),
            "aten::cumsum": (1, 10),
            "rl::advantage": (1, 11),
            "aten::triangular_solve": (1, 12),
            "aten::mul": (1, 13),
        },
    ),
    "list.txt": (
        OperatorFileKind.LIST,
        {
            "aten::add": (14, 2),
            "aten::mm": (4, 3),
            "aten::relu": (1, 4),
            "aten::fill_": (1, 5),
            "aten::cumsum": (1, 6),
            "aten::softmax": (3, 8),
            "rl::advantage": (1, 9),
            "hlo::dot-general": (1, 10),
        },
    ),
    "result.json": (
        OperatorFileKind.REPORT,
        {
            "aten::add": (2, 7),
            "aten::cumsum": (3, 8),
            "aten::mul": (2, 9),
            "aten::relu": (1, 19),
        },
    ),
    "inference.json": (
        OperatorFileKind.REPORT,
        {"aten::linear": (3, 5), "aten::relu": (2, 5), "aten::fft_fft": (1, 7)},
    ),
}
STATES = {
    "export.txt": "aten::triangular_solve | rl::advantage aten::cumsum",
    "list.txt": "| rl::advantage aten::cumsum",
    "result.json": "aten::mul aten::relu |",
    "inference.json": "aten::fft_fft |",
}


@pytest.mark.parametrize("name", KNOWN)
def test_every_operator_is_counted_with_its_first_line(name: str) -> None:
    form, known = KNOWN[name]
    reading = from_file(name)

    assert reading.form == form
    assert {each.name: (each.n, each.line) for each in reading} == known


@pytest.mark.parametrize("name", STATES)
def test_every_operator_is_judged(name: str) -> None:
    found = judged(from_file(name)).values()

    bad, _, unknown = STATES[name].partition("|")
    assert [each.name for each in found if each.state == "unsupported"] == bad.split()
    assert [each.name for each in found if each.state == "unknown"] == unknown.split()


def test_inputs_constants_and_tuples_are_no_operators() -> None:
    reading = read("hlo::parameter 2\nhlo::tuple\naten::getitem\naten::add\n")

    assert [each.name for each in reading] == ["aten::add"]


def test_opcodes_of_stablehlo_and_targets_of_custom_calls_are_listed_too() -> None:
    found = judged(read("stablehlo.dot_general 2\ncustom-call::AwsNeuronRmsNorm\n"))

    assert {name: (each.state, each.basis) for name, each in found.items()} == {
        "hlo::dot-general": ("supported", "lowering"),
        "custom-call::AwsNeuronRmsNorm": ("supported", "target"),
    }


def test_lines_may_end_as_windows_ends_them_and_begin_with_a_mark() -> None:
    reading = read("\ufeffaten::add\r\naten::mm 2\r\n")

    assert {each.name: each.n for each in reading} == {"aten::add": 1, "aten::mm": 2}
