"""Operator files of every format, with known answers."""

import pytest

from telemetry.checks.operators import OperatorFileKind
from tests.telemetry.checks.files import from_file, judged, read

# form; operator: (uses, first line)
KNOWN: dict[str, tuple[OperatorFileKind, dict[str, tuple[int, int]]]] = {
    "export.txt": (
        OperatorFileKind.FX,
        {
            "aten::t": (1, 5),
            "aten::mm": (1, 6),
            "aten::relu": (1, 7),
            "aten::add": (1, 8),
            "aten::add_": (1, 9),
            "aten::cumsum": (1, 10),
            "rl::advantage": (1, 11),
            "aten::fft_fft": (1, 12),
            "aten::mul": (1, 13),
        },
    ),
    "nodes.txt": (
        OperatorFileKind.FX,
        {
            "module::backbone.conv": (1, 3),
            "aten::relu": (1, 4),
            "aten::add": (1, 5),
            "aten::view": (1, 6),
            "aten::split": (1, 7),
        },
    ),
    "table.txt": (
        OperatorFileKind.FX,
        {"aten::add": (1, 4), "aten::tanh": (2, 5), "aten::erf": (1, 6)},
    ),
    "script.txt": (
        OperatorFileKind.FX,
        {"aten::add": (1, 3), "aten::gelu": (1, 4), "aten::mul": (1, 5)},
    ),
    "module.hlo": (
        OperatorFileKind.HLO,
        {
            "hlo::add": (2, 6),
            "hlo::dot": (1, 12),
            "hlo::all-reduce": (1, 14),
            "hlo::convert": (1, 16),
            "custom-call::AwsNeuronRmsNorm": (1, 17),
            "custom-call::our_kernel": (1, 18),
            "hlo::while": (1, 19),
            "hlo::triangular-solve": (1, 20),
        },
    ),
    "module.mlir": (
        OperatorFileKind.STABLEHLO,
        {
            "hlo::dot-general": (1, 4),
            "hlo::reduce": (1, 5),
            "hlo::add": (2, 5),
            "hlo::compare": (1, 6),
            "custom-call::our_kernel": (1, 7),
            "hlo::complex": (1, 9),
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
    "export.txt": "aten::fft_fft aten::mul | rl::advantage aten::cumsum",
    "nodes.txt": "| module::backbone.conv aten::split",
    "table.txt": "| aten::erf",
    "script.txt": "aten::mul | aten::gelu",
    "module.hlo": "hlo::convert hlo::triangular-solve"
    " | custom-call::our_kernel hlo::all-reduce hlo::while",
    "module.mlir": "hlo::complex | custom-call::our_kernel hlo::compare hlo::reduce",
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
    assert from_file("module.hlo").n_structure == 5
    assert from_file("nodes.txt").n_structure == 1


def test_lines_may_end_as_windows_ends_them_and_begin_with_a_mark() -> None:
    reading = read("\ufeffaten::add\r\naten::mm 2\r\n")

    assert {each.name: each.n for each in reading} == {"aten::add": 1, "aten::mm": 2}


def test_an_instruction_without_its_module_is_known_too() -> None:
    assert read("%1 = f32[2]{0} add(%a, %b)\n").form is OperatorFileKind.HLO
    assert (
        read('%2 = "stablehlo.add"(%0, %1) : tensor<2xf32>\n').form is OperatorFileKind.STABLEHLO
    )


def test_torch_xla_writes_the_operators_of_pytorch_like_hlo() -> None:
    text = "IR {\n  %0 = f32[2]{0} xla::device_data(), value=1\n"
    reading = read(f"{text}  %1 = f32[2]{{0}} aten::add(%0, %0), ROOT=0\n}}\n")

    assert [(each.name, each.line) for each in reading] == [("aten::add", 3)]


def test_two_calls_on_one_line_are_two() -> None:
    line = "a: 'f32[2]' = torch.ops.aten.add.Tensor(torch.ops.aten.mul.Tensor(x, x), x)"

    assert [each.name for each in read(line)] == ["aten::add", "aten::mul"]
