"""An alert that accuses no node asks every node of its run, and the answers may name one."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from fleet.alerts import reconcile
from fleet.alerts.evaluate import open_problems
from fleet.alerts.probe_requests import (
    AGAIN_AFTER,
    MAX_OF_RUN,
    NODE_QUIET,
    late_devices,
    update_probe_requests,
)
from fleet.models import Alert, Delivery, Node, ProbeRequest, Receiver, Route, Run
from telemetry.detect import Finding
from telemetry.detect.causes import explanations_json, symptoms_json
from telemetry.simulate.noise import windows
from telemetry.store.hot import HotStore
from tests.fleet.alerts.faults import EVERYTHING
from tests.fleet.api.conftest import Post, hot, post, secret
from tests.telemetry.ingest.reports import report

__all__ = ["hot", "post", "secret"]
N_NODES, N_DEVICES, USUAL_S = 6, 4, 17e-6
WHEN = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=10)


def healthy(node: str) -> dict[str, Any]:
    """Answer of a node whose devices differ by a few percent."""
    values = {f"rdmap{9 * i}s0": USUAL_S * (1 + 0.01 * i) for i in range(N_DEVICES)}
    return {"latency_s": values}


def slow(node: str, *, device: int = 2, ratio: float = 5.0) -> dict[str, Any]:
    answer = healthy(node)
    answer["latency_s"][f"rdmap{9 * device}s0"] *= ratio
    return answer


class Fleet:
    """The nodes of a run with an agent each: what they answer passes through ingest."""

    def __init__(self, post: Post, hot: HotStore, run: Run) -> None:
        self._post, self._hot, self.run = post, hot, run
        self.names: list[str] = []

    def join(self, *names: str) -> None:
        for name in names:
            self._send(name, {})
            Node.objects.filter(name=name).update(run=self.run)
            self.names.append(name)

    def turn(self, at_s: float, answer: Mapping[str, Mapping[str, Any]] | None = None) -> int:
        """Evaluate the requests, and let the nodes that are asked answer; return how many are.

        Nodes answer as healthy ones unless ``answer`` has theirs; an empty one is none.
        """
        update_probe_requests(self._hot, now=WHEN + timedelta(seconds=at_s))
        asked = 0
        for name in self.names:
            request = self._send(name, {}).get("probe")
            if request is not None:
                asked += 1
                fields = (answer or {}).get(name, healthy(name))
                if fields:
                    self._send(name, {"probe": {"id": request["id"], **fields}})
        return asked

    def _send(self, node: str, agent: Mapping[str, Any]) -> dict[str, Any]:
        ports = [
            {"device": f"rdmap{9 * i}s0", "index": i, "port": 1, "counters": {"tx_bytes": 1}}
            for i in range(N_DEVICES)
        ]
        line = {
            "at": datetime.now(UTC).timestamp(),
            "report": report("trn1.2xlarge") | {"instance_info": {"instance_id": node}},
            "agent": {"version": "1", **agent},
            "efa": {"devices": ports},
        }
        answer: dict[str, Any] = self._post(json.dumps(line).encode(), node=node).json()
        assert answer["accepted"] == 1, answer
        return answer


@pytest.fixture
def fleet(post: Post, hot: HotStore, run: Run, settings: Settings) -> Fleet:
    settings.REQUEST_PROBES = True
    fleet = Fleet(post, hot, run)
    fleet.join(*(f"n{i}" for i in range(N_NODES)))
    return fleet


SYMPTOMS = {"step_s": 1, "transfer_s": 1, "wait_s": 0}


def network(run: Run, **changed: Any) -> Finding:
    fields: dict[str, Any] = {
        "rule": "allreduce_share",
        "cause": "network",
        "severity": "page",
        "run": run.name,
        "node": None,
        "device": None,
        "onset_s": WHEN.timestamp() - 20,
        "score": 1.3,
        "evidence": {
            "share_ratio": 0.33,
            "kind": "transferring",
            "symptoms": symptoms_json(SYMPTOMS),
            "causes": explanations_json(SYMPTOMS, scope="run", named="network"),
        },
    }
    return Finding(**fields | changed)


def find(at_s: float, *findings: Finding) -> None:
    reconcile(findings, evaluated=EVERYTHING, now=WHEN + timedelta(seconds=at_s))


def texts(alert: Alert) -> list[tuple[str, str]]:
    return list(alert.events.values_list("kind", "text"))


SILENT: Mapping[str, Any] = {f"n{i}": {} for i in range(4)}
AGAIN_S = AGAIN_AFTER.total_seconds()


def test_a_node_that_stands_out_twice_is_named_and_stays_named(
    fleet: Fleet, run: Run, client: Client, bob: User
) -> None:
    receiver = Receiver.objects.create(
        name="hook", kind="webhook", target="https://example.com/h", created_at=WHEN
    )
    route = Route.objects.filter(is_default=True).first() or Route.objects.create(
        name="default", is_default=True
    )
    route.receivers.add(receiver)
    find(0, network(run))
    alert = Alert.objects.get()
    assert fleet.turn(1, {"n3": slow("n3")}) == N_NODES
    # An agent allows no second request yet.
    assert [fleet.turn(s) for s in (3, 10)] == [0, 0]
    alert.refresh_from_db()
    assert alert.node is None
    assert fleet.turn(3 + AGAIN_S, {"n3": slow("n3", ratio=4.5)}) == 3
    fleet.turn(5 + AGAIN_S)

    alert.refresh_from_db()
    assert (str(alert.node), alert.device, alert.cause) == ("n3", 2, "efa_latency")
    kinds = [kind for kind, _ in texts(alert)]
    asked, answered = ["probe_requested"] * 2, ["probed", "cause_changed"]
    assert kinds == ["fired", *asked, *answered]
    probed = texts(alert)[3][1]
    assert "n3, EFA device 2, has a high latency: 86.7" in probed
    assert "78.0" in probed
    assert alert.evidence["culprit"]["n_peers"] == N_NODES * N_DEVICES - 1
    verdicts = [(row["cause"], row["verdict"]) for row in alert.evidence["causes"]]
    assert verdicts[0] == ("efa_latency", "named")
    assert [verdict for _, verdict in verdicts].count("named") == 1
    # Detection goes on with what it found itself.
    ((known,),) = open_problems([run]).values()
    was = network(run)
    assert (known.cause, known.node, known.evidence) == (was.cause, None, was.evidence)

    for second in (30, 70, 110):
        find(second, network(run, score=1.3 + second / 50))
        assert fleet.turn(second) == 0
    find(115, network(run, rule="step_slow", cause="unknown", evidence={"kind": "step"}))
    alert.refresh_from_db()
    assert (str(alert.node), alert.device, alert.cause) == ("n3", 2, "efa_latency")
    assert alert.rule == "step_slow"
    assert {"culprit", "probe"} <= set(alert.evidence)
    assert Alert.objects.count() == 1
    notified = Delivery.objects.values_list("kind", flat=True)
    assert [kind for kind in notified if kind == Delivery.Kind.FIRING] == [Delivery.Kind.FIRING]

    client.force_login(bob)
    panel = client.get(alert.get_absolute_url()).text.partition("Requested probes")[2]
    assert "probed twice" in panel.partition("</dl>")[0]

    # It ends, and comes back at once: the same row, and the same node.
    find(120)
    find(150, network(run))
    alert.refresh_from_db()
    assert (Alert.objects.count(), str(alert.node), alert.n_firings) == (1, "n3", 2)


def test_what_detection_names_itself_counts_more_than_probes(fleet: Fleet, run: Run) -> None:
    find(0, network(run))
    fleet.turn(1, {"n3": slow("n3")})
    fleet.turn(3)
    find(4, network(run, cause="slow_core", node="n1", device=5))
    fleet.turn(3 + AGAIN_S, {"n3": slow("n3")})
    fleet.turn(5 + AGAIN_S)

    alert = Alert.objects.get()
    assert (str(alert.node), alert.device, alert.cause) == ("n1", 5, "slow_core")
    assert "n3, EFA device 2, has a high latency" in texts(alert)[-1][1]


@pytest.mark.parametrize(
    ("first", "again", "text"),
    [
        (
            {},
            {},
            f"all {N_NODES} probed nodes have similar latencies: 17.3\u202fµs to 17.3",
        ),
        ({"n2": slow("n2")}, {}, "n2 had a high latency once, not in a second probe"),
        ({"n2": slow("n2")}, {"n2": {}}, "n2 had a high latency once, not in a second probe"),
        (
            {"n2": slow("n2"), "n4": slow("n4")},
            {"n2": slow("n2"), "n4": slow("n4")},
            f"2 of {N_NODES}\u202fnodes have a high latency: n2, n4. None is implicated",
        ),
        (
            {f"n{i}": {"reason": "no such device"} for i in range(4)},
            {},
            f"2 of {N_NODES}\u202fnodes answered, too few to compare: no such device",
        ),
        (SILENT, SILENT, f"2 of {N_NODES}\u202fnodes answered, too few"),
    ],
)
def test_without_one_that_stands_out_the_alert_says_what_was_measured(
    fleet: Fleet,
    run: Run,
    first: Mapping[str, Any],
    again: Mapping[str, Any],
    text: str,
) -> None:
    find(0, network(run))
    fleet.turn(1, first)
    fleet.turn(3, first)
    fleet.turn(3 + AGAIN_S, again)
    n_requests = ProbeRequest.objects.count()
    for at_s in (5 + AGAIN_S, 62, 64 + AGAIN_S, 82, 130, 150):
        fleet.turn(at_s, again)

    alert = Alert.objects.get()
    assert alert.node is None
    assert next(t for kind, t in texts(alert) if kind == "probed").startswith(text)
    assert [kind for kind, _ in texts(alert)].count("probed") == 1
    assert ProbeRequest.objects.count() == n_requests


@pytest.mark.parametrize(
    "changed",
    [
        {"cause": "unknown", "evidence": {"kind": "waiting"}},
        {"cause": "seq_imbalance"},
        {"rule": "hang", "cause": "unknown"},
    ],
    ids=str,
)
def test_other_alerts_ask_no_run(fleet: Fleet, run: Run, changed: dict[str, Any]) -> None:
    find(0, network(run, **changed))

    assert fleet.turn(1) == 0
    assert not ProbeRequest.objects.exists()


def test_a_run_that_is_too_large_is_not_asked_and_the_alert_says_so(
    fleet: Fleet, run: Run
) -> None:
    Node.objects.bulk_create(
        Node(name=f"more-{i}", run=run, n_cores=2, n_devices=1, first_seen_at=WHEN, shard="s")
        for i in range(MAX_OF_RUN)
    )
    find(0, network(run))
    for second in (1, 2):
        assert fleet.turn(second) == 0

    (event,) = Alert.objects.get().events.filter(kind="probed")
    n_nodes = Node.objects.filter(run=run).count()
    assert event.text.startswith(f"no probe requested: the run has {n_nodes}\u202fnodes, at most")


def test_nodes_are_not_asked_for_two_alerts_at_a_time(fleet: Fleet, run: Run) -> None:
    find(0, network(run))
    fleet.turn(1)
    fleet.turn(2)
    second = network(run, rule="step_slow", onset_s=WHEN.timestamp() + 30)
    find(40, network(run), second)
    assert fleet.turn(41) == 0
    other = Alert.objects.get(rule="step_slow")
    assert "probed for another alert in the last 3 minutes" in texts(other)[-1][1]

    other.delete()
    later_s = NODE_QUIET.total_seconds() + 5
    find(later_s, network(run), second)
    assert fleet.turn(later_s + 1) == N_NODES


def probes(rng: np.random.Generator, n_nodes: int, n_devices: int) -> dict[str, dict[int, float]]:
    """Return one probe of each device, with the noise of simulated probes."""
    hashes = rng.integers(0, 2**63, n_nodes).astype(np.uint64) * np.uint64(2)
    values = USUAL_S * windows("latency", hashes, n_devices)
    return {f"n{i:02d}": dict(enumerate(row)) for i, row in enumerate(values.tolist())}


@pytest.mark.parametrize(("n_nodes", "n_devices"), [(64, 16), (16, 4), (4, 1), (2, 8)])
def test_two_rounds_of_noise_accuse_no_node(n_nodes: int, n_devices: int) -> None:
    rng, late_once, late_twice = np.random.default_rng(7), 0, 0
    for _ in range(400):
        first = probes(rng, n_nodes, n_devices)
        late = [each.node for each in late_devices([first])]
        late_once += bool(late)
        # As in operation, only those that were late are asked again, with two others.
        again = probes(rng, n_nodes, n_devices)
        few = {node: again[node] for node in [*late, *list(first)[:2]] if node}
        late_twice += bool(late_devices([first, few]))

    # In 1024 devices: 4 in 10,000.
    assert late_twice <= (n_nodes == 64)
    if n_nodes * n_devices > 1000:
        # One probe in a thousand is late by chance: one round would accuse often.
        assert late_once > 100


@pytest.mark.parametrize(("n_nodes", "n_devices"), [(64, 16), (16, 4), (2, 8)])
@pytest.mark.parametrize("ratio", [1.6, 3.0, 20.0])
def test_a_slow_device_is_named_in_spite_of_noise(
    n_nodes: int, n_devices: int, ratio: float
) -> None:
    rng, named, wrong = np.random.default_rng(8), 0, 0
    for _ in range(100):
        first, again = (probes(rng, n_nodes, n_devices) for _ in range(2))
        first["n01"][1] *= ratio
        again["n01"][1] *= ratio
        few = {node: again[node] for node in ("n00", "n01")}
        late = [(each.node, each.device) for each in late_devices([first, few])]
        named += late == [("n01", 1)]
        wrong += bool(late) and late != [("n01", 1)]

    assert named >= 98
    assert wrong == 0


@pytest.mark.parametrize(
    ("ratio", "parts", "is_late"),
    [(1.29, [0], False), (1.31, [0], True), (1.9, [0, 1], False), (2.1, [0, 1], True)],
)
def test_a_whole_node_must_be_later_because_it_may_be_far_away(
    ratio: float, parts: list[int], *, is_late: bool
) -> None:
    same = {f"n{i}": {0: USUAL_S, 1: USUAL_S} for i in range(4)}
    same["n2"] = {part: USUAL_S * (ratio if part in parts else 1) for part in (0, 1)}

    assert [each.node for each in late_devices([same, same])] == ["n2"] * is_late


def test_a_slow_device_is_told_from_the_devices_of_nodes_that_are_far_away() -> None:
    scatter = (0.97, 1.0, 1.01, 1.04)
    far = [{i: 1.31 * USUAL_S * scatter[i] for i in range(4)} for _ in range(2)]
    near = {f"n{i}": dict.fromkeys(range(4), USUAL_S) for i in range(6)}
    probed = {**near, "f0": far[0], "f1": far[1] | {2: 1.8 * USUAL_S}}

    late = [(each.node, each.device) for each in late_devices([probed, probed])]

    assert late == [("f1", 2)]


def test_a_device_that_answers_only_once_is_not_accused() -> None:
    first = {f"n{i}": {0: USUAL_S, 1: USUAL_S} for i in range(4)}
    first["n2"][1] = 9 * USUAL_S

    assert len(late_devices([first])) == 1
    assert late_devices([first, {"n1": {0: USUAL_S, 1: USUAL_S}, "n2": {0: USUAL_S}}]) == []
    assert late_devices([{}]) == []
