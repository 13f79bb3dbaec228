"""Which programs run, by what the environment asks for."""

import pytest

from fleet.up import programs


@pytest.mark.parametrize("name", ["LONG_TERM_WRITE_URL", "LONG_TERM_WRITE_URL_FILE"])
def test_the_long_term_store_is_written_to_where_one_is_named(name: str) -> None:
    assert [each.name for each in programs.asked_for({name: "somewhere"})] == ["long-term"]


def test_else_nothing_more_runs() -> None:
    assert programs.asked_for({"LONG_TERM_WRITE_URL": ""}) == []
