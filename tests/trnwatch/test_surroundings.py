"""Labels from the environment and from the instance's metadata."""

import http.server
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from trnwatch.surroundings import environment_labels, metadata_labels

PATHS = {
    "/latest/meta-data/placement/availability-zone": "us-east-2b",
    "/latest/meta-data/placement/group-name": "trn2-a",
}


class Metadata(http.server.BaseHTTPRequestHandler):
    """Answers as IMDSv2: with a token only."""

    protocol_version = "HTTP/1.1"
    paths: Mapping[str, str] = PATHS

    def do_PUT(self) -> None:
        asks = self.path == "/latest/api/token"
        is_valid = asks and self.headers["X-aws-ec2-metadata-token-ttl-seconds"] == "60"
        self._answer("the-token" if is_valid else None)

    def do_GET(self) -> None:
        is_known = self.headers["X-aws-ec2-metadata-token"] == "the-token"
        self._answer(self.paths.get(self.path) if is_known else None)

    def _answer(self, text: "str | None") -> None:
        self.send_response(404 if text is None else 200)
        body = (text or "<html>not found</html>").encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def host() -> Iterator[str]:
    """Serve metadata; gives the host and port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def tag(tmp_path: Path) -> Path:
    """Give the asset tag of an EC2 instance."""
    path = tmp_path / "board_asset_tag"
    path.write_text("i-0123456789abcdef0\n")
    return path


def test_labels_that_are_left_out_are_logged_with_their_rule(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trnwatch.log._warned", set())
    labels = environment_labels({"TRNWATCH_LABELS": "cost-center=ml, owner=ada,prod,empty=,"})

    assert labels == {"owner": "ada"}
    assert [record.args for record in caplog.records] == [("cost-center=ml, prod",)]
    assert "TRNWATCH_LABELS" in caplog.text


@pytest.mark.parametrize(
    ("env", "labels"),
    [
        ({}, {}),
        (
            {"POD_NAME": "llama-0", "POD_NAMESPACE": "ml", "NODE_NAME": "ip-10-0-0-1"},
            {"pod": "llama-0", "namespace": "ml", "kubernetes_node": "ip-10-0-0-1"},
        ),
        ({"TRNWATCH_POD": "mine", "POD_NAME": "llama-0"}, {"pod": "mine"}),
        (
            {"TRNWATCH_NODE_GROUP": "trn2-a", "TRNWATCH_NODE_POOL": "", "TRNWATCH_ZONE": "z"},
            {"node_group": "trn2-a", "zone": "z"},
        ),
        (
            {
                "SLURM_JOB_ID": "8213",
                "SLURM_ARRAY_JOB_ID": "8200",
                "SLURM_ARRAY_TASK_ID": "13",
                "SLURM_JOB_PARTITION": "trn2",
            },
            {
                "slurm_job_id": "8213",
                "slurm_array_job_id": "8200",
                "slurm_array_task_id": "13",
                "slurm_partition": "trn2",
            },
        ),
        (
            {"TRNWATCH_LABELS": " cluster = prod ,owner=ada,,1x=no,a-b=no,empty=,note=a=b"},
            {"cluster": "prod", "owner": "ada", "note": "a=b"},
        ),
        ({"POD_NAME": " a\nb\x7f"}, {"pod": "a b"}),
        ({"POD_NAME": "x" * 200}, {"pod": "x" * 128}),
    ],
)
def test_the_environment_labels(env: Mapping[str, str], labels: Mapping[str, str]) -> None:
    assert environment_labels(env) == labels


def test_a_report_has_a_limited_number_of_labels() -> None:
    many = ",".join(f"n{i}=x" for i in range(100))

    found = environment_labels({"TRNWATCH_LABELS": many, "POD_NAME": "llama-0"})

    assert len(found) == 24
    assert found["pod"] == "llama-0"


def test_a_pod_knows_its_namespace(tmp_path: Path) -> None:
    path = tmp_path / "namespace"
    assert environment_labels({}, namespace_file=path) == {}
    path.write_text("ml\n")

    assert environment_labels({}, namespace_file=path) == {"namespace": "ml"}
    named = environment_labels({"POD_NAMESPACE": "other"}, namespace_file=path)
    assert named == {"namespace": "other"}


def test_the_metadata_labels_an_instance(host: str, tag: Path) -> None:
    assert metadata_labels(host=host, asset_tag=tag) == {
        "zone": "us-east-2b",
        "placement_group": "trn2-a",
    }


def test_an_instance_without_a_placement_group_has_none(
    host: str, tag: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = next(iter(PATHS))
    monkeypatch.setattr(Metadata, "paths", {zone: PATHS[zone]})

    assert metadata_labels(host=host, asset_tag=tag) == {"zone": "us-east-2b"}


def test_other_machines_are_not_asked(host: str, tmp_path: Path) -> None:
    assert metadata_labels(host=host, asset_tag=tmp_path / "none") == {}


def test_without_an_answer_there_are_no_labels(tag: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        host = f"127.0.0.1:{deaf.getsockname()[1]}"
        assert metadata_labels(host=host, asset_tag=tag, within_s=0.05) == {}
    assert metadata_labels(host=host, asset_tag=tag, within_s=0.05) == {}
