"""Compression and size limits of ingest bodies."""

import gzip
import time
import zlib

import pytest
from django.test import Client

from telemetry.store.hot import HotStore
from tests.fleet.api.conftest import URL, Post
from tests.telemetry.ingest.reports import lines, stream

TRN2 = lines("trn2.48xlarge")
MB = 1_000_000


def test_gzip_is_understood(post: Post) -> None:
    packed = gzip.compress(stream("trn1.32xlarge"))

    assert post(packed, Content_Encoding="gzip").json()["accepted"] == 5


def test_gzip_in_several_members_is_understood(post: Post) -> None:
    packed = b"".join(gzip.compress(line + b"\n") for line in lines("trn1.2xlarge"))

    assert post(packed, Content_Encoding="gzip").json()["accepted"] == 5


@pytest.mark.parametrize(
    "packed",
    [b"no gzip", gzip.compress(TRN2[0])[:-30], b"\x1f\x8b", zlib.compress(TRN2[0])],
    ids=["plain", "cut", "head", "zlib"],
)
def test_broken_gzip_is_a_bad_request(post: Post, packed: bytes) -> None:
    response = post(packed, Content_Encoding="gzip")

    assert (response.status_code, response.json()["field"]) == (400, "body")


def test_a_bomb_is_defused(post: Post, hot: HotStore) -> None:
    bomb = gzip.compress(b"\0" * 500 * MB, compresslevel=9)
    assert len(bomb) < MB

    began = time.process_time()
    response = post(bomb, Content_Encoding="gzip")

    assert response.status_code == 413
    assert "once unpacked" in response.json()["detail"]
    assert time.process_time() - began < 5
    assert hot.shards() == ()


def test_an_unknown_encoding_is_refused(post: Post) -> None:
    response = post(TRN2[0], Content_Encoding="br")

    assert (response.status_code, response.json()["field"]) == (415, "Content-Encoding")


def test_a_form_is_refused(client: Client, secret: str, redis_url: str) -> None:
    response = client.post(URL, {"a": "b"}, headers={"Authorization": f"Bearer {secret}"})

    assert (response.status_code, response.json()["field"]) == (415, "Content-Type")


def test_fifty_megabytes_are_not_read(post: Post, hot: HotStore) -> None:
    response = post(b"x" * 50 * MB)

    assert response.status_code == 413
    assert response.json()["limit_bytes"] == 10 * MB
    assert hot.shards() == ()


def test_a_million_lines_are_not_read(post: Post) -> None:
    assert post(b"{}\n" * MB).status_code == 413
