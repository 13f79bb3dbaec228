"""Remote write: samples are queued, assembled once, and refused so that senders act rightly."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import cramjam
import numpy as np
import pytest
from django.test import Client
from pytest_django import Settings
from redis import Redis

from fleet.alerts.evaluate import watch
from fleet.ingest import prometheus
from fleet.ingest.nodes import IngestBatch, store_batches
from fleet.models import Alert, Node, Run, Token
from fleet.runs.summaries import nodes_now
from telemetry.detect.stopped import find_silent
from telemetry.exporter.hardware import read_snapshot
from telemetry.store.connection import Command
from telemetry.store.hot import HotStore
from telemetry.store.refused import read_refused
from tests.fleet.api.conftest import Post
from tests.helpers import NOON
from tests.telemetry.ingest.reports import encoded, report
from tests.telemetry.ingest.test_prometheus import message, monitor
from trnwatch.identity import identity_of

URL = "/api/v1/ingest/prometheus"
NODE, ADDRESS = "i-07", "10.0.0.7:9100"
# After this time no scrape waits for further series.
LATER_S = 11


@pytest.fixture
def write(client: Client, secret: str, redis_url: str) -> Post:
    """Give a function that posts a message as Prometheus does."""

    def send(body: bytes, *, bearer: str = secret, **more: str) -> Any:
        headers = {
            "Authorization": f"Bearer {bearer}",
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        return client.post(URL, body, content_type="application/x-protobuf", headers=headers)

    return send


def packed(*series: Any, at_s: float) -> bytes:
    return bytes(cramjam.snappy.compress_raw(message(*series, at_s=at_s)))


def utilization(hot: HotStore, start: int, end: int) -> np.ndarray[Any, Any]:
    """Return the first core's utilization by second."""
    span = hot.window(f"node:{NODE}", ("core_utilization_ratio",), start=start, end=end)
    return span.values["core_utilization_ratio"][:, 0, 0]


@pytest.mark.parametrize("first", ["agent", "Prometheus"])
def test_the_size_that_an_agent_says_outweighs_what_is_seen_in_series(
    write: Post, post: Post, hot: HotStore, first: str
) -> None:
    """No type is known that would say the size: the highest number of a device did."""
    document = report("trn1.2xlarge")
    document["instance_info"] |= {"instance_type": "", "instance_id": NODE}
    end = int(time.time())

    def scrape(at_s: int) -> None:
        labels = {"node": NODE, "instance": ADDRESS}
        series = [
            ("neuroncore_utilization_ratio", labels | {"neuroncore": core}, 0.5)
            for core in ("0", "1", "5")
        ]
        assert write(packed(*series, at_s=at_s)).status_code == 204
        assert prometheus.assemble(hot, now_s=time.time() + LATER_S) == 1

    if first == "Prometheus":
        scrape(end - 30)
        assert Node.objects.get(name=NODE).n_cores == 6
    assert post(encoded(document), node=NODE).status_code == 200
    scrape(end - 15)
    scrape(end)

    node = Node.objects.get(name=NODE)
    assert (node.n_devices, node.n_cores) == (1, 2)
    refused = read_refused(hot, [f"node:{NODE}"], now_s=time.time() + LATER_S)
    assert "core 5, but the node has 2" in str(refused[f"node:{NODE}"])


def test_scrapes_become_seconds_of_a_new_node(write: Post, hot: HotStore) -> None:
    end = int(time.time())
    for at_s, ratio in ((end - 30, 0.9), (end - 15, 0.8), (end, 0.7)):
        series = monitor(ratio)
        # In two requests, as Prometheus may send them.
        assert write(packed(*series[:9], at_s=at_s)).status_code == 204
        assert write(packed(*series[9:], at_s=at_s)).status_code == 204
    assert prometheus.assemble(hot, now_s=time.time() + LATER_S) == 3
    node = Node.objects.get(name=NODE)
    assert (node.instance_type, node.n_cores, node.instance_id) == ("trn1.32xlarge", 32, "i-07")
    found = utilization(hot, end - 29, end)
    np.testing.assert_allclose(found, [0.8] * 15 + [0.7] * 15, atol=0.01)
    # Nothing waits, so that the next look costs nothing.
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    assert hot.execute("SMEMBERS", prometheus.NODES) == set()


