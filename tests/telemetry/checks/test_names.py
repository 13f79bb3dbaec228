"""Spellings of one operator map to one name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.checks.operators import operator_name


@pytest.mark.parametrize(
    "written",
    [
        "aten::add",
        "aten::add.Tensor",
        "aten.add.Tensor",
        "aten.add",
        "torch.ops.aten.add.Tensor",
        "torch.ops.aten.add",
        "add",
        "add.Tensor",
        "operator.add",
        "torch.add",
    ],
)
def test_ways_to_write_add(written: str) -> None:
    assert operator_name(written) == "aten::add"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (r"aten::fill\_", "aten::fill_"),
        ("torch.nn.functional.gelu", "aten::gelu"),
        ("operator.truediv", "aten::div"),
        ("stablehlo.dot_general", "hlo::dot-general"),
        ("chlo.erf", "hlo::erf"),
        ("all-reduce", "hlo::all-reduce"),
        ("torch.ops.rl.advantage.default", "rl::advantage"),
        ("rl.advantage.default", "rl::advantage"),
        ("prims.iota.default", "prims::iota"),
    ],
)
def test_other_names(written: str, name: str) -> None:
    assert operator_name(written) == name


@pytest.mark.parametrize("written", ["", "two words", "1add", "::", "a::", "torch.ops.aten", "é"])
def test_what_is_no_name(written: str) -> None:
    assert operator_name(written) == ""


@given(st.text(max_size=300))
def test_a_name_is_its_own_name(text: str) -> None:
    name = operator_name(text)

    assert not name or operator_name(name) == name
