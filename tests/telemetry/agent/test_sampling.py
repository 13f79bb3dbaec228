"""Samples on request: a second neuron-monitor, the driver's and EFA's counters, every failure."""

import base64
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from telemetry.agent.clock import Clock
from telemetry.agent.sampling import BYTES, CORES, Sampler, SampleTable, encode_sample
from telemetry.ingest.samples import SampleTable as ReadTable
from telemetry.ingest.samples import read_sample, sample_tables
from tests.telemetry.agent.machine import Machine, trn2

# Prints its configuration's period to a file, and a report each period, or each second if slower.
FAKE = """import json, re, sys, time
period = json.load(open(sys.argv[2]))
open({seen!r}, "w").write(json.dumps(period))
every_s = max({least_s}, float(period["period"].rstrip("s")))
for i in range({n}):
    time.sleep(every_s)
    use = {{str(c): {{"neuroncore_utilization": 40.0 + c}} for c in range(4)}}
    counters = {{"period": every_s, "neuroncores_in_use": use, "error": ""}}
    runtime = {{"pid": 1, "report": {{"neuroncore_counters": counters}}}}
    print(json.dumps({{"neuron_runtime_data": [runtime]}}), flush=True)
sys.exit({status})
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Plug in two EFA devices and a Neuron device of two cores."""
    machine = Machine(tmp_path / "sys")
    machine.add_neuron(0, n_cores=2)
    for name in ("rdmap8s27", "rdmap16s27"):
        machine.add_efa(name)
    return machine


class Agent:
    """A sampler with what it answered."""

    def __init__(
        self, machine: Machine, *, no_monitor: str = "", is_refused: bool = False
    ) -> None:
        self.answers: list[Mapping[str, Any]] = []
        self.sampler = Sampler(
            efa_sysfs=machine.efa,
            neuron_sysfs=machine.neuron,
            no_monitor=no_monitor,
            is_refused=is_refused,
            clock=Clock(),
            answer=self.answers.append,
        )

    def sample(self, number: int = 7, **request: Any) -> Mapping[str, Any]:
        self.sampler.request({"id": number, "every_s": 0.1, "length_s": 1.0, **request})
        self.sampler.wait()
        return self.answers[-1]