def test_what_is_rejected_is_said_and_the_other_samples_stored(write: Post, hot: HotStore) -> None:
    """Prometheus logs the answer to what it sent, and sends nothing of it again."""
    nameless = ("neuroncore_utilization_ratio", {"node": "trn 7/a", "neuroncore": "0"}, 0.5)
    answer = write(packed(*monitor(), nameless, at_s=int(time.time())))

    assert answer.status_code == 400
    assert (
        "Rejected samples: 1. The first one: 'trn 7/a' is not a valid" in answer.json()["detail"]
    )
    assert prometheus.assemble(hot, now_s=time.time() + LATER_S) == 1
    assert [node.name for node in Node.objects.all()] == [NODE]


def test_the_only_device_that_a_check_names_is_the_one_of_the_alert(
    write: Post, hot: HotStore
) -> None:
    now_s = int(time.time())
    check = {"instance": "10.0.0.7:9100", "instance_type": "trn1.32xlarge", "device": "neuron3"}
    assert write(packed(("accelerator_unhealthy", check, 1.0), at_s=now_s)).status_code == 204
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    hot.gauge("listening_since_s", now_s - 60)
    hot.gauge("watched_at_s", now_s - 1)
    watch(hot, now=datetime.fromtimestamp(now_s, UTC))
    alert = Alert.objects.get()
    assert (alert.rule, alert.subject, alert.device) == ("device_unhealthy", "node:10.0.0.7", 3)


def test_devices_that_a_node_cannot_have_are_refused_with_the_reason(
    write: Post, hot: HotStore, client: Client, settings: Settings
) -> None:
    settings.ANONYMOUS_READING = True
    now_s = int(time.time())
    check = {"instance": "10.0.0.7:8000", "instance_id": NODE, "instance_type": "trn1.32xlarge"}
    answer = write(packed(("accelerator_unhealthy", check | {"device": "a1b2"}, 1.0), at_s=now_s))
    assert answer.status_code == 400
    assert "device='a1b2', which names no number" in answer.json()["detail"]
    for at_s in (now_s - 15, now_s):
        beyond = ("accelerator_unhealthy", check | {"device": "neuron16"}, 1.0)
        assert write(packed(*monitor(), beyond, at_s=at_s)).status_code == 204
    # The first of two scrapes is complete.
    assert prometheus.assemble(hot, now_s=time.time()) > 0
    page = client.get(f"/nodes/{NODE}/").text
    assert "device_unhealthy of device 16, but the node has 16" in page


def test_a_clock_that_is_ahead_is_named_where_its_samples_are_missed(
    write: Post, hot: HotStore, client: Client, settings: Settings
) -> None:
    settings.ANONYMOUS_READING = True
    now_s = int(time.time())
    assert write(packed(*monitor(), at_s=now_s)).status_code == 204
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    answer = write(packed(*monitor(), at_s=now_s + 300))

    assert answer.status_code == 400
    assert "s ahead of trnwatch's clock" in answer.json()["detail"]
    assert "set the clock of the machine that scrapes" in client.get(f"/nodes/{NODE}/").text


