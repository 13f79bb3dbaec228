"""Kubernetes manifests, against the schemas of Kubernetes and against compose.yaml."""

import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import yaml

from tests.deploy.test_compose import OTHERS, OURS, settings_documented

ROOT = Path(__file__).resolve().parents[2]
SERVER, AGENT = ROOT / "deploy/kubernetes/trnwatch.yaml", ROOT / "deploy/agent/daemonset.yaml"
STORES = ("postgres", "redis")
Manifest = dict[str, Any]


def documents(path: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(path.read_text()))


class Model(msgspec.Struct, forbid_unknown_fields=True):
    """The base of lightkube's models, which refuses unknown fields."""


def named(metadata: Mapping[str, str], default: object = msgspec.NODEFAULT) -> Any:
    """Return a field whose name in YAML is a keyword of Python."""
    return msgspec.field(name=metadata["json"], default=default)


@pytest.fixture(scope="module", autouse=True)
def _schemas() -> None:
    """Let lightkube's models be built on ours: they come without lightkube itself."""
    schema: Any = ModuleType("lightkube.core.schema")
    schema.DictMixin, schema.dataclass, schema.field = Model, lambda cls: cls, named
    sys.modules |= {"lightkube.core": ModuleType("lightkube.core"), schema.__name__: schema}


def error_of(path: Path) -> str:
    """Return the first error of a manifest; empty: none."""
    for document in documents(path):
        group, _, version = document["apiVersion"].rpartition("/")
        module = f"{group.partition('.')[0] or 'core'}_{version}"
        kind = getattr(import_module(f"lightkube.models.{module}"), document["kind"])
        try:
            msgspec.convert(document, kind)
        except msgspec.ValidationError as error:
            return f"{document['kind']}: {error}"
    return ""


@pytest.fixture(scope="module")
def server() -> list[Manifest]:
    return documents(SERVER)


@pytest.fixture(scope="module")
def compose() -> Manifest:
    reported: Manifest = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return reported


def of_kind(found: list[Manifest], *kinds: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in found if each["kind"] in kinds}


def pods(found: list[Manifest]) -> dict[str, Manifest]:
    controllers = of_kind(found, "Deployment", "StatefulSet", "Job", "DaemonSet")
    return {name: each["spec"]["template"] for name, each in controllers.items()}


# The schemas


@pytest.mark.parametrize("path", [SERVER, AGENT], ids=lambda path: path.stem)
def test_a_manifest_is_what_kubernetes_knows(path: Path) -> None:
    assert error_of(path) == ""


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ("replicas: 2", "replica: 2", "Deployment: .*unknown field `replica`"),
        ("replicas: 2", 'replicas: "2"', r"Deployment: Expected `int.*\$\.spec\.replicas"),
        ("path: /healthz", "paths: /healthz", ".*unknown field `paths`"),
        ("args: [web]", "args: web", r".*Expected `array.*containers\[0\]\.args"),
        ("{name: tmp, mountPath: /tmp}", "{name: tmp}", "Job: .*required field `mountPath`"),
    ],
)
def test_a_mistake_is_found(tmp_path: Path, before: str, after: str, error: str) -> None:
    wrong = tmp_path / "wrong.yaml"
    text = SERVER.read_text()
    assert before in text
    wrong.write_text(text.replace(before, after, 1))

    assert re.match(error, error_of(wrong))


# What belongs together


@pytest.mark.parametrize("path", [SERVER, AGENT], ids=lambda path: path.stem)
def test_selectors_mounts_and_ports_belong_to_something(path: Path) -> None:
    found = documents(path)
    templates = pods(found)
    for name, each in of_kind(found, "Deployment", "StatefulSet", "DaemonSet").items():
        labels = templates[name]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for template in templates.values():
        spec = template["spec"]
        [container] = spec["containers"]
        claims = of_kind(found, "StatefulSet").get(container["name"], {"spec": {}})["spec"]
        volumes = [
            *spec["volumes"],
            *(c["metadata"] for c in claims.get("volumeClaimTemplates", ())),
        ]
        assert {v["name"] for v in volumes} == {m["name"] for m in container["volumeMounts"]}
        assert spec["automountServiceAccountToken"] is False
    for name, service in of_kind(found, "Service").items():
        [pod] = [
            p for p in templates.values() if service["spec"]["selector"] == p["metadata"]["labels"]
        ]
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports, name


