"""EFA counters from sysfs: devices, counters, differences."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from telemetry.agent.sources import EfaCounters, Probes
from tests.telemetry.agent.machine import DEVICE_COUNTERS, PORT_COUNTERS, Machine, write


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Give a machine with two EFA devices, the second of which sorts first as text."""
    machine = Machine(tmp_path)
    for device in ("rdmap16s27", "rdmap9s0"):
        machine.add_efa(device)
    return machine


def test_files_are_closed_with_what_read_them(machine: Machine) -> None:
    def n_open() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before, efa = n_open(), EfaCounters(machine.efa, all_every_s=0)
    efa.read(0.0)
    assert n_open() > before
    del efa
    assert n_open() == before


def test_devices_have_their_place_by_number_and_keep_it(machine: Machine) -> None:
    efa = EfaCounters(machine.efa, all_every_s=0)
    efa.read(0.0)
    machine.add_efa("rdmap1s0")

    shown = efa.read(1.0)

    assert shown is not None
    assert {d["device"]: d["index"] for d in shown["devices"]} == {
        "rdmap9s0": 0,
        "rdmap16s27": 1,
        "rdmap1s0": 2,
    }


def test_all_counters_are_reported_now_and_then_those_of_the_device_too(machine: Machine) -> None:
    efa = EfaCounters(machine.efa, all_every_s=15)

    first, second = efa.read(0.0), efa.read(1.0)

    assert first is not None
    assert second is not None
    assert set(first["devices"][0]["counters"]) == {*PORT_COUNTERS, *DEVICE_COUNTERS}
    assert "period" not in first
    assert first["devices"][0]["increase"] == {}
    assert "counters" not in second["devices"][0]
    assert second["period"] == 1.0


def test_the_increase_is_what_a_counter_grew_by(machine: Machine) -> None:
    efa = EfaCounters(machine.efa)
    machine.set_efa("rdmap9s0", tx_bytes=1_000, retrans_pkts=2)
    efa.read(0.0)
    machine.set_efa("rdmap9s0", tx_bytes=126_000, retrans_pkts=5)

    shown = efa.read(1.0)

    assert shown is not None
    assert shown["devices"][0]["increase"]["tx_bytes"] == 125_000
    assert shown["devices"][0]["increase"]["retrans_pkts"] == 3
    assert shown["devices"][1]["increase"]["tx_bytes"] == 0


def test_a_counter_that_was_cleared_states_nothing_once(machine: Machine) -> None:
    efa = EfaCounters(machine.efa)
    machine.set_efa("rdmap9s0", tx_bytes=1_000)
    efa.read(0.0)
    machine.set_efa("rdmap9s0", tx_bytes=10)
    cleared = efa.read(1.0)
    machine.set_efa("rdmap9s0", tx_bytes=30)
    after = efa.read(2.0)

    assert cleared is not None
    assert after is not None
    assert "tx_bytes" not in cleared["devices"][0]["increase"]
    assert after["devices"][0]["increase"]["tx_bytes"] == 20


def test_a_counter_that_is_no_number_is_left_out(machine: Machine) -> None:
    write(machine.efa / "rdmap9s0/ports/1/hw_counters/tx_bytes", "N/A (no PMA)")

    shown = EfaCounters(machine.efa).read(0.0)

    assert shown is not None
    assert "tx_bytes" not in shown["devices"][0]["counters"]


def test_a_machine_without_efa_states_nothing(tmp_path: Path) -> None:
    assert EfaCounters(tmp_path / "nowhere").read(0.0) is None


def no_pause(seconds: float) -> None:
    """Run rounds of a probe at once."""


def test_probes_are_read_when_their_file_changes_and_grow_old(tmp_path: Path) -> None:
    file = tmp_path / "probes"
    probes = Probes(file=str(file), command=None, every_s=10)
    assert probes.read(0.0) == {}
    assert "probe file" in probes.problem

    line = {"device": "rdmap9s0", "latency_s": 1.7e-5}
    file.write_text(f"{json.dumps(line)}\nno result\n")

    assert probes.read(1.0) == {"rdmap9s0": 1.7e-5}
    assert "no result" in probes.problem
    assert probes.read(30.0) == {"rdmap9s0": 1.7e-5}
    assert probes.read(32.0) == {}


def test_a_probe_command_is_run_and_never_waited_for(tmp_path: Path) -> None:
    # The last of its rounds finds a link without a burst of traffic.
    burst, calm = (f'{{"device": "rdmap9s0", "latency_s": {s}}}' for s in ("0.00005", "0.00002"))
    mark = tmp_path / "rounds"
    command = f"echo >> {mark}; [ $(wc -l < {mark}) = 3 ] && echo '{calm}' || echo '{burst}'"
    pauses: list[float] = []
    probes = Probes(file=None, command=command, every_s=10, pause=pauses.append)

    probes.read(0.0)
    probes.wait()

    assert probes.read(0.1) == {"rdmap9s0": 2e-5}
    assert pauses == [5.0, 5.0]


def test_a_probe_command_may_run_on_request_only(tmp_path: Path) -> None:
    command = """echo '{"device": "rdmap9s0", "latency_s": 0.00002}'"""
    probes, answers = (
        Probes(file=None, command=command, every_s=0, pause=no_pause),
        list[Mapping[str, Any]](),
    )

    assert probes.read(0.0) == {}
    probes.wait()
    probes.request(1.0, answers.append)
    probes.wait()

    assert answers == [{"latency_s": {"rdmap9s0": 2e-5}}]
    # It is not what the node reports from then on.
    assert probes.read(1.1) == probes.read(60.0) == {}


def test_a_probe_command_that_fails_is_reported(tmp_path: Path) -> None:
    probes = Probes(file=None, command="exit 3", every_s=10, pause=no_pause)

    probes.read(0.0)
    probes.wait()

    assert probes.read(0.1) == {}
    assert "CalledProcessError" in probes.problem
