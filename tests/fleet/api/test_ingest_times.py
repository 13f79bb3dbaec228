"""Report times: late, duplicate, out of order, wrong clock."""

import json
import time
from datetime import UTC, datetime

import numpy as np
import pytest
from django.test import Client

from fleet.ingest.nodes import timing_of
from fleet.metrics.collectors import fleet_registry
from telemetry.store.hot import HotStore
from telemetry.store.refused import note_refused, read_all_refused, read_refused
from tests.fleet.api.conftest import Post
from tests.telemetry.ingest.reports import encoded, lines, report

TRN2 = lines("trn2.48xlarge")
MB = 1_000_000


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
def test_a_wrong_clock_is_corrected_and_reported(post: Post, hot: HotStore, skew_s: int) -> None:
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

    assert str(timing_of(hot, "slow")) == ("Reports every 5 s; each figure covers all of them.")
    assert "Its clock is 7,200 s behind ours, and corrected." in str(timing_of(hot, "behind"))
    assert timing_of(hot, "missing") is None


def test_a_nodes_page_and_series_say_what_is_refused_of_it(
    post: Post, admin_client: Client, hot: HotStore
) -> None:
    post(TRN2[0])
    post(b"nonsense\n" * 3)
    post(b"nonsense", bearer="trnw_nobody")
    [(subject, found)] = read_all_refused(hot, now_s=time.time()).items()
    assert subject == "node:real"
    assert str(found).startswith("3 reports refused within a minute: is not a JSON object")
    page = admin_client.get("/nodes/real/").content.decode()
    assert "3 reports refused within a minute: is not a JSON object" in page
    registry = fleet_registry(hot, now=datetime.now(UTC))
    labels = {"kind": "node", "name": "real"}
    per_s = registry.get_sample_value("trnwatch_refused_reports_per_second", labels)
    assert per_s == pytest.approx(3 / 65, rel=0.1)
    # It is forgotten.
    assert read_all_refused(hot, now_s=time.time() + 80) == {}


def test_what_is_refused_is_told_by_the_second_where_it_is_much(hot: HotStore) -> None:
    now_s = 1_000_000.0
    for second in range(60):
        note_refused(hot, "run", [("llama", 2, "loss: is text")], now_s=now_s + second)
    found = read_refused(hot, ["run:llama", "run:other"], now_s=now_s + 59.9)
    assert {name: str(each) for name, each in found.items()} == {
        "run:llama": "2 reports a second refused: loss: is text"
    }
    note_refused(hot, "run", [("one", 1, "loss: is text")], now_s=now_s)
    note_refused(hot, "run", [("some", 70, "loss: is text")], now_s=now_s)
    found = read_refused(hot, ["run:one", "run:some"], now_s=now_s)
    assert {str(each) for each in found.values()} == {
        "1 report refused within a minute: loss: is text",
        "70 reports refused within a minute: loss: is text",
    }
