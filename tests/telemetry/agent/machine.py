"""Sysfs files of EFA and Neuron devices below a folder."""

from dataclasses import dataclass
from pathlib import Path

PORT_COUNTERS = (
    "impaired_remote_conn_events",
    "lifespan",
    "rdma_read_bytes",
    "rdma_read_resp_bytes",
    "rdma_read_wr_err",
    "rdma_read_wrs",
    "rdma_write_bytes",
    "rdma_write_recv_bytes",
    "rdma_write_wr_err",
    "rdma_write_wrs",
    "recv_bytes",
    "recv_wrs",
    "retrans_bytes",
    "retrans_pkts",
    "retrans_timeout_events",
    "rx_bytes",
    "rx_drops",
    "rx_pkts",
    "send_bytes",
    "send_wrs",
    "tx_bytes",
    "tx_pkts",
    "unresponsive_remote_events",
)
# Where a driver keeps its files: as documented before 2.31, with values that are files; with
# counters that are folders, as its source has them; and moved, as from 2.31 on.
OLD = {
    "power": "stats/power",
    "hardware": "stats/hardware",
    "other_info": "stats/other_info",
    "memory": "stats/memory_usage",
}
MOVED = {
    "power": "hardware/power",
    "hardware": "hardware/counters",
    "other_info": "usage",
    "memory": "memory",
}
LAYOUTS = {"files": OLD, "counters": OLD, "moved": MOVED}
DEVICE_COUNTERS = ("cmds_err", "completed_cmds", "keep_alive_rcvd", "submitted_cmds")


@dataclass(frozen=True)
class Machine:
    """A folder of sysfs files, and how to change their values."""

    root: Path
    layout: str = "files"

    @property
    def efa(self) -> Path:
        return self.root / "infiniband"

    @property
    def neuron_class(self) -> Path:
        return self.root / "class/neuron_device"

    @property
    def neuron(self) -> Path:
        return self.root / "neuron_device"

    def set_efa(self, device: str, **counters: int) -> None:
        """Set counters of a device's port."""
        for name, value in counters.items():
            write(self.efa / device / "ports/1/hw_counters" / name, value)

    def set_core(self, device: int, core: int, **values: int) -> None:
        """Set the values of a core."""
        folder = self.device(device) / f"neuron_core{core}" / LAYOUTS[self.layout]["other_info"]
        for name, value in values.items():
            write(folder / name / ("" if self.layout == "files" else "total"), value)

    def set_power(self, device: int, line: str) -> None:
        """Set the driver's power of a device."""
        write(self.device(device) / LAYOUTS[self.layout]["power"] / "utilization", line)

    def set_hardware(self, device: int, name: str, value: object) -> None:
        """Set an error count, or the unhealthy components, of a device."""
        write(self.device(device) / LAYOUTS[self.layout]["hardware"] / name, value)

    def device(self, device: int) -> Path:
        """Return a Neuron device's folder."""
        return self.neuron / f"neuron{device}"

    def add_efa(self, device: str) -> None:
        """Plug in a device, with all its counters at zero."""
        self.set_efa(device, **dict.fromkeys(PORT_COUNTERS, 0))
        for name in DEVICE_COUNTERS:
            write(self.efa / device / "hw_counters" / name, 1)

    def add_neuron(self, device: int, *, n_cores: int) -> None:
        """Plug in a Neuron device."""
        folder = self.device(device)
        write(folder / "core_count", n_cores)
        # The kernel's power management, which is not the driver's.
        write(folder / "power/control", "auto")
        self.set_power(device, "POWER_STATUS_VALID,1789180860,10.00,60.00,42.50")
        for kind in ("mem", "sram"):
            self.set_hardware(device, f"{kind}_ecc_uncorrected", 0)
        self.set_hardware(device, "health_status/unhealthy_components", "")
        for core in range(n_cores):
            self.set_core(device, core, nc_time_in_use=0)
            memory = folder / f"neuron_core{core}/{LAYOUTS[self.layout]['memory']}/device_mem"
            for purpose, n_bytes in (("tensors", 1_000_000), ("constants", 500_000)):
                write(memory / purpose / "total", n_bytes)
                write(memory / purpose / "present", 4096)
                write(memory / purpose / "peak", 2_000_000)


def write(path: Path, value: object) -> None:
    """Write a file of sysfs in place, as its readers hold it open."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def trn2(root: Path) -> Machine:
    """Make the files of a trn2.48xlarge: 16 EFA devices, 16 Neuron devices of 8 cores."""
    machine = Machine(root)
    for i in range(16):
        machine.add_efa(f"rdmap{8 + 8 * i}s27")
        machine.add_neuron(i, n_cores=8)
    return machine
