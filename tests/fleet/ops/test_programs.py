"""Which programs run in which environment."""

import subprocess
from pathlib import Path

from uvicorn.importer import import_from_string

from fleet.api.connections import LimitedProtocol
from fleet.ops import services, web_server
from fleet.ops.liveness import TABLE

ROOT = Path(__file__).parents[3]


def test_the_web_server_limits_clients_that_are_not_known() -> None:
    assert "fleet.ops.web_server" in services.web(listener=3).command
    assert "-m fleet.ops.web_server" in (ROOT / "deploy/run").read_text()

    assert import_from_string(web_server.PROTOCOL) is LimitedProtocol


def test_a_program_that_is_gone_says_what_takes_its_place() -> None:
    done = subprocess.run(
        [ROOT / "deploy/run", "long-term"], check=False, capture_output=True, text=True
    )

    assert done.returncode == 2
    assert "docs/long-term.md" in done.stderr


def test_every_program_is_in_the_table_of_liveness() -> None:
    programs = [services.web(listener=3), services.worker("worker-1"), services.beat()]
    programs += [services.sender(), services.fork_server()]

    assert {program.kind for program in programs} | {"redis"} == set(TABLE)
