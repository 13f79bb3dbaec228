"""How a store is asked: addresses, tokens, passwords, and answers that are none."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from telemetry.long_term.history import Endpoint, EndpointUnreachableError
from tests.long_term_stores import Moody, moody_server


@pytest.fixture
def store() -> Iterator[Moody]:
    with moody_server() as moody:
        yield moody


def test_a_question_is_posted_below_the_path_of_the_store(store: Moody) -> None:
    store.answers.append((200, {}, b"{}"))

    answer = Endpoint(f"{store.url}/select/0/prometheus/").post("/api/v1/query_range", b"q=1", {})

    assert (answer.status, answer.body) == (200, b"{}")
    assert store.paths == ["/select/0/prometheus/api/v1/query_range"]
    assert store.bodies == [b"q=1"]
    assert "Authorization" not in store.headers[0]


def test_a_token_that_changes_on_disk_is_used_at_once(store: Moody, tmp_path: Path) -> None:
    token = tmp_path / "token"
    endpoint = Endpoint(store.url, str(token))
    for secret in ("one\n", "two\n"):
        token.write_text(secret)
        endpoint.post("/", b"", {})

    assert [h["Authorization"] for h in store.headers] == ["Bearer one", "Bearer two"]


def test_a_password_in_the_address_signs_in_and_is_never_shown(store: Moody) -> None:
    endpoint = Endpoint(store.url.replace("//", "//us%40er:p%3Ass@"))
    store.answers.append((200, {"Content-Length": "9", "Connection": "close"}, b"{"))

    with pytest.raises(EndpointUnreachableError) as refused:
        endpoint.post("/", b"", {})

    assert store.headers[0]["Authorization"] == "Basic dXNAZXI6cDpzcw=="
    assert str(refused.value).startswith(f"{store.url}: ")


@pytest.mark.parametrize("url", ["", "victoria:8428", "ftp://victoria/write", "http:///write"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="is not a URL of a long-term store"):
        Endpoint(url)
