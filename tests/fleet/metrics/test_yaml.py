"""YAML as rule files need it: read back by others it is the same."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.metrics.rules import Value, rule_file, written

LINE = st.text("ab1 :#-{}[]'\"%&*!|>,?é\\", max_size=20)
TEXTS = LINE | st.sampled_from(
    ["yes", "on", "1e3", "0x1f", "a: b", "- a", "#", "{{ $value }}", "~"]
)
VALUES = st.recursive(
    TEXTS | st.integers(-(10**9), 10**9),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), inner, min_size=1)
    ),
    max_leaves=5,
)


@settings(max_examples=25)
@given(st.dictionaries(st.from_regex(r"k[a-z]{1,8}", fullmatch=True), VALUES, min_size=1))
def test_what_is_written_reads_the_same(value: Value) -> None:
    assert yaml.safe_load(written({"root": value})) == {"root": value}


@pytest.mark.parametrize("text", ["up == 0\nor\n  up > 1", "a\n\nb", "30s", 'it\'s "so"'])
def test_a_text_keeps_its_lines(text: str) -> None:
    assert yaml.safe_load(written({"expr": text})) == {"expr": text}


def test_the_rule_file_is_written_for_people() -> None:
    text = rule_file()

    assert yaml.safe_load(text)["groups"]
    asked = [line for line in text.splitlines() if "description:" not in line]
    assert max(map(len, asked)) < 150
