"""Pages for Prometheus are streamed: complete, or visibly broken."""

import gzip
import http.client
import logging
import urllib.request
from collections.abc import Iterator

import pytest
from pytest_django import Settings

from tests.fleet.failing_pages import N_ROWS
from tests.web_server import served

GZIP = {"Accept-Encoding": "gzip"}
OPEN_METRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}


@pytest.fixture
def site(transactional_db: None, settings: Settings) -> Iterator[str]:
    """Serve the pages of ``broken_pages``, and give the address."""
    settings.ROOT_URLCONF = "tests.fleet.failing_pages"
    settings.ANONYMOUS_READING = True
    with served() as url:
        yield url


def read(url: str, **headers: str) -> bytes:
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        page: bytes = response.read()
    return page


def test_a_page_comes_whole(site: str) -> None:
    page = read(f"{site}/holds")

    assert page.count(b"\nheat_ratio{") == N_ROWS
    assert page.endswith(b"few_total 3.0\n")


def test_it_is_sent_in_pieces(site: str) -> None:
    with urllib.request.urlopen(f"{site}/holds", timeout=30) as response:
        assert response.headers["Transfer-Encoding"] == "chunked"
        assert "Content-Length" not in response.headers


def test_packed_it_states_the_same(site: str) -> None:
    packed = read(f"{site}/holds", **GZIP)

    assert len(packed) < N_ROWS * 8
    assert gzip.decompress(packed) == read(f"{site}/holds")


def test_open_metrics_end_where_they_say_so(site: str) -> None:
    assert read(f"{site}/holds", **OPEN_METRICS).endswith(b"few_total 3.0\n# EOF\n")


@pytest.mark.parametrize("headers", [{}, GZIP, OPEN_METRICS], ids=["plain", "gzip", "open"])
def test_a_page_that_fails_midway_breaks_the_connection(
    site: str, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "uvicorn.error")

    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        read(f"{site}/breaks", **headers)