def test_what_is_sent_or_read_again_counts_once(write: Post, hot: HotStore) -> None:
    end = int(time.time())
    for at_s, done in ((end - 15, 100.0), (end, 130.0)):
        body = packed(*monitor(completed=done), at_s=at_s)
        assert write(body).status_code == 204
        assert write(body).status_code == 204
    # The process ends after storing, before it notes that it has: the same samples once more.
    before = hot.execute("LRANGE", prometheus.QUEUE + NODE, 0, -1)
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    hot.execute("DEL", prometheus.STATE + NODE)
    hot.execute("RPUSH", prometheus.QUEUE + NODE, *before)
    hot.execute("SADD", prometheus.NODES, NODE)
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    done_per_s = hot.window(
        f"node:{NODE}", ("executions_completed_per_s",), start=end - 14, end=end
    ).values["executions_completed_per_s"]
    np.testing.assert_allclose(done_per_s[:, 0, 0], 2.0, rtol=0.01)
    totals = hot.totals([f"node:{NODE}"])
    assert totals.nodes["executions_completed_per_s"][NODE] == pytest.approx(30.0, rel=0.01)


def test_scrapes_that_are_assembled_together_lose_nothing(write: Post, hot: HotStore) -> None:
    end = int(time.time())
    for at_s in (end - 15, end):
        series = [(name, {**labels, "run": "llama"}, value) for name, labels, value in monitor()]
        write(packed(*series, at_s=at_s))
        # Two more exporters of the same seconds.
        sent = ("node_amazonefa_tx_bytes", {"instance": ADDRESS, "device": "rdmap0"})
        write(packed((*sent, 100.0 * (at_s - end + 60)), at_s=at_s))
        memory = (("Total", 8e9), ("Available", 2e9))
        series = [(f"node_memory_Mem{of}_bytes", {"instance": ADDRESS}, n) for of, n in memory]
        write(packed(*series, at_s=at_s))
    # The first scrape of a counter gives no rate.
    assert prometheus.assemble(hot, now_s=time.time() + LATER_S) == 5
    names = ("core_utilization_ratio", "efa_tx_bytes_per_s", "host_memory_used_bytes")
    found = hot.window(f"node:{NODE}", names, start=end - 14, end=end).values
    for name, value in zip(names, (0.9, 100.0, 6e9), strict=True):
        np.testing.assert_allclose(found[name][:, 0, 0], [value] * 15, rtol=0.01)
    # The second scrape of one exporter does not make the node idle.
    assert Node.objects.get().run == Run.objects.get(name="llama")


def test_nodes_are_stored_together(
    write: Post, hot: HotStore, django_assert_num_queries: Any
) -> None:
    end = int(time.time())

    def scrape(at_s: int, nodes: int) -> None:
        for i in range(nodes):
            series = [(name, {**own, "node": f"trn-{i}"}, n) for name, own, n in monitor()]
            write(packed(*series, at_s=at_s))

    scrape(end - 30, 3)
    assert prometheus.assemble(hot, now_s=time.time() + LATER_S) == 3
    for at_s, n_nodes in ((end - 15, 1), (end, 3)):
        scrape(at_s, n_nodes)
        # Their rows, and which runs are active.
        with django_assert_num_queries(3):
            assert prometheus.assemble(hot, now_s=time.time() + LATER_S) == n_nodes


def test_what_is_known_of_a_node_is_written_only_where_it_changed(
    write: Post, hot: HotStore
) -> None:
    write(packed(*monitor(), at_s=time.time()))
    # From when on it has arrived.
    now = time.time()
    prometheus.assemble(hot, now_s=now)
    hot.execute("PEXPIRE", prometheus.STATE + NODE, 60_000)
    # The scrape waits for more series.
    assert prometheus.assemble(hot, now_s=now) == 0
    assert 0 < hot.execute("TTL", prometheus.STATE + NODE) <= 60
    assert prometheus.assemble(hot, now_s=now + LATER_S) == 1
    assert hot.execute("TTL", prometheus.STATE + NODE) > 60
    assert hot.execute("SMEMBERS", prometheus.NODES) == set()


class ProcessEnded(BaseException):
    """The process ends."""