def n_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def tables(answer: Mapping[str, Any]) -> dict[str, ReadTable]:
    return {table.name: table for table in sample_tables(read_sample(answer))}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put a program of the name neuron-monitor on the path; return what it saw."""

    def put(*, least_s: float = 0.0, n: int = 1000, status: int = 0) -> Path:
        program, seen = tmp_path / "bin/neuron-monitor", tmp_path / "seen.json"
        program.parent.mkdir(exist_ok=True)
        text = FAKE.format(seen=str(seen), least_s=least_s, n=n, status=status)
        script = tmp_path / "monitor.py"
        script.write_text(text)
        # The path of Python may have a space, which a first line of a script cannot have.
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        return seen

    return put


@pytest.fixture
def moving(machine: Machine) -> Iterator[Machine]:
    """Let the counters grow: cores half busy, 1 MB a second sent by the first EFA device."""
    over, start_s = Event(), time.monotonic()

    cores = [machine.device(0) / f"neuron_core{i}/stats/other_info/nc_time_in_use" for i in (0, 1)]
    tx_bytes = machine.efa / "rdmap8s27/ports/1/hw_counters/tx_bytes"
    # Like sysfs, a file is never seen half written.
    files = {path: path.open("r+b", buffering=0) for path in (*cores, tx_bytes)}

    def move() -> None:
        while not over.wait(0.005):
            passed_s = time.monotonic() - start_s
            for path, file in files.items():
                value = int((1e6 if path == tx_bytes else 0.5e6) * passed_s)
                os.pwrite(file.fileno(), b"%012d" % value, 0)

    thread = Thread(target=move)
    thread.start()
    yield machine
    over.set()
    thread.join()
    for file in files.values():
        file.close()


def test_a_sample_has_cores_and_efa_devices_at_the_period_asked_for(
    moving: Machine, install: Callable[..., Path]
) -> None:
    seen = install()
    agent = Agent(moving)
    answer = agent.sample(length_s=3.0)

    assert agent.answers[0] == {"id": 7, "state": "sampling"}
    found = tables(answer)
    config = json.loads(seen.read_text())
    assert config["period"] == "0.1s"
    assert [each["type"] for each in config["neuron_runtimes"][0]["metrics"]] == [
        "neuroncore_counters"
    ]
    monitor, driver, sent = found["monitor"], found["driver"], found["efa_tx"]
    assert monitor.parts == ("0", "1", "2", "3")
    assert set(monitor.values[:, 2]) == {0.42}
    assert 0.05 < (monitor.spacing_s or 0) < 0.3
    assert driver.parts == ("0.0", "0.1")
    assert len(driver.t_s) >= 10
    assert driver.values.mean() == pytest.approx(0.5, abs=0.15)
    assert sent.values[:, 0].sum() == pytest.approx(1e6 * (sent.t_s[-1] - sent.start_s), rel=0.15)
    assert sent.values[:, 1].sum() == 0
    assert 0.05 < (sent.spacing_s or 0) < 0.3


def test_a_monitor_that_keeps_to_a_second_shows_by_its_spacing(
    machine: Machine, install: Callable[..., Path]
) -> None:
    install(least_s=0.5)
    found = tables(Agent(machine).sample(length_s=4.0))

    assert 0.4 < (found["monitor"].spacing_s or 0) < 1.0
    assert 0.05 < (found["driver"].spacing_s or 0) < 0.3


def test_a_monitor_that_refuses_is_named_and_the_counters_are_still_read(
    machine: Machine, install: Callable[..., Path]
) -> None:
    install(n=0, status=3)
    found = tables(Agent(machine).sample(length_s=3.0))

    assert found["monitor"].note == "the monitor ended with status 3"
    assert len(found["driver"].t_s) >= 8


def test_without_a_monitor_the_reason_is_sent(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = tables(Agent(machine).sample(length_s=0.3))

    assert "neuron-monitor is not installed" in found["monitor"].note


def test_an_option_keeps_it_from_starting_a_monitor(
    machine: Machine, install: Callable[..., Path]
) -> None:
    seen = install()
    found = tables(Agent(machine, no_monitor="the agent runs with --stdin").sample(length_s=0.3))

    assert found["monitor"].note == "the agent runs with --stdin"
    assert not seen.exists()


def test_nothing_to_read_is_an_answer_with_every_reason(tmp_path: Path) -> None:
    answer = Agent(Machine(tmp_path), no_monitor="the agent runs with --stdin").sample(
        length_s=0.2
    )

    assert answer["reason"] == (
        "nothing to sample: the agent runs with --stdin; the Neuron driver shows no core times; "
        "no EFA devices"
    )


@pytest.mark.parametrize(
    ("request_fields", "reason"),
    [
        ({"is_started": True}, "the agent was restarted while it sampled"),
        ({"every_s": 0.01}, "this agent samples each 0.1 s or slower, for 60 s at most"),
        ({"length_s": 3600}, "this agent samples each 0.1 s or slower, for 60 s at most"),
        ({"length_s": float("nan")}, "this agent samples each 0.1 s or slower, for 60 s at most"),
        ({"every_s": "often"}, "every_s and length_s must be numbers"),
    ],
)
def test_a_request_that_it_does_not_take_is_answered(
    machine: Machine, request_fields: Mapping[str, Any], reason: str
) -> None:
    assert Agent(machine).sample(**request_fields) == {"id": 7, "reason": reason}


def test_it_may_refuse(machine: Machine) -> None:
    answer = Agent(machine, is_refused=True).sample()

    assert answer == {"id": 7, "reason": "the agent runs with --refuse-samples"}


def test_it_samples_once_for_each_request_one_at_a_time_and_at_most_once_a_minute(
    machine: Machine,
) -> None:
    agent = Agent(machine, no_monitor="none")
    agent.sampler.request({"id": 7, "every_s": 0.1, "length_s": 0.5})
    agent.sampler.request({"id": 7, "every_s": 0.1, "length_s": 0.5})
    agent.sampler.request({"id": 8, "every_s": 0.1, "length_s": 0.5})
    agent.sampler.wait()
    late = agent.sample(9)

    assert [answer["id"] for answer in agent.answers] == [7, 8, 7, 9]
    assert agent.answers[1]["reason"] == "the agent takes another sample"
    assert "tables" in agent.answers[2]
    assert late["reason"] == "requested again within 60 s"


def test_an_agent_that_stops_answers_at_once_and_ends_the_monitor(
    machine: Machine, install: Callable[..., Path]
) -> None:
    seen = install()
    agent = Agent(machine)
    agent.sampler.request({"id": 7, "every_s": 0.1, "length_s": 60.0})
    while not seen.exists():
        assert len(agent.answers) == 1
        time.sleep(0.01)
    agent.sampler.stop()

    assert agent.answers[-1] == {"id": 7, "reason": "the agent was stopped while it sampled"}


def test_it_opens_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have 1,024, and the reports of a trn2 need half of them."""
    monkeypatch.setenv("PATH", "/nowhere")
    agent, n_before = Agent(trn2(tmp_path / "sys")), n_open_files()
    agent.sampler.request({"id": 7, "every_s": 0.1, "length_s": 2.0})
    n_most = 0
    while len(agent.answers) == 1:
        n_most = max(n_most, n_open_files())
        time.sleep(0.01)

    assert 100 < n_most - n_before < 200
    assert n_open_files() <= n_before


def test_parts_that_appear_later_are_missing_before_and_counts_are_bounded() -> None:
    cores, sent = SampleTable("monitor", CORES), SampleTable("efa_tx", BYTES)
    cores.add(100, {"0": 100})
    cores.add(201, {"0": None, "1": 999})
    sent.add(100, {"0": 2**40})
    found = tables(encode_sample(7, 1000.0, 0.1, 30, [cores, sent]))

    assert found["monitor"].t_s.tolist() == [1000.1, 1000.201]
    assert str(found["monitor"].values.tolist()) == "[[0.5, nan], [nan, 1.27]]"
    assert found["efa_tx"].values.tolist() == [[2**32 - 2]]


def test_the_sample_of_a_whole_trn2_is_small() -> None:
    noise = os.urandom(300 * 128)
    cores, sent = SampleTable("driver", CORES), SampleTable("efa_tx", BYTES)
    for row in range(300):
        cores.add(100 * row, {f"{i // 8}.{i % 8}": noise[row * 128 + i] % 200 for i in range(128)})
        sent.add(100 * row, {str(i): 10**9 + noise[row * 128 + i] ** 3 for i in range(16)})

    answer = encode_sample(7, 1000.0, 0.1, 30, [cores, sent])
    assert len(base64.b64decode(answer["data"])) < 60_000
