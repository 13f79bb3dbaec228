"""The Neuron driver's sysfs: power, health, ECC, and cores while nobody else reports."""

from pathlib import Path

import pytest

from telemetry.agent.sources import NeuronSysfs
from tests.telemetry.agent.machine import Machine, write


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Give a machine with twelve Neuron devices of two cores."""
    machine = Machine(tmp_path)
    for device in range(12):
        machine.add_neuron(device, n_cores=2)
    return machine


def test_devices_say_how_they_are_now_and_then(machine: Machine) -> None:
    write(machine.neuron / "neuron10/stats/hardware/sram_ecc_uncorrected", 3)
    unhealthy = "stats/hardware/health_status/unhealthy_components"
    write(machine.neuron / "neuron10" / unhealthy, "hbm,link_efa")
    neuron = NeuronSysfs(machine.neuron, slow_every_s=60)

    said = neuron.read(0.0, cores=False)

    assert said is not None
    assert [device["index"] for device in said["devices"]] == list(range(12))
    assert said["devices"][10] == {
        "index": 10,
        "cores": 2,
        "mem_ecc_uncorrected": 0,
        "sram_ecc_uncorrected": 3,
        "power_ratio": 0.425,
        "unhealthy": ["hbm", "link_efa"],
    }
    assert neuron.read(1.0, cores=False) is None


@pytest.mark.parametrize(
    "line", ["POWER_STATUS_NO_DATA,1789180860,0.00,0.00,0.00", "", "POWER_STATUS_VALID,1,2"]
)
def test_power_that_is_not_known_is_left_out(machine: Machine, line: str) -> None:
    write(machine.neuron / "neuron0/stats/power/utilization", line)

    said = NeuronSysfs(machine.neuron).read(0.0, cores=False)

    assert said is not None
    assert "power_ratio" not in said["devices"][0]


def test_cores_are_told_by_the_time_they_were_in_use(machine: Machine) -> None:
    neuron = NeuronSysfs(machine.neuron)
    first = neuron.read(0.0, cores=True)
    machine.set_core(0, 1, nc_time_in_use=750_000)

    second = neuron.read(1.0, cores=True)

    assert first is not None
    assert "cores" not in first
    assert first["devices"][0]["memory_used_bytes"] == 3_000_000
    assert second is not None
    busy = {(core["device"], core["core"]): core["busy"] for core in second["cores"]}
    assert busy[0, 1] == pytest.approx(0.75)
    assert busy[0, 0] == 0
    assert len(busy) == 24
    assert second["devices"] == first["devices"]


def test_a_machine_without_the_driver_says_nothing(tmp_path: Path) -> None:
    neuron = NeuronSysfs(tmp_path)

    assert [neuron.read(float(s), cores=True) for s in range(3)] == [None, None, None]