class EndingStore(HotStore):
    """A store whose process ends before one of its round trips to Redis."""

    n_left = 0

    def execute(self, *command: Any, **reading: Any) -> Any:
        self._go_on()
        return super().execute(*command, **reading)

    def execute_all(self, commands: Iterable[Command]) -> list[Any]:
        self._go_on()
        return super().execute_all(commands)

    def _go_on(self) -> None:
        self.n_left -= 1
        if self.n_left < 0:
            raise ProcessEnded


def test_a_process_that_ends_anywhere_doubles_and_loses_nothing(
    write: Post, hot: HotStore, redis_url: str
) -> None:
    ending, n_ended = EndingStore(Redis.from_url(redis_url), keep_s=hot.keep_s), 0
    start = int(time.time()) // 60 * 60 - 600
    for i in range(40):
        at_s = start + 15 * i
        for part in (slice(20), slice(20, None)):
            write(packed(*monitor(completed=30.0 * i)[part], at_s=at_s))
        # Each time it gets further.
        ending.n_left = i
        try:
            prometheus.assemble(ending, now_s=time.time())
        except ProcessEnded:
            n_ended += 1
            hot.execute("DEL", prometheus.LOCK)
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    assert 5 < n_ended < 40
    seconds = hot.window(f"node:{NODE}", start=start + 1, end=start + 15 * 39).values
    np.testing.assert_allclose(seconds["executions_completed_per_s"][:, 0, 0], 2.0, rtol=0.01)
    assert np.isfinite(seconds["core_utilization_ratio"]).all()
    totals = hot.totals([f"node:{NODE}"]).nodes["executions_completed_per_s"]
    assert totals[NODE] == pytest.approx(30.0 * 39, rel=0.01)


def test_series_that_are_not_used_are_counted(write: Post, hot: HotStore) -> None:
    end = int(time.time())
    more = [("up", {"instance": NODE}, 1.0), ("go_threads", {"instance": NODE}, 9.0)]
    assert write(packed(*more, at_s=end)).status_code == 204
    assert float(hot.execute("HGET", "service:counters", "ingest_series_ignored")) == 2
    assert prometheus.assemble(hot, now_s=time.time() + LATER_S) == 0
    assert not Node.objects.exists()


def test_only_one_process_assembles(write: Post, hot: HotStore) -> None:
    hot.execute("SET", prometheus.LOCK, "1")
    write(packed(*monitor(), at_s=time.time()))
    assert prometheus.assemble(hot, now_s=time.time() + LATER_S) == 0


def test_refusals_make_the_sender_drop_or_wait(write: Post, hot: HotStore) -> None:
    body = packed(*monitor(), at_s=time.time())
    assert write(b"no snappy").status_code == 400
    assert write(body, Content_Encoding="gzip").status_code == 415
    wrong = write(body, bearer="unknown")
    assert (wrong.status_code, wrong.headers["WWW-Authenticate"][:6]) == (401, "Bearer")
    read_only = Token.issue("scraper", Token.Scope.SCRAPE, now=NOON)[1]
    assert write(body, bearer=read_only).status_code == 403
    hot.execute("RPUSH", prometheus.QUEUE + NODE, *[b"x"] * prometheus.MAX_QUEUED)
    full = write(body)
    assert (full.status_code, full.headers["Retry-After"]) == (503, "5")


@pytest.mark.parametrize("method", ["get", "put"])
def test_other_methods_are_refused(client: Client, method: str, db: None) -> None:
    answer = getattr(client, method)(URL)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")


