"""Which programs run in which environment."""

import shlex
from pathlib import Path

import pytest
from uvicorn.importer import import_from_string

from fleet.api.connections import LimitedProtocol
from fleet.ops import services

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("how", ["make up", "deploy/run"])
def test_the_web_server_limits_clients_that_are_not_known(how: str) -> None:
    if how == "make up":
        arguments = list(services.web(listener=3).command)
    else:
        arguments = shlex.split((ROOT / "deploy/run").read_text(), comments=True)

    named = arguments[arguments.index("--http") + 1]

    assert import_from_string(named) is LimitedProtocol


@pytest.mark.parametrize("name", ["LONG_TERM_WRITE_URL", "LONG_TERM_WRITE_URL_FILE"])
def test_the_long_term_store_is_written_to_where_one_is_named(name: str) -> None:
    assert [each.name for each in services.optional_programs({name: "somewhere"})] == ["long-term"]


def test_else_nothing_more_runs() -> None:
    assert services.optional_programs({"LONG_TERM_WRITE_URL": ""}) == []
