"""Hostile input is read or refused in linear time."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.checks import operator_readers
from telemetry.checks.operators import SupportError
from telemetry.checks.support import judge, published
from tests.telemetry.checks.files import DATA, read

FILES = [path.read_bytes() for path in sorted(DATA.iterdir())]
PIECES = st.sampled_from(
    [
        "torch.ops.",
        "aten::",
        "add.Tensor(",
        " = ",
        "call_function[target=",
        "HloModule ",
        "%a = (",
        "f32[2]{0} ",
        "c64[",
        "stablehlo.",
        '"',
        "custom_call @",
        "{",
        "}",
        "\n",
        "#",
        "12",
        " ",
        "\\_",
        "\u00e9",
    ]
)
# A reader that tries every start against every end would take hours over these.
LONG = 65_000
WALLS = [
    "a" * LONG,
    "a." * (LONG // 2),
    "aten::" * (LONG // 6),
    "torch.ops." * (LONG // 10),
    "(" * LONG,
    "%a = " + "(" * LONG,
    "%a = " + "()" * (LONG // 2),
    "%a = f32[" + "1," * (LONG // 2),
    " " * LONG + "x ?",
    "call_function " + " " * LONG + "?",
    "call_function[target=" + "x" * LONG,
    "= self" + ".a" * (LONG // 2),
    "stablehlo." * (LONG // 10),
    "complex<f32>" * (LONG // 12),
    "c64" * (LONG // 3),
    "aten::add" + " " * LONG + "1",
    "1" * LONG,
    "|-" * (LONG // 2),
]


@given(st.lists(PIECES | st.text(max_size=8), max_size=60).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    check(text.encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    check(data)


@given(st.sampled_from(FILES), st.integers(0, 2_000), st.binary(max_size=12), st.integers(0, 40))
@settings(max_examples=200)
def test_a_damaged_file_is_read_or_refused(
    file: bytes, at: int, noise: bytes, n_lost: int
) -> None:
    at = min(at, len(file))
    check(file[:at] + noise + file[at + n_lost :])


def check(data: bytes) -> None:
    """Read and judge, or be refused; what is counted stands somewhere in the file."""
    try:
        reading = read(data)
    except SupportError:
        return
    found = judge(reading, published(), reading.report)
    assert len(found) == len(reading.operators) > 0
    assert all(each.n > 0 and 1 <= each.line <= max(reading.n_lines, 1) for each in found)
    assert reading.digest == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("wall", WALLS, ids=lambda wall: wall[:12])
def test_a_wall_of_text_holds_no_one_up(wall: str) -> None:
    assert operator_readers.use_of(operator_readers.bare(wall)) is None
    assert operator_readers.bare_opcode(wall) == ""