def test_runs_come_from_labels_and_end_with_them(write: Post, hot: HotStore) -> None:
    end = int(time.time())

    def scrape(at_s: int, **labels: str) -> None:
        series = [(name, {**own, **labels}, value) for name, own, value in monitor()]
        write(packed(*series, at_s=at_s))
        prometheus.assemble(hot, now_s=time.time() + LATER_S)

    scrape(end - 60, pod_name="llama-worker-3", namespace="ml")
    run = Run.objects.get()
    assert (run.name, run.phase, run.instance_type) == ("llama", "training", "trn1.32xlarge")
    assert Node.objects.get().run == run
    assert run.labels == {"namespace": "ml"}
    assert Node.objects.get().labels == {"pod": "llama-worker-3", "namespace": "ml"}
    scrape(end - 45, run="other")
    assert Node.objects.get().run == Run.objects.get(name="other")
    run.refresh_from_db()
    assert run.phase == "finished"
    # Idle, and back.
    for at_s in (end - 40, end - 35, end - 30):
        assert Node.objects.get().run is not None
        scrape(at_s)
    assert Node.objects.get().run is None
    assert not Run.objects.active().exists()
    scrape(end - 15, pod_name="llama-worker-3")
    run.refresh_from_db()
    assert (run.phase, run.finished_at) == ("training", None)


def test_a_label_names_the_run_that_its_job_would_report(write: Post, hot: HotStore) -> None:
    name = "llama-3.1-8b"
    series = [(each, {**own, "run": name}, value) for each, own, value in monitor()]
    assert write(packed(*series, at_s=int(time.time()))).status_code == 204
    prometheus.assemble(hot, now_s=time.time() + LATER_S)

    run = Node.objects.get().run
    assert run is not None
    assert run.name == identity_of({"TRNWATCH_RUN": name}).run


@pytest.mark.parametrize("named", [(True, False), (False, True), (True, False, False)])
def test_a_run_goes_on_while_single_scrapes_lack_its_name(
    write: Post, hot: HotStore, named: tuple[bool, ...]
) -> None:
    end, began = int(time.time()), None
    for i in range(12):
        labels = {"pod_name": "llama-worker-3"} if named[i % len(named)] else {}
        series = [(name, {**own, **labels}, value) for name, own, value in monitor()]
        write(packed(*series, at_s=end - 15 * (12 - i)))
        prometheus.assemble(hot, now_s=time.time() + LATER_S)
        run = Run.objects.first()
        if began is None and run is not None:
            began = run.phase_since
        if run is not None:
            assert Node.objects.get().run == run
            assert (run.finished_at, run.phase_since) == (None, began)
    assert began is not None


def test_a_run_goes_on_beside_an_exporter_that_names_none_more_often(
    write: Post, hot: HotStore
) -> None:
    end = int(time.time())
    check = ("accelerator_unhealthy", {"instance": "10.0.0.7:9100", "device": "0"}, 0.0)
    for at_s in range(end - 600, end, 15):
        if at_s < end - 300 and (end - at_s) % 60 == 0:
            own = [(name, {**own, "pod_name": "llama-1"}, value) for name, own, value in monitor()]
            write(packed(*own, at_s=at_s))
        write(packed(check, at_s=at_s + 1))
        prometheus.assemble(hot, now_s=time.time() + LATER_S)
        phases = list(Run.objects.values_list("phase", flat=True))
        assert phases == ["training" if at_s < end - 240 else phases[0]]
    # It ends once the exporter that named it is gone.
    assert phases == ["finished"]


def test_a_node_with_several_exporters_shows_the_last_of_each(
    write: Post, hot: HotStore, client: Client, settings: Settings
) -> None:
    settings.ANONYMOUS_READING = True
    end = int(time.time())
    for at_s in (end - 20, end - 5):
        write(packed(*monitor(), at_s=at_s))
        memory = (("Total", 8e9), ("Available", 2e9))
        series = [(f"node_memory_Mem{of}_bytes", {"instance": ADDRESS}, n) for of, n in memory]
        write(packed(*series, at_s=at_s + 4))
        prometheus.assemble(hot, now_s=time.time() + LATER_S)
    now = hot.latest()[f"node:{NODE}"]
    assert now.tick == end - 1
    np.testing.assert_allclose(now.values["core_utilization_ratio"], 0.9, atol=0.01)
    np.testing.assert_allclose(now.values["host_memory_used_bytes"], 6e9, rtol=0.01)
    page = client.get(f"/nodes/{NODE}/").content.decode()
    assert "Not measured<" not in page or "Core utilization" not in page.split("Not measured<")[1]


