"""Sending: in order, with retries, and dropping what is refused for good."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from telemetry.agent.clock import Clock, Moment
from telemetry.agent.reports import MONITOR, SYSFS, Health, encode_tail
from telemetry.agent.sender import AgentSender, TokenFile
from telemetry.agent.spool import Spool, gzip_member
from tests.telemetry.agent.ingest_server import Response, Server, serve_ingest
from trnwatch.wire import KEEP_ALIVE_S, ServerConnection, ServerResponse


class Wrist(Clock):
    """A clock that can be set."""

    def __init__(self) -> None:
        super().__init__()
        self.moment = Moment(1_795_262_400.0, 5_000.0)

    def now(self) -> Moment:
        return self.moment

    def pass_s(self, s: float, *, set_by: float = 0.0) -> None:
        """Let time pass, and set the wall clock."""
        self.moment = Moment(self.moment.wall_s + s + set_by, self.moment.up_s + s)


class Node:
    """A spool and a sender, without a thread of its own."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.clock, self.health = Wrist(), Health()
        boot, now = self.clock.boot, self.clock.now()
        self.spool = Spool(folder, max_bytes=10_000_000, boot=boot, now=now)
        self.wire = ServerConnection(server.address, token=lambda: "secret", option="--server")
        self.sender = AgentSender(
            self.spool, self.wire, self.health, self.clock, every_s=1.0, jitter=lambda: 1.0
        )

    def report(self, *, kind: int = MONITOR, n: int = 1) -> None:
        """Spool reports, a second apart."""
        for _ in range(n):
            report = json.dumps({"neuron_runtime_data": []}).encode()
            self.spool.append(kind, self.clock.now(), gzip_member(encode_tail(report, {})))
            self.clock.pass_s(1.0)


@pytest.fixture
def server() -> Iterator[Server]:
    """Give a server with configurable responses."""
    with serve_ingest() as one:
        yield one


@pytest.fixture
def node(server: Server, tmp_path: Path) -> Iterator[Node]:
    """Give a node that reports to it."""
    one = Node(server, tmp_path / "spool")
    yield one
    one.wire.close()
    one.spool.close()


def test_lines_go_in_one_request_with_token_and_both_clocks(node: Node, server: Server) -> None:
    node.report(n=3)

    assert node.sender.deliver() == 0

    [request] = server.requests
    assert request.path == "/api/v1/ingest/neuron-monitor"
    assert request.headers["Authorization"] == "Bearer secret"
    assert float(request.headers["X-Trnwatch-At"]) == node.clock.moment.wall_s
    assert float(request.headers["X-Trnwatch-Up"]) == node.clock.moment.up_s
    assert [line["report"] for line in request.lines] == [{"neuron_runtime_data": []}] * 3
    assert [line["at"] for line in request.lines] == [1_795_262_400.0 + i for i in range(3)]
    assert {line["stream"] for line in request.lines} == {node.spool.stream}
    assert ["agent" in line for line in request.lines] == [False, False, True]
    assert node.spool.n_waiting == 0


def test_what_has_no_report_goes_through_its_own_endpoint(node: Node, server: Server) -> None:
    node.report(kind=SYSFS)
    node.sender.deliver()

    assert server.requests[0].path == "/api/v1/ingest/efa"


@pytest.mark.parametrize("set_by", [3_600.0, -3_600.0])
def test_a_clock_that_is_set_moves_nothing_that_was_noted_before(
    node: Node, server: Server, set_by: float
) -> None:
    node.report()
    node.clock.pass_s(10.0, set_by=set_by)
    node.sender.deliver()

    [request] = server.requests
    age_s = float(request.headers["X-Trnwatch-At"]) - request.lines[0]["at"]
    assert age_s == pytest.approx(11.0)


def test_what_was_noted_before_a_boot_keeps_the_time_it_was_noted_with(
    node: Node, server: Server
) -> None:
    node.report()
    node.clock.boot = b"another boot ..."
    node.clock.moment = Moment(1_795_269_600.0, 20.0)
    node.sender.deliver()

    assert server.requests[0].lines[0]["at"] == 1_795_262_400.0


@pytest.mark.parametrize("status", [401, 403, 404, 408, 429, 500, 502, 503])
def test_what_may_be_accepted_later_is_kept_and_sent_again(
    node: Node, server: Server, status: int
) -> None:
    node.report(n=2)
    server.answers = [(status, {"detail": "Not now."}, {})] * 2

    rests_s = [node.sender.deliver(), node.sender.deliver(), node.sender.deliver()]

    assert rests_s[0] < rests_s[1]
    assert rests_s[2] == 0
    assert len(server.numbers) == 2
    assert node.health.summary(n_waiting=0)["n_refused"] == 0


def test_retry_after_is_honoured(node: Node, server: Server) -> None:
    node.report()
    server.answers = [(503, {}, {"Retry-After": "45"})]

    assert node.sender.deliver() >= 45


