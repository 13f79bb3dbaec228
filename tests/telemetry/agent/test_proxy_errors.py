"""Wrong servers and proxies: nothing is lost, and the log names the reason."""

import os
from pathlib import Path

import pytest

from telemetry.agent.program import connection_of, read_options
from tests.telemetry.agent.ingest_server import Server
from tests.telemetry.agent.test_sender import Node, node, server

__all__ = ["node", "server"]


@pytest.mark.parametrize("status", [200, 204, 301, 400])
def test_what_a_portal_or_proxy_in_between_states_loses_nothing(
    node: Node, server: Server, status: int
) -> None:
    node.report(n=2)
    server.answers = [(status, {}, {"Location": "https://elsewhere.example"})]

    assert node.sender.deliver() > 0
    assert node.spool.n_waiting == 2
    problem = node.health.summary(n_waiting=0)["problem"]
    assert problem.startswith(f"server: {status} redirected to https://elsewhere.example")


def test_errors_are_logged_at_start_and_end_only(
    node: Node, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    node.report()
    server.answers = [(401, {"detail": "The token is not known."}, {})] * 2
    for _ in range(3):
        node.sender.deliver()
    node.report()
    server.answers = [(503, {}, {})]
    node.sender.deliver()
    node.sender.deliver()

    assert capsys.readouterr().err.splitlines() == [
        "trnwatch-agent: server: 401 The token is not known.",
        "trnwatch-agent: server: recovered",
    ]


def test_what_goes_wrong_inside_does_not_end_the_delivery(
    node: Node, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.report()
    with monkeypatch.context() as broken:
        broken.setattr("os.pwrite", lambda *_: os.close(-1))
        assert node.sender.deliver_safely() > 0
    assert "OSError" in node.health.summary(n_waiting=0)["problem"]
    node.report()

    assert node.sender.deliver_safely() == 0
    assert "problem" not in node.health.summary(n_waiting=0)


def test_a_file_of_authorities_that_is_none_is_named(tmp_path: Path) -> None:
    given = ["--server", "https://x", "--ca-file", str(tmp_path / "none")]
    options = read_options([*given, "--spool", str(tmp_path)], {"TRNWATCH_TOKEN": "s"})

    with pytest.raises(OSError, match=r"--ca-file \(TRNWATCH_CA_FILE\) .*none"):
        connection_of(options)