def test_a_node_that_is_scraped_is_silent_after_three_scrapes(
    write: Post, hot: HotStore, client: Client, settings: Settings
) -> None:
    settings.ANONYMOUS_READING = True
    start = int(time.time())
    for at_s, limit_s in ((start - 45, 210), (start - 30, 52)):
        write(packed(*monitor(), at_s=at_s))
        prometheus.assemble(hot, now_s=time.time() + LATER_S)
        # After the first scrape the next one may be a minute away.
        assert hot.quiet_s() == {NODE: limit_s}
    # It has no run, and is a spare.
    seen, may_be_quiet_s = hot.last_seen(), hot.quiet_s()
    for age_s, n_found in ((51, 0), (52, 1)):
        now_s = seen[NODE] + age_s
        found = find_silent(seen, now_s=now_s, may_be_quiet_s=may_be_quiet_s)
        assert len(found) == n_found
        up = read_snapshot(hot, now_s=now_s).up
        assert (NODE in up) is (age_s <= 52)
    hot.now = lambda: float(start)
    [node] = nodes_now(hot, Node.objects.all(), now_s=start + 14)
    assert node.state == "up"
    assert nodes_now(hot, [node.node], now_s=start + 23)[0].state == "silent"
    # A node that has an agent now reports more often.
    store_batches(hot, [IngestBatch(node=NODE, n_accepted=1, clock="0")])
    assert hot.quiet_s() == {}


def test_a_run_that_reports_steps_keeps_its_nodes(write: Post, hot: HotStore, run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(session="a", finished_at=None)
    now = int(time.time())
    write(packed(*monitor(), at_s=now - 15))
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    Node.objects.update(run=run)
    series = [(name, {**labels, "run": "other"}, value) for name, labels, value in monitor()]
    write(packed(*series, at_s=now))
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    assert Node.objects.get().run == run


def test_a_label_cannot_take_a_simulated_run(write: Post, hot: HotStore, run: Run) -> None:
    now = int(time.time())
    series = [(name, {**labels, "run": run.name}, value) for name, labels, value in monitor()]
    write(packed(*series, at_s=now))
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    assert Node.objects.get(name=NODE).run is None
    assert float(hot.execute("HGET", "service:counters", "ingest_lines_refused")) == 1


def test_a_node_with_unusable_samples_does_not_hold_up_the_others(
    write: Post, hot: HotStore
) -> None:
    hot.execute("RPUSH", prometheus.QUEUE + "10.0.0.1", b"damaged")
    hot.execute("SADD", prometheus.NODES, "10.0.0.1")
    write(packed(*monitor(), at_s=time.time()))
    assert prometheus.assemble(hot, now_s=time.time() + LATER_S) == 1
    assert Node.objects.get().name == NODE
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    assert hot.execute("SMEMBERS", prometheus.NODES) == set()


def test_a_machine_is_one_node_whatever_names_its_series_have(write: Post, hot: HotStore) -> None:
    """Its exporters are scraped at addresses; one of them knows its number, and gets a new pod."""
    end = int(time.time())
    host = ("node_memory_MemTotal_bytes", {"instance": "10.0.0.7:9100"}, 8e9)
    free = ("node_memory_MemAvailable_bytes", {"instance": "10.0.0.7:9100"}, 2e9)
    # What knows no number comes first, from the same address.
    write(packed(host, free, at_s=end - 30))
    for at_s, address in ((end - 15, "10.0.0.7:8000"), (end, "10.9.1.5:8000")):
        series = [(name, {**own, "instance": address}, n) for name, own, n in monitor()]
        write(packed(host, free, *series, at_s=at_s))
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    node = Node.objects.get()
    assert (node.name, node.instance_id) == ("10.0.0.7", "i-07")
    now = hot.latest()["node:10.0.0.7"]
    assert {"core_utilization_ratio", "host_memory_used_bytes"} <= now.values.keys()


def named(own: dict[str, str], ratio: float = 0.5) -> tuple[str, dict[str, str], float]:
    return ("neuroncore_utilization_ratio", {"neuroncore": "0", **own}, ratio)


KUBERNETES = {"kubernetes_node": "ip-10-0-0-7"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"instance": "10.0.0.7:8000"}, KUBERNETES),
        ({"instance": "trn-7:8000"}, KUBERNETES),
        (KUBERNETES, {"instance": "10.0.0.7:8000"}),
        (KUBERNETES, {"instance": "trn-7:8000"}),
        ({"node": "trn-7"}, KUBERNETES),
        ({"hostname": "trn-7"}, {"instance": "trn-7.internal:8000"}),
    ],
    ids=str,
)
def test_two_sources_that_name_a_machine_differently_are_one_node(
    write: Post, hot: HotStore, first: dict[str, str], second: dict[str, str]
) -> None:
    """Their number is the same; another exporter of the second one does not know it."""
    end, number = time.time(), {"instance_id": "i-07"}
    for i, own in enumerate((first, second, first, second)):
        write(packed(named(own | number), at_s=end - 60 + 15 * i))
    drops = ("node_amazonefa_rx_drops", second | {"device": "rdmap0"})
    for n in (0.0, 30.0):
        write(packed((*drops, n), at_s=end - 15 + n / 2))
    # A scrape of both at once changes nothing.
    write(packed(named(first | number), named(second | number), at_s=end))
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    node = Node.objects.get()
    assert node.instance_id == "i-07"
    assert "efa_drops_per_s" in hot.latest()[f"node:{node.name}"].values


