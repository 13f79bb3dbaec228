"""Sending columns: only to servers that accept them, in order, without loss."""

from telemetry.agent.reports import MONITOR, encode_tail
from telemetry.agent.spool import gzip_member
from tests.telemetry.agent.ingest_server import Response, Server
from tests.telemetry.agent.test_sender import Node, node, server

__all__ = ["node", "server"]


def measuring(node: Node, n: int) -> None:
    """Spool reports that differ in a number, a second apart."""
    for i in range(n):
        report = b'{"neuron_runtime_data":[],"x":%d}' % i
        node.spool.append(MONITOR, node.clock.now(), gzip_member(encode_tail(report, {})))
        node.clock.pass_s(1.0)


UNDERSTOOD: Response = (200, {"accepted": 1, "takes": ["columns"]}, {})


def test_columns_are_sent_only_to_who_states_that_they_are_understood(
    node: Node, server: Server
) -> None:
    measuring(node, 2)
    server.answers = [UNDERSTOOD, UNDERSTOOD]
    node.sender.deliver()
    measuring(node, 3)
    node.sender.deliver()

    plain, together = server.requests
    assert [set(line) & {"columns", "report"} for line in plain.lines] == [{"report"}] * 2
    [line] = together.lines
    assert len(line["columns"]["seq"]) == 3
    assert line["columns"]["at"] == [1_795_262_402.0 + i for i in range(3)]
    assert line["columns"]["stream"] == node.spool.stream
    assert line["columns"]["agent"]["n_waiting"] == 0
    assert node.spool.n_waiting == 0


def test_a_server_that_is_an_older_one_now_gets_the_same_reports_as_they_are(
    node: Node, server: Server
) -> None:
    measuring(node, 1)
    server.answers = [UNDERSTOOD, (400, {"detail": "No line was taken."}, {})]
    node.sender.deliver()
    measuring(node, 3)
    while node.spool.n_waiting:
        node.sender.deliver()

    assert [line["report"]["x"] for request in server.requests for line in request.lines] == [
        0,
        0,
        1,
        2,
    ]
    assert node.health.summary(n_waiting=0)["n_refused"] == 0


def test_columns_are_packed_with_zstd_only_for_a_server_that_says_so(
    node: Node, server: Server
) -> None:
    both: Response = (200, {"accepted": 1, "takes": ["columns", "zstd"]}, {})
    server.answers = [both, both, UNDERSTOOD, UNDERSTOOD]
    encodings = []
    for n in (1, 2, 2, 2):
        measuring(node, n)
        node.sender.deliver()
        encodings.append(server.requests[-1].headers["Content-Encoding"])

    # Single lines are in gzip since they were spooled.
    assert encodings == ["gzip", "zstd", "zstd", "gzip"]
    assert [len(request.lines[0]["columns"]["seq"]) for request in server.requests[1:]] == [2] * 3


def test_a_server_that_refuses_zstd_gets_the_same_reports_in_gzip(
    node: Node, server: Server
) -> None:
    measuring(node, 1)
    both: Response = (200, {"accepted": 1, "takes": ["columns", "zstd"]}, {})
    server.answers = [both, (415, {"detail": "not supported"}, {})]
    node.sender.deliver()
    measuring(node, 2)
    while node.spool.n_waiting:
        node.sender.deliver()

    assert [request.headers["Content-Encoding"] for request in server.requests] == ["gzip"] * 2
    assert [line["report"]["x"] for line in server.requests[-1].lines] == [0, 1]
    assert node.health.summary(n_waiting=0)["n_refused"] == 0


def test_runs_follow_each_other_without_a_rest_and_in_order(node: Node, server: Server) -> None:
    measuring(node, 1)
    server.answers = [UNDERSTOOD] * 4
    node.sender.deliver()
    measuring(node, 2)
    node.report()
    measuring(node, 2)
    node.sender.deliver()

    numbers = [
        seq
        for request in server.requests
        for line in request.lines
        for seq in (line["columns"]["seq"] if "columns" in line else [line["seq"]])
    ]
    assert numbers == sorted(numbers)
    assert len(numbers) == 6
    assert len(server.requests) == 4
