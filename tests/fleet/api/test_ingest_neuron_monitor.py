import gzip
import json
import time
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from django.db import DatabaseError, connection
from django.test import Client
from pytest_django import Settings

from fleet.deliveries import manner_of
from fleet.models import Node, Token
from telemetry.store.hot import HotStore
from tests.fleet.api.conftest import URL, Post
from tests.parts import NOON
from tests.telemetry.ingest.reports import cores, encoded, lines, report, stream

TRN2 = lines("trn2.48xlarge")
MB = 1_000_000


def test_a_report_becomes_a_node_of_the_fleet(post: Post, hot: HotStore) -> None:
    response = post(TRN2[0], node=None)

    assert response.status_code == 200
    assert response.json()["accepted"] == 1
    node = Node.objects.get()
    assert (node.name, node.source) == ("i-0000002079071820", Node.Source.NEURON_MONITOR)
    assert (node.instance_type, node.zone) == ("trn2.48xlarge", "us-east-2b")
    assert (node.n_cores, node.n_devices, node.shard) == (64, 16, "node:i-0000002079071820")
    block = hot.latest()[node.shard]
    assert block.values["core_utilization_ratio"][0, 0] == pytest.approx(0.9219, abs=0.01)
    assert abs(block.tick - time.time()) < 5


def test_the_caller_may_name_the_node(post: Post) -> None:
    assert post(TRN2[0], node="trn2-a").json()["node"] == "trn2-a"
    assert Node.objects.get().name == "trn2-a"


def test_lines_sent_together_fill_the_seconds_before_arrival(post: Post, hot: HotStore) -> None:
    assert post(stream("trn1.2xlarge")).json()["accepted"] == 5

    now = int(time.time())
    span = hot.window("node:real", ("vcpu_usage_ratio",), start=now - 8, end=now)
    assert np.isfinite(span.values["vcpu_usage_ratio"]).sum() == 5


def test_a_bad_line_is_refused_and_the_good_ones_around_it_are_kept(post: Post) -> None:
    bent = report()
    cores(bent)["37"]["neuroncore_utilization"] = -3
    body = b"\n".join([TRN2[0], b"nonsense", encoded(bent), TRN2[1]])

    response = post(body)

    assert response.status_code == 200
    assert response.json()["accepted"] == 2
    first, second = response.json()["refused"]
    assert first["line"] == 2
    assert (second["line"], second["reason"]) == (3, "Expected `float` >= 0.0")
    assert second["field"].endswith("neuroncores_in_use.37.neuroncore_utilization")


def test_a_body_without_a_good_line_is_a_bad_request(post: Post, hot: HotStore) -> None:
    response = post(b"nonsense\n[]\n")

    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["line"] == 1
    assert len(response.json()["refused"]) == 2
    assert "line 1" in response.json()["detail"]
    assert not Node.objects.exists()
    assert hot.shards() == ()


@pytest.mark.parametrize("body", [b"", b"\n \n"])
def test_an_empty_body_is_a_bad_request(post: Post, body: bytes) -> None:
    response = post(body)

    assert (response.status_code, response.json()["field"]) == (400, "body")


def test_a_report_with_several_faults_names_one_and_stores_nothing(
    post: Post, hot: HotStore
) -> None:
    bent = report()
    bent["system_data"]["memory_info"]["memory_used_bytes"] = "lots"

    response = post(encoded(bent))

    assert response.status_code == 400
    assert response.json()["field"] == "system_data.memory_info.memory_used_bytes"
    assert hot.shards() == ()


@pytest.mark.parametrize("method", ["get", "put", "patch", "delete"])
def test_only_post_is_understood(client: Client, db: None, method: str) -> None:
    response = getattr(client, method)(URL)

    assert (response.status_code, response["Allow"]) == (405, "POST")


# Who may


def test_without_a_token_nothing_is_taken(client: Client, db: None, redis_url: str) -> None:
    response = client.post(URL, TRN2[0], content_type="application/x-ndjson")

    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert response["Content-Type"] == "application/problem+json"
    assert not Node.objects.exists()


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Basic abc", "abc", "Bearer trnw_x"])
def test_a_token_that_is_none_is_refused(client: Client, db: None, header: str) -> None:
    response = client.post(
        URL, TRN2[0], content_type="text/plain", headers={"Authorization": header}
    )

    assert response.status_code == 401


