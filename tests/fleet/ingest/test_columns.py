"""Ingest of reports as columns stores the same data as single reports."""

import json
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.api.ingest import IngestRequest, arrivals_of, serve
from fleet.ingest.nodes import NodeIngest
from telemetry.agent.clock import Moment
from telemetry.agent.reports import MONITOR, encode_columns, encode_tail, group_frames
from telemetry.agent.spool import Frame, gzip_member
from telemetry.store.hot import HotStore
from telemetry.store.node_state import last_reports, read_sidecars
from telemetry.store.packing import CHECK_BYTES, DIGEST_BYTES
from tests.fleet.api.conftest import Post, hot, post, secret
from tests.telemetry.ingest.reports import SAMPLES, lines, report
from tests.telemetry.ingest.test_columns import bent, compact, efa

__all__ = ["hot", "post", "secret"]
STREAM = "0123456789abcdef"
AGENT = {"version": "1", "n_waiting": 3}


def together(reports: Sequence[bytes], at_s: Sequence[float], *, first: int = 1) -> bytes:
    """Return reports as the agent's one line."""
    frames = [
        Frame(
            MONITOR,
            seq,
            Moment(at, at),
            bytes(16),
            gzip_member(encode_tail(text, {"efa": efa(seq)})),
        )
        for seq, (text, at) in enumerate(zip(reports, at_s, strict=True), first)
    ]
    [run] = group_frames(frames)
    seq = [frame.seq for frame in frames]
    return encode_columns(run.rows, stream=STREAM, seq=seq, at_s=at_s, health=AGENT)


def apart(reports: Sequence[bytes], at_s: Sequence[float], *, first: int = 1) -> bytes:
    """Return reports as lines of their own."""
    made = []
    for seq, (text, at) in enumerate(zip(reports, at_s, strict=True), first):
        head: dict[str, Any] = {"at": at, "seq": seq, "stream": STREAM}
        head |= {"agent": AGENT} if seq == first + len(reports) - 1 else {}
        made.append(compact(head)[:-1] + b"," + encode_tail(text, {"efa": efa(seq)}))
    return b"".join(made)


def stored(hot: HotStore, node: str) -> dict[bytes, bytes]:
    """Return what Redis has of a node: packed seconds without their layout, and totals."""
    found: dict[bytes, bytes] = {}
    for key in sorted(hot.execute("KEYS", f"hot:node:{node}:*")):
        minute = key.rpartition(b":")[2]
        for second, blob in hot.execute("HGETALL", key).items():
            # The check covers the layout, which names the node.
            found[minute + b":" + second] = blob[DIGEST_BYTES:-CHECK_BYTES]
    # Seconds of two layouts are stored in the order of their hashes, which differ by node.
    totals = hot.totals([f"node:{node}"]).nodes
    return found | {name.encode(): b"%.9g" % of[node] for name, of in totals.items()}


def renamed(document: bytes, node: str) -> bytes:
    """Give a report of a machine of its own."""
    changed = json.loads(document)
    changed["instance_info"]["instance_id"] = node
    return compact(changed)


