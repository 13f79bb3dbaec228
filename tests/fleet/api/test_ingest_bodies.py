"""Compression and size limits of ingest bodies."""

import gc
import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import zstandard
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from fleet.api import ingest_views
from fleet.models import Token
from fleet.ops.compression import unzstd_pieces
from telemetry.store.hot import HotStore
from tests.fleet.api.conftest import URL, Post
from tests.helpers import NOON
from tests.telemetry.ingest.reports import lines, stream

TRN2 = lines("trn2.48xlarge")
MB = 1_000_000


def test_gzip_is_understood(post: Post) -> None:
    packed = gzip.compress(stream("trn1.32xlarge"))

    assert post(packed, Content_Encoding="gzip").json()["accepted"] == 5


def test_gzip_in_several_members_is_understood(post: Post) -> None:
    packed = b"".join(gzip.compress(line + b"\n") for line in lines("trn1.2xlarge"))

    assert post(packed, Content_Encoding="gzip").json()["accepted"] == 5


def streamed(data: bytes) -> bytes:
    """Pack as a program does that does not know the size when it begins."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("pack", [zstandard.compress, streamed])
def test_zstd_is_understood(post: Post, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(stream("trn1.32xlarge"))

    assert post(packed, Content_Encoding="zstd").json()["accepted"] == 5


def test_zstd_in_several_frames_is_understood(post: Post) -> None:
    packed = b"".join(zstandard.compress(line + b"\n") for line in lines("trn1.2xlarge"))

    assert post(packed, Content_Encoding="zstd").json()["accepted"] == 5


def wide_window() -> bytes:
    """Pack so that unpacking takes 64 MiB."""
    wide = zstandard.ZstdCompressionParameters(window_log=26)
    packer = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    return packer.compress(TRN2[0]) + packer.flush()


@pytest.mark.parametrize(
    "packed",
    [
        b"no zstd",
        zstandard.compress(TRN2[0])[:-30],
        zstandard.compress(TRN2[0])[:3],
        zstandard.compress(TRN2[0]) + b"more",
        wide_window(),
    ],
    ids=["plain", "cut", "head", "more", "window"],
)
def test_broken_zstd_is_a_bad_request(post: Post, hot: HotStore, packed: bytes) -> None:
    response = post(packed, Content_Encoding="zstd")

    assert (response.status_code, response.json()["field"]) == (400, "body")
    assert "zstd" in response.json()["detail"]
    assert hot.shards() == ()


@pytest.mark.parametrize(
    "packed",
    [b"no gzip", gzip.compress(TRN2[0])[:-30], b"\x1f\x8b", zlib.compress(TRN2[0])],
    ids=["plain", "cut", "head", "zlib"],
)
def test_broken_gzip_is_a_bad_request(post: Post, packed: bytes) -> None:
    response = post(packed, Content_Encoding="gzip")

    assert (response.status_code, response.json()["field"]) == (400, "body")


def quickly_packed(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=1)


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", quickly_packed), ("zstd", zstandard.compress), ("zstd", streamed)],
    ids=["gzip", "zstd", "zstd without a size"],
)
def test_a_bomb_is_defused(
    post: Post, hot: HotStore, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    bomb = pack(b"\0" * 200 * MB)
    assert len(bomb) < 3 * MB

    response = post(bomb, Content_Encoding=encoding)

    assert response.status_code == 413
    assert "once unpacked" in response.json()["detail"]
    assert hot.shards() == ()


def test_little_is_unpacked_of_a_bomb() -> None:
    bomb = streamed(b"\0" * 200 * MB)
    tracemalloc.start()
    try:
        pieces = unzstd_pieces(bomb)
        assert sum(len(next(pieces)) for _ in range(5)) < 25 * MB
        assert tracemalloc.get_traced_memory()[1] < 25 * MB
    finally:
        tracemalloc.stop()


NOISE = random.Random(1).randbytes(900_000)
REFUSED = {
    "plain": (b"{" * 900_000, ""),
    "unknown": (b"x" * 900_000, "br"),
    "gzip": (gzip.compress(NOISE, 0) + b"x", "gzip"),
    "zstd": (zstandard.compress(NOISE) + b"x", "zstd"),
    "snappy": (b"\xff" * 900_000, "snappy"),
}


# Every endpoint reads bodies the same way: one gets each, and each gets one that it reads itself.
@pytest.mark.parametrize(
    ("view", "body", "encoding"),
    [
        *((ingest_views.ingest_otlp, *refused) for refused in REFUSED.values()),
        (ingest_views.ingest_neuron_monitor, *REFUSED["plain"]),
        (ingest_views.ingest_steps, *REFUSED["plain"]),
        (ingest_views.ingest_prometheus, *REFUSED["snappy"]),
    ],
    ids=[*REFUSED, "neuron-monitor", "steps", "prometheus"],
)
def test_a_refused_body_is_not_kept(
    secret: str,
    redis_url: str,
    view: Callable[[HttpRequest], HttpResponse],
    body: bytes,
    encoding: str,
) -> None:
    headers = {"Authorization": f"Bearer {secret}", "Content-Encoding": encoding}

    def post() -> None:
        kind = "application/x-protobuf"
        request = RequestFactory().post("/", body, content_type=kind, headers=headers)
        assert view(request).status_code in {400, 413, 415}

    post()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(3):
            post()
        assert tracemalloc.get_traced_memory()[0] < len(body)
    finally:
        tracemalloc.stop()
        gc.enable()


def test_step_reports_of_too_many_values_are_refused_before_they_are_read(
    client: Client, secret: str, redis_url: str
) -> None:
    line = {"kind": "step", "run": "a", "worker": "a", "step": 1, "ended_at": 1, "step_s": 1}
    body = gzip.compress(json.dumps(line | {"collective_s": [0] * 512}).encode() + b"\n") * 1_200

    response = client.post(
        "/api/v1/ingest/steps",
        body,
        content_type="application/x-ndjson",
        headers={"Authorization": f"Bearer {secret}", "Content-Encoding": "gzip"},
    )

    assert response.status_code == 413
    assert response.json()["limit_values"] == 600_000


def test_an_unknown_encoding_is_refused(post: Post) -> None:
    response = post(TRN2[0], Content_Encoding="br")

    assert (response.status_code, response.json()["field"]) == (415, "Content-Encoding")
    assert response.headers["Accept-Encoding"] == "gzip, zstd"


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


@pytest.mark.parametrize("path", ["neuron-monitor", "efa", "steps", "otlp"])
def test_a_body_unpacks_to_fifty_times_its_bytes_at_most(
    client: Client, secret: str, redis_url: str, path: str
) -> None:
    packed = gzip.compress(b"\x0a\x00" * 1_450_000)
    assert len(packed) < 3_000
    answer = client.post(
        f"/api/v1/ingest/{path}",
        packed,
        content_type="application/x-protobuf",
        headers={"Authorization": f"Bearer {secret}", "Content-Encoding": "gzip"},
    )
    assert answer.status_code == 413
    assert f"{50 * len(packed):,} bytes once unpacked" in answer.content.decode()


@pytest.mark.parametrize("path", ["otlp", "otlp/v1/metrics", "prometheus"])
def test_samples_may_take_ten_megabytes(address: str, hot: HotStore, path: str) -> None:
    secret = Token.issue("collector", Token.Scope.INGEST, now=NOON)[1]
    url = f"{address}/api/v1/ingest/{path}"
    headers = {"Authorization": f"Bearer {secret}", "Content-Encoding": "snappy"}
    for size, status in ((2 * MB, 415), (11 * MB, 413)):
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(url, bytes(size), headers))
        # A body that is too large is refused before its encoding is read.
        said = refused.value.read()
        assert refused.value.code == (400 if status == 415 and path == "prometheus" else status)
        assert (b"10,000,000" in said) == (status == 413)


def test_lines_of_a_node_without_a_name_do_not_ask_the_database_each(
    client: Client, secret: str, redis_url: str, django_assert_max_num_queries: Any
) -> None:
    with django_assert_max_num_queries(10):
        answer = client.post(
            "/api/v1/ingest/efa",
            b'{"instance":{"instance_id":"i-1"}}\n{}\n' * 50,
            content_type="application/x-ndjson",
            headers={"Authorization": f"Bearer {secret}"},
        )
    assert answer.status_code == 400