def test_a_token_of_the_wrong_scope_is_told_which_it_needs(post: Post) -> None:
    _, scraper = Token.issue("prometheus", Token.Scope.SCRAPE, now=NOON)

    response = post(TRN2[0], bearer=scraper)

    assert response.status_code == 403
    assert "`ingest`" in response.json()["detail"]
    assert not Node.objects.exists()


def test_a_token_that_expired_is_refused(post: Post) -> None:
    then = datetime.now(UTC) - timedelta(minutes=1)
    _, old = Token.issue("old", Token.Scope.INGEST, now=NOON, expires_at=then)

    response = post(TRN2[0], bearer=old)

    assert response.status_code == 401
    assert "expired" in response.json()["detail"]


def test_a_token_that_was_revoked_is_refused(post: Post) -> None:
    token, revoked = Token.issue("gone", Token.Scope.INGEST, now=NOON)
    Token.objects.filter(pk=token.pk).update(revoked_at=NOON)

    assert post(TRN2[0], bearer=revoked).status_code == 401


def test_the_use_of_a_token_is_noted(post: Post) -> None:
    post(TRN2[0])

    assert Token.objects.get().last_used_at is not None


def test_a_session_is_no_token(client: Client, admin_user: object, redis_url: str) -> None:
    client.force_login(admin_user)  # type: ignore[arg-type]

    assert client.post(URL, TRN2[0], content_type="text/plain").status_code == 401


def test_too_many_requests_are_told_to_wait(post: Post, settings: Settings) -> None:
    settings.INGEST_REQUESTS_PER_MINUTE = 2

    statuses = [post(TRN2[0]).status_code for _ in range(3)]

    # A minute may end in between; then there are three left again.
    assert statuses in ([200, 200, 429], [200, 200, 200])
    if statuses[-1] == 429:
        assert post(TRN2[0])["Retry-After"] == "60"


def test_no_cookie_is_asked_for_and_none_is_set(post: Post) -> None:
    response = post(TRN2[0])

    assert not response.cookies


# How it may be packed


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


# Which node


@pytest.mark.parametrize("name", ["a%20b", "a/b", "%00", "-a", "x" * 81, "", "%F0%9F%98%80"])
def test_a_name_that_no_node_may_have_is_refused(post: Post, name: str) -> None:
    response = post(TRN2[0], node=name)

    assert (response.status_code, response.json()["field"]) == (400, "node")


def test_a_nameless_node_is_asked_for_its_name(post: Post) -> None:
    document = report()
    document["instance_info"]["instance_id"] = ""

    response = post(encoded(document), node=None)

    assert response.status_code == 400
    assert response.json()["field"] == "instance_info.instance_id"
    assert "node=NAME" in response.json()["reason"]


def test_the_name_of_a_simulated_node_is_taken(post: Post, steady: Node, hot: HotStore) -> None:
    response = post(TRN2[0], node="steady")

    assert response.status_code == 400
    assert "simulated" in response.json()["reason"]
    steady.refresh_from_db()
    assert steady.source == Node.Source.SIMULATED
    assert hot.shards() == ()


def test_two_machines_may_not_share_a_name(post: Post) -> None:
    other = report()
    other["instance_info"]["instance_id"] = "i-9"
    assert post(TRN2[0]).status_code == 200

    response = post(encoded(other))

    assert response.status_code == 400
    assert "i-0000002079071820" in response.json()["reason"]


def test_a_node_that_changed_is_brought_up_to_date(post: Post) -> None:
    post(TRN2[0])
    moved = report()
    moved["instance_info"]["instance_availability_zone"] = "us-east-2c"

    post(encoded(moved))

    assert Node.objects.get().zone == "us-east-2c"


def test_a_node_that_is_known_costs_no_query(post: Post, django_assert_num_queries: Any) -> None:
    post(TRN2[0])

    with django_assert_num_queries(0):
        post(TRN2[1])


# When


def envelope(at: float, seq: int | None = None) -> bytes:
    return json.dumps({"at": at, "seq": seq, "report": report("trn1.2xlarge")}).encode()


def seconds_of(hot: HotStore, shard: str = "node:real") -> list[int]:
    now = int(time.time())
    span = hot.window(shard, ("vcpu_usage_ratio",), start=now - 890, end=now + 60)
    seen = np.isfinite(span.values["vcpu_usage_ratio"][:, 0, 0])
    return [int(tick) for tick in span.ticks[seen]]


def test_what_was_sent_twice_counts_once(post: Post, hot: HotStore) -> None:
    line = envelope(time.time(), seq=1)

    assert post(line).json()["accepted"] == 1
    again = post(line)

    assert again.status_code == 200
    assert (again.json()["accepted"], again.json()["repeated"]) == (0, 1)
    assert len(seconds_of(hot)) == 1


