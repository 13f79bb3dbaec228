"""Labels of nodes and runs: how they arrive, and where they select."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from fleet.alerts.matchers import matches, parse_matchers
from fleet.ingest.nodes import NodeIngest
from fleet.ingest.steps import StepIngest
from fleet.metrics.node_collectors import MAX_INFO_LABELS
from fleet.models import Alert, Node, Run
from fleet.models.filters import MAX_LABELS, merged_labels
from telemetry.agent.clock import Moment
from telemetry.agent.reports import MONITOR, encode_columns, encode_tail, group_frames
from telemetry.agent.spool import Frame, gzip_member
from telemetry.errors import FieldError
from telemetry.store.hot import HotStore
from tests.alerts import straggling
from tests.helpers import NOON, NOON_S
from tests.telemetry.ingest.reports import report

Page = Callable[..., str]


@pytest.fixture
def labeled(hot: HotStore, run: Run, steady: Node, limping: Node) -> Run:
    """Label a run and its two nodes."""
    Run.objects.update(labels={"namespace": "ml", "slurm_job_id": "8213"})
    Node.objects.filter(pk=steady.pk).update(labels={"pod": "llama-0"}, zone="us-east-2a")
    Node.objects.filter(pk=limping.pk).update(labels={"pod": "llama-1", "node_group": "trn2 a"})
    return Run.objects.get()


# How they arrive


def deliver(line: dict[str, Any]) -> Any:
    content = json.dumps(line).encode()
    return NodeIngest(keep_s=900).deliver([content], node="real", arrived_s=NOON_S)


def agent_line(labels: object) -> dict[str, Any]:
    agent = {"version": "1", "labels": labels}
    return {"at": NOON_S, "agent": agent, "report": report("trn1.2xlarge")}


@pytest.mark.django_db
def test_those_of_the_agent_are_merged() -> None:
    for labels in (
        {"node_group": "a", "placement_group": "pg", "zone": "us-east-2b"},
        {"node_group": "b", "placement_group": ""},
    ):
        assert deliver(agent_line(labels)).n_accepted == 1

    node = Node.objects.get()
    assert node.labels == {"node_group": "b"}
    # The report names a zone, which is kept.
    assert node.zone == report("trn1.2xlarge")["instance_info"]["instance_availability_zone"]


@pytest.mark.django_db
def test_those_of_the_agent_come_with_columns_too() -> None:
    content = json.dumps(report("trn1.2xlarge"), separators=(",", ":")).encode()
    frame = Frame(MONITOR, 1, Moment(NOON_S, 1.0), b"boot", gzip_member(encode_tail(content, {})))
    [group] = group_frames([frame])
    line = encode_columns(
        group.rows,
        stream="0123abcd",
        seq=[1],
        at_s=[NOON_S],
        health={"version": "1", "labels": {"node_pool": "trn2"}},
    )

    done = NodeIngest(keep_s=900).deliver([line], node="real", arrived_s=NOON_S)

    assert done.refused == []
    assert Node.objects.get().labels == {"node_pool": "trn2"}


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        ({"node-group": "a"}, "agent.labels.<key>"),
        ({"": "a"}, "agent.labels.<key>"),
        ({"pod": "x" * 129}, "agent.labels.pod"),
        ({"pod": "x\n"}, "agent.labels.pod"),
        ({"pod": 7}, "agent.labels.pod"),
        ({f"n{i}": "x" for i in range(25)}, "agent.labels"),
        ([], "agent.labels"),
    ],
)
@pytest.mark.django_db
def test_invalid_ones_are_refused_with_their_field(labels: object, field: str) -> None:
    refused = deliver(agent_line(labels)).refused

    assert [each.field for each in refused] == [field]
    assert not Node.objects.exists()


@pytest.mark.django_db
def test_those_of_a_job_belong_to_its_run_and_its_node(hot: HotStore) -> None:
    facts = {"run": "llama", "kind": "run", "node": "worker-0", "labels": {"namespace": "ml"}}
    facts["node_labels"] = {"pod": "llama-0", "namespace": "ml", "zone": "us-east-2a"}
    beat = {"run": "llama", "kind": "beat", "worker": "worker-0"}
    lines = [json.dumps(line).encode() for line in (facts, beat)]

    done = StepIngest(lambda: 0.0).deliver(hot, lines, arrived_s=NOON_S)

    assert done.refused == []
    assert Run.objects.get().labels == {"namespace": "ml"}
    node = Node.objects.get()
    assert (node.labels, node.zone) == ({"namespace": "ml", "pod": "llama-0"}, "us-east-2a")
    assert node.all_labels["zone"] == "us-east-2a"


def test_new_ones_displace_old_ones_where_there_are_too_many() -> None:
    held = {f"old{i:02}": "x" for i in range(MAX_LABELS)}

    merged = merged_labels(held, {"pod": "a", "old00": ""})

    assert len(merged) == MAX_LABELS
    assert merged["pod"] == "a"
    assert "old00" not in merged


# Where they select


@pytest.mark.parametrize(
    ("label", "nodes", "runs", "alerts"),
    [
        ("pod=llama-0", ["steady"], [], 0),
        ("pod=llama-1", ["limping"], [], 1),
        ("pod", ["limping", "steady"], [], 1),
        ("zone=us-east-2a", ["steady"], [], 0),
        ("zone", ["steady"], [], 0),
        ("namespace=ml", [], ["llama"], 1),
        ("namespace=m", [], [], 0),
        ("node_group=trn2 a", ["limping"], [], 1),
        ("contains=x", [], [], 0),
        ("pod__contains=l", [], [], 0),
        ("no label", [], [], 0),
    ],
)
def test_lists_are_filtered_by_them(
    labeled: Run, limping: Node, label: str, nodes: list[str], runs: list[str], alerts: int
) -> None:
    straggling(labeled, limping, at=NOON)

    assert [node.name for node in Node.objects.filter_by(label=label)] == nodes
    assert [run.name for run in Run.objects.filter_by(label=label)] == runs
    assert Alert.objects.filter_by(now=NOON, label=label).count() == alerts


def test_pages_show_them_and_are_filtered_by_them(page: Page, labeled: Run) -> None:
    assert 'href="/nodes/?label=node_group%3Dtrn2%20a"' in page("/nodes/limping/")
    assert 'href="/runs/?label=slurm_job_id%3D8213"' in page("/runs/llama/")
    assert ">steady</a>" in page("/nodes/?label=pod%3Dllama-0")
    assert ">limping</a>" not in page("/nodes/?label=pod%3Dllama-0")
    assert ">llama</a>" in page("/runs/?label=namespace%3Dml")
    assert "No run matches" in page("/runs/?label=namespace%3Dvision")
    assert "No open alert matches" in page("/alerts/?label=namespace%3Dml")
    assert ">steady</a>" in page("/nodes/?q=llama-0")
    assert ">limping</a>" not in page("/nodes/?q=llama-0")


@pytest.mark.parametrize("asked", ["slurm_job_id=8213", "8213"])
def test_the_search_finds_them(page: Page, labeled: Run, asked: str) -> None:
    assert 'href="/runs/llama/"' in page("/search?q=" + asked.replace("=", "%3D"))


def test_the_api_has_them_and_is_filtered_by_them(client: Client, labeled: Run) -> None:
    def ask(path: str) -> Any:
        return client.get(f"/api/v1/{path}")

    one = ask("nodes?label=pod%3Dllama-0").json()["items"]
    assert [each["labels"] for each in one] == [{"pod": "llama-0"}]
    assert len(ask("runs?label=slurm_job_id").json()["items"]) == 1
    assert ask("alerts?label=namespace%3Dml").json()["items"] == []

    refused = ask("nodes?label=node-group%3Da")
    assert (refused.status_code, refused.json()["field"]) == (400, "label")


@pytest.mark.parametrize(
    ("matchers", "node", "run_only"),
    [
        ("label.pod=llama-1", True, False),
        ("label.pod=llama-0", False, False),
        ("label.pod!=llama-0", True, True),
        # A node without the label has that of the run.
        ("label.namespace=ml", True, True),
        ('label.node_group=~"trn2.*"', True, False),
        ("label.zone=us-east-2a", False, False),
        ('label.pod="" label.slurm_job_id=8213', False, True),
    ],
)
def test_silences_and_routes_match_them(
    labeled: Run, limping: Node, matchers: str, *, node: bool, run_only: bool
) -> None:
    limping.refresh_from_db()
    alert = straggling(labeled, limping, at=NOON)

    parsed = parse_matchers(matchers)
    assert matches(parsed, alert) is node
    alert.node = None
    assert matches(parsed, alert, whole=True) is run_only


def test_a_silence_needs_the_label_on_each_node(labeled: Run) -> None:
    evidence = {"nodes": ["steady", "limping"]}
    alert = straggling(labeled, None, at=NOON, evidence=evidence)  # type: ignore[arg-type]
    parsed = parse_matchers("label.pod=llama-0")

    assert matches(parsed, alert)
    assert not matches(parsed, alert, whole=True)


@pytest.mark.parametrize("field", ["label.", "label.a-b", "label", "labels.pod", "label.1"])
def test_a_matcher_names_a_label_that_may_exist(field: str) -> None:
    with pytest.raises(FieldError, match=r"is not a field. Use one of .*, label\.NAME"):
        parse_matchers(f"{field}=x")


def metrics(client: Client) -> str:
    return client.get("/metrics").getvalue().decode()


def test_info_series_have_them(client: Client, labeled: Run) -> None:
    families = {each.name: each for each in text_string_to_metric_families(metrics(client))}
    nodes = {
        sample.labels["node"]: sample.labels for sample in families["trnwatch_node_info"].samples
    }
    [run] = families["trnwatch_run_info"].samples

    assert nodes["limping"]["label_node_group"] == "trn2 a"
    assert nodes["steady"].get("label_node_group", "") == ""
    assert nodes["steady"]["label_zone"] == "us-east-2a"
    assert (run.labels["label_namespace"], run.value) == ("ml", 1)


def test_info_series_have_the_labels_of_most_nodes(
    client: Client, labeled: Run, steady: Node
) -> None:
    many = {f"n{i:03}": "x" for i in range(MAX_INFO_LABELS)}
    Node.objects.filter(pk=steady.pk).update(labels=many | {"pod": "llama-0"})

    lines = metrics(client).splitlines()
    [line] = [each for each in lines if "node_info{" in each and '"steady"' in each]

    assert line.count("label_") == MAX_INFO_LABELS
    assert 'label_pod="llama-0"' in line