@pytest.mark.parametrize(
    ("label", "together"),
    [("kubernetes_node", True), ("kubernetes_node", False), ("node", False), ("hostname", True)],
)
def test_machines_with_one_number_are_as_many_as_their_names(
    write: Post, hot: HotStore, label: str, *, together: bool
) -> None:
    """A collector may add its own number to what it scrapes from others."""
    series = [named({label: f"trn-{i}", "instance_id": "i-07"}) for i in range(3)]
    for at_s in (time.time() - 15, time.time()):
        for some in [series] if together else [[each] for each in series]:
            write(packed(*some, at_s=at_s))
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    assert sorted(Node.objects.values_list("name", flat=True)) == ["trn-0", "trn-1", "trn-2"]


def test_the_address_of_a_pod_that_another_node_has_later_names_that_one(
    write: Post, hot: HotStore
) -> None:
    for number, address in (("i-1", "10.9.1.5:8000"), ("i-2", "10.9.1.5:8000")):
        own = {"instance": address, "instance_id": number, "neuroncore": "0"}
        write(packed(("neuroncore_utilization_ratio", own, 0.5), at_s=time.time()))
    write(packed(("system_memory_used_bytes", {"instance": address}, 5e9), at_s=time.time()))
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    assert sorted(Node.objects.values_list("name", flat=True)) == ["i-1", "i-2"]
    assert "host_memory_used_bytes" in hot.latest()["node:i-2"].values


def test_a_node_of_an_earlier_release_keeps_its_name(write: Post, hot: HotStore) -> None:
    older = [(name, {**own, "node": "10.0.0.7"}, n) for name, own, n in monitor()]
    write(packed(*older, at_s=time.time() - 15))
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    hot.execute("DEL", prometheus.NAMED + "i-07", prometheus.NAMED + "10.0.0.7")
    write(packed(*monitor(), at_s=time.time()))
    prometheus.assemble(hot, now_s=time.time() + LATER_S)
    assert Node.objects.get().name == "10.0.0.7"