def test_each_program_runs_as_in_compose(server: list[Manifest], compose: Manifest) -> None:
    config = of_kind(server, "ConfigMap")["trnwatch"]["data"]
    environment = {
        name for program in OURS for name in compose["services"][program]["environment"]
    }
    templates = pods(server)

    assert set(templates) == {*OURS, *STORES}
    assert set(config) == environment
    assert {type(value) for value in config.values()} == {str}
    known = settings_documented() | OTHERS
    assert {name.removesuffix("_FILE") for name in config} <= known
    for name in OURS:
        [container] = templates[name]["spec"]["containers"]
        assert container["args"] == compose["services"][name]["command"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        mounted = {
            f"/run/secrets/trnwatch/{item['path']}"
            for volume in templates[name]["spec"]["volumes"]
            for item in volume.get("secret", {}).get("items", ())
        }
        assert mounted == {value for key, value in config.items() if key.endswith("_FILE")}
    for name in STORES:
        assert (
            templates[name]["spec"]["containers"][0]["image"] == compose["services"][name]["image"]
        )


def test_no_lost_machine_stops_a_program_and_redis_keeps_its_data(
    server: list[Manifest], compose: Manifest
) -> None:
    programs = of_kind(server, "Deployment")
    [redis] = pods(server)["redis"]["spec"]["containers"]
    options = re.findall(
        r"--(?:appendonly|maxmemory-policy) \w+", compose["services"]["redis"]["command"][-1]
    )

    for name, program in programs.items():
        spec = program["spec"]
        [spread] = spec["template"]["spec"]["topologySpreadConstraints"]
        assert spec["replicas"] >= 2, name
        assert spread["topologyKey"] == "kubernetes.io/hostname"
        assert spread["labelSelector"] == spec["selector"]
    for name in ("worker", "beat", "sender"):
        assert (
            compose["services"][name]["deploy"]["replicas"] == programs[name]["spec"]["replicas"]
        )
    assert len(options) == 2
    assert all(option in redis["command"][-1] for option in options)


def test_its_addresses_lead_to_its_services(server: list[Manifest]) -> None:
    services = of_kind(server, "Service")
    made = (ROOT / "deploy/make_secrets.py").read_text()
    for name, port in re.findall(r"@(\w+):(\d+)/", made):
        assert services[name]["spec"]["ports"][0]["port"] == int(port)
    config = of_kind(server, "ConfigMap")["trnwatch"]["data"]
    hosts = config["TRNWATCH_ALLOWED_HOSTS"].split(",")
    [rule] = of_kind(server, "Ingress")["web"]["spec"]["rules"]
    [probe] = [
        header["value"]
        for header in pods(server)["web"]["spec"]["containers"][0]["readinessProbe"]["httpGet"][
            "httpHeaders"
        ]
    ]
    scraped = (ROOT / "deploy/prometheus/prometheus-kubernetes.yml").read_text()

    assert {rule["host"], probe, "web.trnwatch.svc"} == set(hosts)
    assert config["TRNWATCH_ORIGINS"] == config["TRNWATCH_BASE_URL"] == f"https://{rule['host']}"
    assert "web.trnwatch.svc:8000" in scraped
    backend: Mapping[str, Any] = rule["http"]["paths"][0]["backend"]["service"]
    assert backend["port"]["name"] in {
        p["name"] for p in services[backend["name"]]["spec"]["ports"]
    }
