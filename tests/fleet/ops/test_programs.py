"""Which programs run in which environment."""

from pathlib import Path

import pytest
from uvicorn.importer import import_from_string

from fleet.api.connections import LimitedProtocol
from fleet.ops import services, web_server
from fleet.ops.liveness import TABLE

ROOT = Path(__file__).parents[3]


def test_the_web_server_limits_clients_that_are_not_known() -> None:
    assert "fleet.ops.web_server" in services.web(listener=3).command
    assert "-m fleet.ops.web_server" in (ROOT / "deploy/run").read_text()

    assert import_from_string(web_server.PROTOCOL) is LimitedProtocol


def test_every_program_is_in_the_table_of_liveness() -> None:
    env = {"LONG_TERM_WRITE_URL": "somewhere"}
    programs = [services.web(listener=3), services.worker("worker-1"), services.beat()]
    programs += [services.sender(), *services.optional_programs(env)]

    assert {program.kind for program in programs} | {"redis"} == set(TABLE)


@pytest.mark.parametrize("name", ["LONG_TERM_WRITE_URL", "LONG_TERM_WRITE_URL_FILE"])
def test_the_long_term_store_is_written_to_where_one_is_named(name: str) -> None:
    assert [each.name for each in services.optional_programs({name: "somewhere"})] == ["long-term"]


def test_else_nothing_more_runs() -> None:
    assert services.optional_programs({"LONG_TERM_WRITE_URL": ""}) == []
