"""The Neuron driver's sysfs: power, health, ECC, core utilization."""

from pathlib import Path

import pytest

from telemetry.agent.sources import NeuronSysfs
from tests.telemetry.agent.machine import LAYOUTS, Machine, write


@pytest.fixture(params=LAYOUTS)
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    """Give a machine with twelve Neuron devices of two cores."""
    machine = Machine(tmp_path, request.param)
    for device in range(12):
        machine.add_neuron(device, n_cores=2)
    return machine


def test_devices_say_how_they_are_now_and_then(machine: Machine) -> None:
    machine.set_hardware(10, "sram_ecc_uncorrected", 3)
    machine.set_hardware(10, "health_status/unhealthy_components", "hbm,link_efa")
    neuron = NeuronSysfs(machine.neuron, slow_every_s=60)

    report = neuron.read(0.0, cores=False)

    assert report is not None
    assert [device["index"] for device in report["devices"]] == list(range(12))
    assert report["devices"][10] == {
        "index": 10,
        "cores": 2,
        "mem_ecc_uncorrected": 0,
        "sram_ecc_uncorrected": 3,
        "unhealthy": ["hbm", "link_efa"],
    }
    assert neuron.read(1.0, cores=False) is None


def test_power_is_sent_once_each_time_the_driver_measured_it(machine: Machine) -> None:
    neuron = NeuronSysfs(machine.neuron)

    sent = {}
    for second in range(130):
        if second == 62:
            machine.set_power(3, "POWER_STATUS_VALID,1789180920,10.00,60.00,37.00")
        found = neuron.read(float(second), cores=False) or {}
        if "power" in found:
            sent[second] = found["power"]

    first = [{"device": i, "at": 1789180860, "ratio": 0.425} for i in range(12)]
    assert sent == {0: first, 65: [{"device": 3, "at": 1789180920, "ratio": 0.37}]}


@pytest.mark.parametrize(
    "line",
    [
        "POWER_STATUS_NO_DATA,1789180920,0.00,0.00,0.00",
        "POWER_STATUS_INVALID,1789180920,1.00,2.00,1.50",
        "POWER_STATUS_VALID,1789180920,1.00,2.00,150.00",
        "POWER_STATUS_VALID,1,2",
        "",
    ],
)
def test_power_that_is_not_known_is_left_out(machine: Machine, line: str) -> None:
    neuron = NeuronSysfs(machine.neuron)
    machine.set_power(0, line)

    found = neuron.read(0.0, cores=False)

    assert found is not None
    assert [power["device"] for power in found["power"]] == list(range(1, 12))


def test_power_of_a_driver_that_was_loaded_again_is_found(machine: Machine) -> None:
    neuron = NeuronSysfs(machine.neuron, slow_every_s=10)
    neuron.read(0.0, cores=False)
    machine.neuron.rename(machine.root / "unloaded")
    assert neuron.read(10.0, cores=False) is None
    (machine.root / "unloaded").rename(machine.neuron)
    machine.set_power(0, "POWER_STATUS_VALID,1789180920,10.00,60.00,37.00")

    found = neuron.read(20.0, cores=False)

    assert found is not None
    assert found["power"] == [{"device": 0, "at": 1789180920, "ratio": 0.37}]


def test_core_counts_follow_the_time_in_use(machine: Machine) -> None:
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


def test_flops_of_a_core_follow_the_drivers_count(machine: Machine) -> None:
    for core, count in ((0, 7_000_000), (1, 9_000_000)):
        machine.set_core(0, core, nc_time_in_use=0, flop_count=count)
    neuron = NeuronSysfs(machine.neuron)
    neuron.read(0.0, cores=True)
    machine.set_core(0, 0, nc_time_in_use=500_000, flop_count=7_000_000 + 95 * 10**12)
    # The counter was cleared.
    machine.set_core(0, 1, nc_time_in_use=500_000, flop_count=1_000)

    found = neuron.read(2.0, cores=True)

    assert found is not None
    first = {"device": 0, "core": 0, "busy": 0.25, "flops": 95 * 10**12}
    assert found["cores"][:2] == [first, {"device": 0, "core": 1, "busy": 0.25}]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"server_id_2": "00000000000000aa", "server_id_4": "c0ffee0000000004"},
            "c0ffee0000000004",
        ),
        (
            {"server_id_2": "00000000000000aa", "server_id_4": "0000000000000000"},
            "00000000000000aa",
        ),
        ({"server_id_4": "0000000000000000"}, None),
        ({"server_id_4": "invalid"}, None),
        ({"server_id_4": ""}, None),
        ({}, None),
    ],
)
def test_the_ultraserver_is_that_of_four_machines_or_of_two(
    machine: Machine, files: dict[str, str], expected: str | None
) -> None:
    for name, value in files.items():
        write(machine.neuron_class / name, value)
    neuron = NeuronSysfs(machine.neuron, class_root=machine.neuron_class)

    found = [neuron.read(second, cores=False) or {} for second in (0.0, 1.0, 60.0)]

    assert [each.get("ultraserver_id") for each in found] == [expected, None, expected]


def test_a_machine_without_the_driver_reports_nothing(tmp_path: Path) -> None:
    neuron = NeuronSysfs(tmp_path)

    assert [neuron.read(float(s), cores=True) for s in range(3)] == [None, None, None]