def test_the_rest_between_tries_grows_up_to_a_limit_and_is_spread(node: Node) -> None:
    away = ServerResponse(0)
    rests_s = []
    for _ in range(12):
        node.sender._n_failed += 1
        rests_s.append(node.sender.backoff_s(away))

    assert rests_s[0] == 2
    assert rests_s == sorted(rests_s)
    assert rests_s[-1] == 30
    node.sender._jitter = lambda: 0.0
    assert node.sender.backoff_s(away) == 15


@pytest.mark.parametrize("status", [400, 415, 422])
def test_what_no_one_will_ever_take_is_dropped_and_counted(
    node: Node, server: Server, status: int
) -> None:
    node.report(n=3)
    server.answers = [(status, {"detail": "No line was taken."}, {})]

    node.sender.deliver()
    node.report()
    node.sender.deliver()

    assert len(server.numbers) == 1
    shown = server.requests[0].lines[0]["agent"]
    assert shown["n_refused"] == 3
    assert shown["problem"] == f"refused: {status} No line was taken."


def test_what_is_too_large_together_is_sent_apart(node: Node, server: Server) -> None:
    node.report(n=4)
    server.answers = [(413, {"detail": "Too large."}, {})] * 2

    while node.spool.n_waiting:
        node.sender.deliver()

    assert len(server.numbers) == 4
    assert [len(request.lines) for request in server.requests] == [1, 2, 1]
    assert node.health.summary(n_waiting=0)["n_refused"] == 0


def test_lines_that_were_refused_among_others_are_counted(node: Node, server: Server) -> None:
    node.report(n=2)
    refusal = {"line": 1, "field": "at", "reason": "is too old"}
    server.answers = [(200, {"accepted": 1, "n_refused": 1, "refused": [refusal]}, {})]
    node.sender.deliver()

    shown = node.health.summary(n_waiting=0)
    assert shown["n_refused"] == 1
    assert shown["problem"] == "refused: at: is too old"


@pytest.mark.parametrize(
    "answer",
    [
        (422, {"detail": "No line was taken."}, {}),
        (200, {"accepted": 0, "n_refused": 1, "refused": [{"line": 1, "reason": "too old"}]}, {}),
    ],
)
def test_a_refusal_is_over_once_lines_of_its_kind_are_accepted(
    node: Node, server: Server, answer: Response
) -> None:
    node.report()
    server.answers = [answer]
    node.sender.deliver()
    for kind, is_open in ((SYSFS, True), (MONITOR, False)):
        node.report(kind=kind)

        node.sender.deliver()

        shown = node.health.summary(n_waiting=0)
        assert ("refused" in shown.get("problem", "")) is is_open
        assert shown["n_refused"] == 1


def test_a_server_that_is_gone_is_reported_and_forgotten_when_it_is_back(
    tmp_path: Path, server: Server
) -> None:
    with serve_ingest() as gone:
        node = Node(gone, tmp_path / "other")
    node.report()
    node.sender.deliver()
    assert "server: " in node.health.summary(n_waiting=0)["problem"]

    node.wire = ServerConnection(server.address, token=lambda: "s")
    node.sender = AgentSender(
        node.spool, node.wire, node.health, node.clock, every_s=1.0, node="a b"
    )
    node.sender.deliver()

    assert server.requests[0].path.endswith("?node=a%20b")
    assert "problem" not in node.health.summary(n_waiting=0)
    node.wire.close()
    node.spool.close()


def test_a_token_file_that_changed_is_read_again(tmp_path: Path, server: Server) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    token = TokenFile(file=str(file), secret=None)
    wire = ServerConnection(server.address, token=token.read)
    body = gzip_member(b"{}\n")
    server.answers = [(401, {}, {})]
    wire.post("/", body, {})
    file.write_text("new\n")
    wire.post("/", body, {})
    wire.close()

    assert server.requests[0].headers["Authorization"] == "Bearer new"


def test_a_connection_that_was_idle_for_long_is_not_trusted(
    server: Server,
) -> None:
    wire = ServerConnection(server.address, token=lambda: "s")
    body = gzip_member(b"{}\n")
    wire.post("/", body, {})
    first = wire._connection
    wire.post("/", body, {})
    second = wire._connection
    wire._used_s -= KEEP_ALIVE_S + 1
    wire.post("/", body, {})
    third = wire._connection
    wire.close()

    assert first is second
    assert third is not second
    assert len(server.requests) == 3


@pytest.mark.parametrize("address", ["trnwatch.example", "ftp://trnwatch.example", "https://"])
def test_an_address_that_is_none_is_reported_at_once(address: str) -> None:
    with pytest.raises(ValueError, match="is not a URL"):
        ServerConnection(address, token=lambda: "s")
