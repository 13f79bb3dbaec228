"""Agent installation files: the systemd units and the Kubernetes DaemonSet."""

import configparser
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from fnmatch import fnmatch
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml

from telemetry.agent.program import SPOOL, read_options
from tests.fleet.prometheus_server import eventually
from tests.helpers import free_port, running
from trnwatch.surroundings import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/agent"


def read_unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(FOLDER / f"{name}.service")
    return parser


@pytest.fixture
def unit() -> configparser.ConfigParser:
    """Give the agent's unit, read."""
    return read_unit("trnwatch-agent")


def example_of(name: str) -> dict[str, str]:
    """Return the variables of an example of an environment file."""
    example = (FOLDER / f"{name}.env.example").read_text()
    return dict(re.findall(r"^(\w+)=(.*)$", example, flags=re.MULTILINE))


@pytest.fixture
def documents() -> dict[str, dict[str, Any]]:
    """Give what the manifest creates, by kind."""
    reported = yaml.safe_load_all((FOLDER / "daemonset.yaml").read_text())
    return {document["kind"]: document for document in reported}


@pytest.mark.parametrize("name", ["trnwatch-agent", "trnwatch-relay"])
def test_the_unit_is_one_that_systemd_understands(name: str) -> None:
    checker = shutil.which("systemd-analyze")
    if checker:
        unit = FOLDER / f"{name}.service"
        done = subprocess.run(
            [checker, "verify", "--man=no", unit], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_comes_back_keeps_its_spool_and_can_stop_in_time(
    unit: configparser.ConfigParser,
) -> None:
    service = unit["Service"]

    assert service["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert f"/var/lib/{service['StateDirectory']}" == SPOOL
    assert int(service["TimeoutStopSec"]) >= 10
    assert service["ExecStart"].endswith("/opt/trnwatch/trnwatch-agent.pyz")
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_the_unit_and_its_example_say_all_that_the_agent_must_know(
    unit: configparser.ConfigParser,
) -> None:
    env = example_of("agent")
    name, _, value = unit["Service"]["Environment"].partition("=")

    options = read_options([], env | {name: value, "STATE_DIRECTORY": SPOOL})

    assert options.server == "https://trnwatch.example"
    assert options.token_file == "/etc/trnwatch-agent/token"
    assert options.spool == Path(SPOOL)


def test_the_command_of_the_relays_unit_serves_agents(tmp_path: Path) -> None:
    service = read_unit("trnwatch-relay")["Service"]
    (tmp_path / "token").write_text("trnw_relay")
    port = free_port()
    env = example_of("relay") | {
        "LISTEN": f"127.0.0.1:{port}",
        "CREDENTIALS_DIRECTORY": str(tmp_path),
    }
    python, isolated, program, *options = Template(service["ExecStart"]).substitute(env).split()
    command = [sys.executable, "-m", "telemetry.agent", *options]

    assert (python, isolated, program) == (
        "/usr/bin/python3",
        "-I",
        read_unit("trnwatch-agent")["Service"]["ExecStart"].split()[-1],
    )
    assert service["LoadCredential"].startswith("token:/etc/trnwatch-relay/")
    log = tmp_path / "log"
    with running(command, log, ends_by=signal.SIGTERM, cwd=ROOT, env=env) as relay:
        assert eventually(lambda: status_of(f"http://127.0.0.1:{port}/live")) == 200
    assert (relay.returncode, log.read_text()) == (0, "")


def status_of(address: str) -> int:
    """Return how an address answers; 0 while nothing listens there."""
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.URLError:
        return 0


def test_the_user_of_the_unit_is_made(unit: configparser.ConfigParser) -> None:
    line = (FOLDER / "trnwatch-agent.sysusers").read_text().splitlines()[-1]

    assert line.split()[:2] == ["u", unit["Service"]["User"]]


def test_what_the_image_is_made_of_is_left_to_docker() -> None:
    copied = re.findall(r"^COPY (\S+)", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    rules = (ROOT / ".dockerignore").read_text().split()

    assert copied == ["build/trnwatch-agent.pyz"]
    for path in copied:
        # The last rule that fits decides; one that names a folder keeps all below it away.
        assert "build" not in rules
        fitting = [rule for rule in rules if fnmatch(path, rule.removeprefix("!"))]
        assert fitting[-1:] == [f"!{path}"]


def test_the_daemon_set_is_whole(documents: dict[str, dict[str, Any]]) -> None:
    assert set(documents) == {"Namespace", "ServiceAccount", "DaemonSet"}
    daemons = documents["DaemonSet"]
    assert daemons["apiVersion"] == "apps/v1"
    pod = daemons["spec"]["template"]
    assert daemons["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    [container] = pod["spec"]["containers"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]}
    assert pod["spec"]["serviceAccountName"] == documents["ServiceAccount"]["metadata"]["name"]
    assert {"limits", "requests"} == set(container["resources"])


def test_the_daemon_set_states_all_that_the_agent_must_know(
    documents: dict[str, dict[str, Any]],
) -> None:
    spec = documents["DaemonSet"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    given = {entry["name"] for entry in container["env"] if "valueFrom" in entry}

    options = read_options(container["args"], env)

    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert options.server.startswith("https://")
    assert str(options.spool) in mounts
    assert str(Path(options.token_file).parent) in mounts
    assert spec["hostNetwork"]
    assert given <= {name for variables in VARIABLES.values() for name in variables}
