"""Unreadable files are refused with line or field, and the fix."""

import io
import json
from typing import Any

import pytest

from telemetry.checks.operator_readers import LONGEST_LINE_BYTES, read_operators
from telemetry.checks.operators import SupportError
from tests.telemetry.checks.files import DATA, read

RESULT: dict[str, Any] = json.loads((DATA / "result.json").read_text())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "empty"),
        (" \n\n", "empty"),
        ("aten::add\nhow are you\n", "line 2: “how are you” is no operator; write one operator"),
        ("aten::add 0\n", "line 1: “aten::add 0” is no operator"),
        ("HloModule m\n\n%p = f32[] parameter(0)\n", "line 1: .*how to list those of a graph"),
        ("\nExportedProgram:\n", "line 2: .*how to list those of a graph"),
        ("hlo::parameter\n", "no operator in 1 lines, read as list"),
        ("# nothing\n", "no operator in 1 lines, read as list; the first is “# nothing”"),
        (b"PK\x03\x04zip", "zip archive, such as a saved .pt2; write its"),
        (b"\x1f\x8b\x08", "gzipped; unpack it first"),
        (b"\x0a\x04\x00main", "not text, such as a protobuf"),
        (b"aten::add\nmm\0\n", "not text"),
        (b"\xff\xfe" + "aten::add\n".encode("utf-16-le"), "UTF-16, .* save it as UTF-8"),
        (b"\xfe\xff" + "aten::add\n".encode("utf-16-be"), "UTF-16, .* save it as UTF-8"),
        ("{\n  'a': 1\n}", "line 2: no JSON"),
        ("{}", "neither supported_operators nor unsupported_operators"),
        ('{"a": ' + "[" * 100_000, "no report|no JSON|too long"),
        ('{"supported_operators": {"aten": {"aten::add": ' + "9" * 5_000 + "}}}", "beyond reason"),
    ],
)
def test_a_file_that_cannot_be(text: str | bytes, shown: str) -> None:
    with pytest.raises(SupportError, match=shown):
        read(text)


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("supported_operators", {"aten": {"aten::add": "many"}}, "aten::add is “many”, no count"),
        ("supported_operators", {"aten": {"aten::add": True}}, "aten::add is “True”, no count"),
        ("supported_operators", {"aten": {"aten::add": -1}}, "aten::add is “-1”, no count"),
        ("supported_operators", {"aten": {"a b": 1}}, "supported_operators.aten holds “a b”"),
        ("supported_operators", {"aten": 3}, "supported_operators.aten holds no operators"),
        ("supported_operators", {"xla": ["add"]}, "“add”, no HLO instruction"),
        ("unsupported_operators", {"aten": {}}, "unsupported_operators.aten is no list"),
        ("unsupported_operators", ["aten::add"], "unsupported_operators holds “aten::add”"),
        ("unsupported_operators", [{"kind": None}], "holds “None”, no operator"),
    ],
)
def test_a_report_that_is_not_of_its_form(field: str, value: object, shown: str) -> None:
    with pytest.raises(SupportError, match=shown):
        read(json.dumps(RESULT | {field: value}))


def test_a_file_that_is_too_large() -> None:
    with pytest.raises(SupportError, match=r"larger than 0\.0009\d* MiB; give the operators"):
        read_operators(io.BytesIO(b"aten::add\n" * 200), most_bytes=1_000)


def test_too_many_operators() -> None:
    with pytest.raises(SupportError, match="line 10001: more than 10,000 different operators"):
        read("\n".join(f"aten::a{i}" for i in range(10_001)))


def test_a_line_that_is_too_long_counts_by_its_beginning() -> None:
    reading = read(f"aten::add # {'x' * LONGEST_LINE_BYTES}\naten::tanh\n")

    assert [(each.name, each.line) for each in reading] == [("aten::add", 1), ("aten::tanh", 2)]
    assert (reading.n_lines, reading.n_cut) == (2, 1)
