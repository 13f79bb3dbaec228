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
    Stranger,
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


def test_what_is_posted_arrives_and_so_does_the_answer(stranger: Stranger) -> None:
    answer = CLIENT.post(request(f"{stranger.url}?a=1"))

    [post] = stranger.posts
    assert (post.path, post.body) == ("/in?a=1", b'{"a": 1}')
    assert post.headers["content-type"] == "application/json"
    assert post.headers["user-agent"].startswith("trnwatch/")
    assert (answer.status, answer.body) == (200, b"ok")


@pytest.mark.parametrize(
    "answer", [hangs(20), drips(0.1, 300), closes, cut_short, b"what do you want?\r\n\r\n"]
)
def test_no_proper_answer_in_time_is_none(stranger: Stranger, answer: object) -> None:
    stranger.answers = [answer]  # type: ignore[list-item]
    began_s = time.monotonic()

    with pytest.raises(UnreachableError):
        CLIENT.post(request(stranger.url))
    assert time.monotonic() - began_s < 8


def test_no_one_there_is_no_answer() -> None:
    with pytest.raises(UnreachableError, match="refused"):
        CLIENT.post(request(f"http://127.0.0.1:{free_port()}/"))


def test_a_name_that_leads_nowhere_is_no_answer() -> None:
    with pytest.raises(UnreachableError, match="cannot be found"):
        CLIENT.post(request("http://nowhere.invalid/"))


def test_an_answer_without_end_is_cut(stranger: Stranger) -> None:
    stranger.answers = [endless]

    assert len(CLIENT.post(request(stranger.url)).body) == LONGEST_ANSWER


def test_a_redirect_is_not_followed(stranger: Stranger) -> None:
    stranger.answers = [status(302, f"Location: {stranger.url}/there")]

    answer = CLIENT.post(request(stranger.url))
    assert (answer.status, answer.location) == (302, f"{stranger.url}/there")
    assert len(stranger.posts) == 1


def test_a_proxy_of_the_environment_is_not_asked(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")

    assert CLIENT.post(request(stranger.url)).status == 200


def test_a_private_place_that_no_one_allowed_is_never_called(stranger: Stranger) -> None:
    with pytest.raises(AddressError, match="TRNWATCH_NOTIFY_ALLOW"):
        HttpClient(Allowed()).post(request(stranger.url))
    with pytest.raises(AddressError):
        HttpClient(Allowed()).post(request(stranger.url.replace("127.0.0.1", "localhost")))
    assert stranger.posts == []


def test_a_name_can_be_allowed(stranger: Stranger) -> None:
    url = stranger.url.replace("127.0.0.1", "localhost")

    assert HttpClient(Allowed.of(["localhost"])).post(request(url)).status == 200