def test_reports_may_come_out_of_order(post: Post, hot: HotStore) -> None:
    now = int(time.time())
    for ago in (0, 20, 10, 15):
        assert post(envelope(now - ago + 0.5)).json()["accepted"] == 1

    assert seconds_of(hot) == [now - 20, now - 15, now - 10, now]


@pytest.mark.parametrize("skew_s", [3600, -3600, 86_400])
def test_a_wrong_clock_is_corrected_and_told(post: Post, hot: HotStore, skew_s: int) -> None:
    response = post(envelope(time.time() + skew_s))

    assert response.json()["clock_skew_s"] == pytest.approx(-skew_s, abs=2)
    assert abs(seconds_of(hot)[0] - time.time()) < 3
    assert hot.counters()["ingest_skewed"] == 1


def test_what_is_older_than_is_kept_is_late(post: Post, hot: HotStore) -> None:
    now = time.time()
    headers = {"X_Trnwatch_At": str(now)}

    response = post(envelope(now - 1000) + b"\n" + envelope(now - 1), **headers)

    assert (response.json()["accepted"], response.json()["late"]) == (1, 1)
    assert "900 s are kept" in response.json()["refused"][0]["reason"]
    assert len(seconds_of(hot)) == 1


@pytest.mark.parametrize("value", ["yesterday", "-5", "nan", "inf", "1e99"])
def test_a_time_that_is_none_is_refused(post: Post, value: str) -> None:
    response = post(TRN2[0], X_Trnwatch_At=value)

    assert (response.status_code, response.json()["field"]) == (400, "X-Trnwatch-At")


def test_cores_are_absent_from_when_the_process_ended(post: Post, hot: HotStore) -> None:
    now = int(time.time())
    ended = report("trn1.2xlarge") | {"neuron_runtime_data": []}

    post(envelope(now - 1))
    post(json.dumps({"at": now + 0.1, "report": ended}).encode())

    span = hot.window(
        "node:real", ("core_utilization_ratio", "vcpu_usage_ratio"), start=now - 1, end=now
    )
    cores_seen = np.isfinite(span.values["core_utilization_ratio"][:, 0]).all(axis=1)
    assert cores_seen.tolist() == [True, False]
    assert np.isfinite(span.values["vcpu_usage_ratio"]).all()


def test_what_became_of_reports_is_counted(post: Post, hot: HotStore) -> None:
    post(TRN2[0] + b"\nnonsense")

    counters = hot.counters()
    assert counters["ingest_reports"] == 1
    assert counters["ingest_lines_refused"] == 1
    assert "ingest_errors" not in counters


def test_what_was_refused_whole_is_counted(post: Post, hot: HotStore) -> None:
    post(b"nonsense")
    post(TRN2[0], bearer="trnw_nobody")

    assert hot.counters()["ingest_errors"] == 2


def test_how_a_node_reports_is_remembered(post: Post, hot: HotStore) -> None:
    slow = report("trn1.2xlarge")
    slow["system_data"]["vcpu_usage"]["period"] = 5.0002

    post(encoded(slow), node="slow")
    post(envelope(time.time() - 7200), node="behind")

    assert str(manner_of(hot, "slow")) == (
        "Reports every 5 s; each figure stands for all of them."
    )
    assert "Its clock is 7,200 s behind ours, and corrected." in str(manner_of(hot, "behind"))
    assert manner_of(hot, "nobody") is None


# When something is down


def test_without_redis_it_asks_to_be_sent_again(
    client: Client, secret: str, settings: Settings
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"

    response = client.post(
        URL, TRN2[0], content_type="text/plain", headers={"Authorization": f"Bearer {secret}"}
    )

    assert response.status_code == 503
    assert int(response["Retry-After"]) > 0


def test_without_the_database_it_asks_to_be_sent_again(
    post: Post, hot: HotStore, secret: str
) -> None:
    def down(*_: object) -> None:
        raise DatabaseError

    with connection.execute_wrapper(down):
        response = post(TRN2[0])

    assert response.status_code == 503
    assert hot.shards() == ()
    assert post(TRN2[0]).status_code == 200


def test_a_known_node_needs_no_database(post: Post) -> None:
    def down(*_: object) -> None:
        raise DatabaseError

    post(TRN2[0])
    with connection.execute_wrapper(down):
        assert post(TRN2[1]).status_code == 200