def both(post: Post, reports: Sequence[bytes], at_s: Sequence[float]) -> list[dict[str, Any]]:
    """Send the same reports in both forms, of two nodes."""
    headers = {"X_Trnwatch_At": str(at_s[-1])}
    return [
        post(write([renamed(one, node) for one in reports], at_s), node=node, **headers).json()
        for node, write in (("apart", apart), ("together", together))
    ]


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_same_bytes_are_stored(post: Post, hot: HotStore, sample: str) -> None:
    now = time.time()
    at_s = [round(now - 9 + i, 6) for i in range(10)]

    plain, quick = both(post, (lines(sample) * 4)[:10], at_s)

    assert {**plain, "node": ""} == {**quick, "node": ""}
    assert quick["accepted"] == 10
    assert stored(hot, "apart") == stored(hot, "together")
    kept = last_reports(hot, ["apart", "together"])
    assert kept["apart"].executed == kept["together"].executed
    one, other = (json.loads(kept[name].line)["report"] for name in ("apart", "together"))
    assert one.pop("instance_info")["instance_id"] == "apart"
    assert other.pop("instance_info")["instance_id"] == "together"
    assert one == other
    reported = read_sidecars(hot, "agent", ["apart", "together"])
    assert reported["apart"] == reported["together"]


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 2**32),
    worst=st.sampled_from([0, 101, 1e-9, 123_456.5, 2.0**53, -1]),
    sample=st.sampled_from(["trn1.2xlarge", "trn1.32xlarge"]),
)
def test_the_same_bytes_are_stored_whatever_the_numbers(
    post: Post, hot: HotStore, seed: int, worst: float, sample: str
) -> None:
    hot.execute("FLUSHDB")
    arrivals_of.cache_clear()
    rng = random.Random(seed)
    reports = [compact(bent(report(sample), rng, worst)) for _ in range(3)]
    now = round(time.time(), 3)

    plain, quick = both(post, reports, [now - 2, now - 1, now])

    assert plain.get("accepted") == quick.get("accepted")
    assert [each["reason"] for each in plain["refused"]] == [
        each["reason"] for each in quick["refused"]
    ]
    assert stored(hot, "apart") == stored(hot, "together")


def test_reports_count_once_in_whichever_form_they_come_again(post: Post, hot: HotStore) -> None:
    now = time.time()
    reports = [renamed(one, "real") for one in (lines("trn1.2xlarge") * 2)[:6]]
    at_s = [round(now - 5 + i, 6) for i in range(6)]
    first = post(apart(reports[:3], at_s[:3])).json()
    arrivals_of.cache_clear()
    second = post(together(reports[1:5], at_s[1:5], first=2)).json()
    third = post(apart(reports, at_s)).json()

    assert (first["accepted"], first["repeated"]) == (3, 0)
    assert (second["accepted"], second["repeated"]) == (2, 2)
    assert (third["accepted"], third["repeated"]) == (1, 5)
    assert hot.counters()["ingest_reports"] == 6


def test_reports_outside_the_fast_path_are_accepted(post: Post) -> None:
    document = report("trn1.2xlarge")
    del document["neuron_hardware_info"]
    now = time.time()

    reported = post(together([compact(document)] * 2, [now - 1, now])).json()

    assert reported["accepted"] == 2


@pytest.mark.django_db
def test_more_reports_than_anybody_has_are_refused() -> None:
    shown = json.loads(together(lines("trn1.2xlarge")[:2], [1.0, 2.0]))
    shown["columns"] |= {"seq": [*range(1000)], "at": [1.0] * 1000, "varies": [], "more": ""}
    arrivals = NodeIngest(keep_s=900)

    delivery = arrivals.deliver([compact(shown)] * 11, node="real", arrived_s=1.0)

    assert delivery.n_refused == 1
    assert delivery.refused[0].field == "columns.seq"
    assert len(delivery.numbered) == 10_000


def test_a_whole_line_is_refused_with_its_field(post: Post) -> None:
    answer = post(b'{"columns":{"stream":"x"}}')

    assert answer.status_code == 400
    assert answer.json()["field"] == "columns.stream"


def test_a_fleet_shares_one_serving(post: Post, secret: str, hot: HotStore) -> None:
    now = time.time()
    bodies = {
        node: together([renamed(one, node) for one in lines("trn1.2xlarge")[:2]], [now - 1, now])
        for node in ("a", "b", "c")
    }
    bodies["damaged"] = bodies["c"].replace(b'"varies":[', b'"varies":[99999,')
    calls = [
        IngestRequest({"authorization": f"Bearer {secret}"}, node, body, now)
        for node, body in bodies.items()
    ]
    serve(calls)

    deliveries = [call.delivery for call in calls if call.delivery]
    assert [each.n_accepted for each in deliveries] == [2, 2, 2, 0]
    assert [each.field for each in deliveries[3].refused] == ["columns.varies"]
    assert stored(hot, "a") == stored(hot, "b") == stored(hot, "c")
