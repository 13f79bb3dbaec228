"""The agent as a program: module, single file, once, dry run, stop signal."""

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from telemetry.agent.reports import Health
from telemetry.agent.sources import configuration
from tests.telemetry.agent.ingest_server import Server, serve_ingest
from tests.telemetry.agent.machine import Machine

ROOT = Path(__file__).resolve().parents[3]
AGENT = ROOT / "telemetry/agent"
SAMPLE = ROOT / "tests/telemetry/ingest/data/trn2.48xlarge.ndjson"
REPLAY = shlex.join([sys.executable, str(ROOT / "tools/replay.py"), str(SAMPLE)])
PRINT = shlex.join(["cat", str(SAMPLE)])
WITHIN_S = 60


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the agent as one file, far from this project."""
    path = tmp_path_factory.mktemp("opt") / "trnwatch-agent.pyz"
    subprocess.run([sys.executable, "tools/agent.py", path], cwd=ROOT, check=True)
    return path


@pytest.fixture
def server() -> Iterator[Server]:
    """Give a server that takes everything."""
    with serve_ingest() as one:
        yield one


def command(one_file: Path, folder: Path, *arguments: str) -> list[str]:
    """Return a command line that touches nothing of this machine."""
    nowhere = str(folder / "none")
    quiet = ("--efa-sysfs", nowhere, "--neuron-sysfs", nowhere, "--spool", str(folder / "spool"))
    return [sys.executable, "-I", str(one_file), *quiet, *arguments]


def run(
    one_file: Path, folder: Path, *arguments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the agent to its end."""
    return subprocess.run(
        command(one_file, folder, *arguments),
        env={"PATH": os.environ["PATH"], **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def test_a_dry_run_prints_what_would_be_sent_and_sends_nothing(
    one_file: Path, tmp_path: Path
) -> None:
    done = run(one_file, tmp_path, "--dry-run", "--once", "--command", PRINT)

    assert done.returncode == 0
    line = json.loads(done.stdout)
    first = json.loads(SAMPLE.read_text().splitlines()[0])
    assert line["report"] == first
    assert {"at", "seq", "stream", "agent"} <= set(line)
    assert not (tmp_path / "spool").exists()


def test_once_sends_one_report(one_file: Path, tmp_path: Path, server: Server) -> None:
    arguments = ("--server", server.address, "--once", "--command", PRINT)
    done = run(one_file, tmp_path, *arguments, TRNWATCH_TOKEN="secret")

    assert (done.returncode, done.stderr) == (0, "")
    assert len(server.numbers) == 1


def test_once_fails_loudly_while_the_server_is_away(one_file: Path, tmp_path: Path) -> None:
    arguments = ("--server", "http://127.0.0.1:1", "--once", "--command", PRINT)
    done = run(one_file, tmp_path, *arguments, TRNWATCH_TOKEN="secret")

    assert done.returncode == 1
    assert "1 lines stay in the spool: server: ConnectionRefusedError" in done.stderr


def test_reports_from_standard_input_are_sent_to_the_last(
    one_file: Path, tmp_path: Path, server: Server
) -> None:
    shown = subprocess.run(
        command(one_file, tmp_path, "--server", server.address, "--stdin"),
        env={"PATH": os.environ["PATH"], "TRNWATCH_TOKEN": "secret"},
        input=SAMPLE.read_bytes() + b"chatter\n",
        capture_output=True,
        timeout=WITHIN_S,
        check=True,
    )

    assert shown.stderr == b""
    assert len(server.numbers) == 3


def test_asked_to_stop_it_sends_what_it_has_and_ends_what_it_started(
    one_file: Path, tmp_path: Path, server: Server
) -> None:
    arguments = ("--server", server.address, "--command", REPLAY, "--every", "3600")
    with subprocess.Popen(
        command(one_file, tmp_path, *arguments),
        env={"PATH": os.environ["PATH"], "TRNWATCH_TOKEN": "secret"},
        stderr=subprocess.PIPE,
    ) as agent:
        while sum(p.stat().st_size for p in (tmp_path / "spool").glob("*.frames")) < 9_000:
            assert agent.poll() is None
        agent.send_signal(signal.SIGTERM)
        _, shown = agent.communicate(timeout=WITHIN_S)

    assert (agent.returncode, shown) == (0, b"")
    assert len(server.numbers) >= 3
    assert server.numbers == sorted(set(server.numbers))


def test_asked_to_stop_it_says_so_in_its_last_line(
    one_file: Path, tmp_path: Path, server: Server
) -> None:
    machine = Machine(tmp_path / "sys")
    machine.add_neuron(0, n_cores=2)
    folders = ("--neuron-sysfs", str(machine.neuron))
    arguments = ("--server", server.address, "--no-monitor", "--node", "alone", *folders)
    with subprocess.Popen(
        command(one_file, tmp_path, *arguments),
        env={"PATH": os.environ["PATH"], "TRNWATCH_TOKEN": "secret"},
        stderr=subprocess.PIPE,
    ) as agent:
        while not server.requests:
            assert agent.poll() is None
        agent.send_signal(signal.SIGTERM)
        _, shown = agent.communicate(timeout=WITHIN_S)

    assert (agent.returncode, shown) == (0, b"")
    *earlier, last = [line for request in server.requests for line in request.lines]
    assert last["agent"]["stopping"] is True
    assert last["neuron"]["devices"][0]["index"] == 0
    assert earlier
    assert "stopping" not in earlier[0]["agent"]


def test_sysfs_is_used_while_there_is_no_monitor(
    one_file: Path, tmp_path: Path, server: Server
) -> None:
    machine = Machine(tmp_path / "sys")
    machine.add_efa("rdmap16s27")
    machine.add_neuron(0, n_cores=2)
    folders = ("--efa-sysfs", str(machine.efa), "--neuron-sysfs", str(machine.neuron))
    arguments = ("--server", server.address, "--no-monitor", "--once", "--node", "alone", *folders)
    done = run(one_file, tmp_path, *arguments, TRNWATCH_TOKEN="secret")

    assert done.returncode == 0
    assert server.requests[0].path == "/api/v1/ingest/efa?node=alone"
    [line] = server.requests[0].lines
    assert line["instance"] == {"instance_id": "alone"}
    assert line["efa"]["devices"][0]["device"] == "rdmap16s27"
    assert line["neuron"]["devices"][0]["cores"] == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "--server: missing"),
        (("--server", "http://x"), "token: missing"),
        (
            ("--server", "x", "--token-file", "t", "--stdin", "--command", "c"),
            "exclude each other",
        ),
        (("--period", "0"), "Give 0.1 to 3600 seconds"),
        (("--spool-mb", "0"), "give 1 to 100000 megabytes"),
        (("--server", "http://x", "--token-file", "none"), "No such file"),
    ],
)
def test_a_mistake_is_reported_and_ends_it(
    one_file: Path, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    done = run(one_file, tmp_path, *arguments)

    assert done.returncode == 2
    assert complaint in done.stderr


def test_neuron_monitor_is_started_with_what_it_needs(one_file: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin/neuron-monitor"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$1" = -c ] && tr -d "\\n" < "$2" && echo && sleep 60\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    done = run(one_file, tmp_path, "--dry-run", "--once", "--period", "5", PATH=path)

    assert json.loads(done.stdout)["report"] == json.loads(configuration(5))
    assert json.loads(configuration(5))["period"] == "5s"


def test_the_labels_of_the_node_are_sent_now_and_then(one_file: Path, tmp_path: Path) -> None:
    arguments = ("--dry-run", "--once", "--no-imds", "--command", PRINT)
    done = run(one_file, tmp_path, *arguments, NODE_NAME="ip-10-0-0-1", TRNWATCH_NODE_POOL="trn2")
    labels = json.loads(done.stdout)["agent"]["labels"]
    health = Health()
    health.labels = labels

    assert labels == {"kubernetes_node": "ip-10-0-0-1", "node_pool": "trn2"}
    assert health.summary(n_waiting=0)["labels"] == labels
    assert "labels" not in health.summary(n_waiting=0)


@pytest.mark.parametrize("path", sorted(AGENT.glob("*.py")), ids=lambda path: path.name)
def test_it_is_python_3_9_and_needs_nothing_but_python(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    ours = ("telemetry.agent", "trnwatch.surroundings", "trnwatch.wire")
    outside = {name for name in names if not name.startswith(ours)}
    assert {name.partition(".")[0] for name in outside} <= set(sys.stdlib_module_names)


def test_every_option_and_variable_is_documented(one_file: Path, tmp_path: Path) -> None:
    shown = run(one_file, tmp_path, "--help").stdout
    text = (ROOT / "docs/agent.md").read_text()

    reported = set(re.findall(r"--[a-z][a-z-]+|TRNWATCH_[A-Z_]+", shown)) - {"--help"}
    assert {word for word in reported if f"`{word}" not in text} == set()


def test_the_probe_of_the_documents_reads_what_fi_pingpong_prints() -> None:
    [script] = re.findall(r"\| awk '(.*)'$", (ROOT / "docs/agent.md").read_text(), re.MULTILINE)
    printed = (
        "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
        "64      10      =10      1.2k        0.02s      0.08     812.35       0.00\n"
        "256     100     =100     50k         0.00s     14.80      17.30       0.06\n"
    )
    done = subprocess.run(
        ["awk", script], input=printed, capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == {"device": "rdmap16s27", "latency_s": 0.0000173}
