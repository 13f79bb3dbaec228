"""Kubernetes manifests, against the schemas of Kubernetes and against compose.yaml."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from shutil import which
from types import ModuleType
from typing import Any

import msgspec
import pytest
import yaml

from tests.deploy.test_compose import OTHERS, OURS, settings_documented

ROOT = Path(__file__).resolve().parents[2]
CHART, AGENT = ROOT / "deploy/helm", ROOT / "deploy/agent/daemonset.yaml"
# The one that is installed with our tests, where its wheel fits the machine.
HELM = which("helm", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
GIVEN = {"image": "registry.example/trnwatch:1", "host": "trnwatch.example"}
STORES = ("postgres", "redis")
Manifest = dict[str, Any]


def helm() -> str:
    assert HELM, "helm is not on the PATH: install it to test the chart"
    return HELM


def rendered(**values: str) -> str:
    """Render the chart as its users do.

    Raises CalledProcessError, with helm's message, if it refuses the values.
    """
    given = [f"--set={name.replace('__', '.')}={value}" for name, value in values.items()]
    command = [helm(), "template", "trnwatch", str(CHART), "--namespace", "trnwatch", *given]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def documents(text: str) -> list[Manifest]:
    return [each for each in yaml.safe_load_all(text) if each]


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


def error_of(found: Iterable[Manifest]) -> str:
    """Return the first error of manifests; empty: none."""
    for document in found:
        group, _, version = document["apiVersion"].rpartition("/")
        module = f"{group.partition('.')[0] or 'core'}_{version}"
        kind = getattr(import_module(f"lightkube.models.{module}"), document["kind"])
        try:
            msgspec.convert(document, kind)
        except msgspec.ValidationError as error:
            return f"{document['kind']}: {error}"
    return ""


@pytest.fixture(scope="module")
def text() -> str:
    return rendered(**GIVEN)


@pytest.fixture(scope="module")
def server(text: str) -> list[Manifest]:
    return documents(text)


@pytest.fixture(scope="module")
def agent() -> list[Manifest]:
    return documents(AGENT.read_text())


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


@pytest.mark.parametrize("which", ["server", "agent"])
def test_a_manifest_is_what_kubernetes_knows(which: str, request: pytest.FixtureRequest) -> None:
    assert error_of(request.getfixturevalue(which)) == ""


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ("replicas: 2", "replica: 2", "Deployment: .*unknown field `replica`"),
        ("replicas: 2", 'replicas: "2"', r"Deployment: Expected `int.*\$\.spec\.replicas"),
        ("path: /healthz", "paths: /healthz", ".*unknown field `paths`"),
        ("args: [web]", "args: web", r".*Expected `array.*containers\[0\]\.args"),
        ("{name: tmp, mountPath: /tmp}", "{name: tmp}", ".*required field `mountPath`"),
    ],
)
def test_a_mistake_is_found(text: str, before: str, after: str, error: str) -> None:
    assert before in text

    assert re.match(error, error_of(documents(text.replace(before, after, 1))))


# The chart


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"image": ""}, "image is empty: the address of the image that you built"),
        ({"host": ""}, "host is empty: the public name of trnwatch"),
        ({"host": "https://trnwatch.example"}, "host: Does not match pattern"),
        ({"programs__web__replica": "3"}, "programs.web: Additional property replica is not"),
        ({"programs__wbe__replicas": "3"}, "programs: Additional property wbe is not allowed"),
        ({"redis__replicas": "0"}, "redis.replicas: Must be greater than or equal to 1"),
        ({"settings__TRNWATCH_HEARTBEAT_URL": "1"}, "TRNWATCH_HEARTBEAT_URL: Invalid type"),
    ],
)
def test_the_chart_names_the_value_that_is_wrong(values: dict[str, str], error: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered(**GIVEN | values)

    assert error in refused.value.stderr


def test_helm_has_no_complaint() -> None:
    given = [f"--set={name}={value}" for name, value in GIVEN.items()]

    subprocess.run(
        [helm(), "lint", "--strict", str(CHART), *given], check=True, capture_output=True
    )


def test_stores_and_ingress_may_be_ones_own() -> None:
    off = dict.fromkeys(("postgres__enabled", "redis__enabled", "ingress__enabled"), "false")
    found = documents(rendered(**GIVEN | off))

    assert error_of(found) == ""
    assert {name.removesuffix("-1") for name in pods(found)} == set(OURS)
    assert set(of_kind(found, "Service")) == {"web"}
    assert not of_kind(found, "Ingress", "StatefulSet")


def test_what_is_given_reaches_the_cluster() -> None:
    more = {"redis__replicas": "3", "redis__storageClass": "gp3", "pullSecrets[0]": "mine"}
    found = documents(rendered(**GIVEN | more | {"settings__TRNWATCH_SMTP_URL": "smtp://a"}))
    before = documents(rendered(**GIVEN))
    redis = of_kind(found, "StatefulSet")["redis"]["spec"]
    annotations = [
        pods(each)["web"]["metadata"]["annotations"]["settings"] for each in (found, before)
    ]

    assert error_of(found) == ""
    assert redis["replicas"] == 3
    assert redis["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "gp3"
    assert {p["spec"]["imagePullSecrets"][0]["name"] for p in pods(found).values()} == {"mine"}
    assert of_kind(found, "ConfigMap")["trnwatch"]["data"]["TRNWATCH_SMTP_URL"] == "smtp://a"
    assert annotations[0] != annotations[1]


# What belongs together


@pytest.mark.parametrize("which", ["server", "agent"])
def test_selectors_mounts_and_ports_belong_to_something(
    which: str, request: pytest.FixtureRequest
) -> None:
    found = request.getfixturevalue(which)
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
    templates = {name.removesuffix("-1"): pod for name, pod in pods(server).items()}

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
