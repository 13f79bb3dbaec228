"""POST to a receiver that may misbehave in any way."""

import time

import pytest

from fleet.notifications.http_client import (
    LONGEST_ANSWER,
    AddressError,
    Allowed,
    HttpClient,
    Request,
    UnreachableError,
)
from tests.fleet.notifications.receiver_server import (
    ReceiverServer,
    closes,
    cut_short,
    drips,
    endless,
    hangs,
    status,
)
from tests.helpers import free_port

CLIENT = HttpClient(Allowed.of(["127.0.0.0/8", "::1"]), timeout_s=0.5)


def request(url: str) -> Request:
    return Request(url, b'{"a": 1}', {"Content-Type": "application/json"})


def test_what_is_posted_arrives_and_so_does_the_answer(hook_server: ReceiverServer) -> None:
    answer = CLIENT.post(request(f"{hook_server.url}?a=1"))

    [post] = hook_server.posts
    assert (post.path, post.body) == ("/in?a=1", b'{"a": 1}')
    assert post.headers["content-type"] == "application/json"
    assert post.headers["user-agent"].startswith("trnwatch/")
    assert (answer.status, answer.body) == (200, b"ok")


@pytest.mark.parametrize(
    "answer", [hangs(20), drips(0.1, 300), closes, cut_short, b"what do you want?\r\n\r\n"]
)
def test_no_proper_answer_in_time_is_none(hook_server: ReceiverServer, answer: object) -> None:
    hook_server.answers = [answer]  # type: ignore[list-item]
    began_s = time.monotonic()

    with pytest.raises(UnreachableError):
        CLIENT.post(request(hook_server.url))
    assert time.monotonic() - began_s < 8


def test_no_one_there_is_no_answer() -> None:
    with pytest.raises(UnreachableError, match="refused"):
        CLIENT.post(request(f"http://127.0.0.1:{free_port()}/"))


def test_a_name_that_leads_nowhere_is_no_answer() -> None:
    with pytest.raises(UnreachableError, match="cannot be found"):
        CLIENT.post(request("http://nowhere.invalid/"))


def test_an_answer_without_end_is_cut(hook_server: ReceiverServer) -> None:
    hook_server.answers = [endless]

    assert len(CLIENT.post(request(hook_server.url)).body) == LONGEST_ANSWER


def test_a_redirect_is_not_followed(hook_server: ReceiverServer) -> None:
    hook_server.answers = [status(302, f"Location: {hook_server.url}/there")]

    answer = CLIENT.post(request(hook_server.url))
    assert (answer.status, answer.location) == (302, f"{hook_server.url}/there")
    assert len(hook_server.posts) == 1


def test_a_proxy_of_the_environment_is_not_asked(
    hook_server: ReceiverServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")

    assert CLIENT.post(request(hook_server.url)).status == 200


def test_a_private_place_that_no_one_allowed_is_never_called(hook_server: ReceiverServer) -> None:
    with pytest.raises(AddressError, match="TRNWATCH_NOTIFY_ALLOW"):
        HttpClient(Allowed()).post(request(hook_server.url))
    with pytest.raises(AddressError):
        HttpClient(Allowed()).post(request(hook_server.url.replace("127.0.0.1", "localhost")))
    assert hook_server.posts == []


def test_a_name_can_be_allowed(hook_server: ReceiverServer) -> None:
    url = hook_server.url.replace("127.0.0.1", "localhost")

    assert HttpClient(Allowed.of(["localhost"])).post(request(url)).status == 200
