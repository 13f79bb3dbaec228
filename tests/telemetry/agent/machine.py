"""A machine of files: EFA and Neuron devices as sysfs shows them, below a folder."""

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
DEVICE_COUNTERS = ("cmds_err", "completed_cmds", "keep_alive_rcvd", "submitted_cmds")


@dataclass(frozen=True)
class Machine:
    """Where the files are, and how to change what they say."""

    root: Path

    @property
    def efa(self) -> Path:
        return self.root / "infiniband"

    @property
    def neuron(self) -> Path:
        return self.root / "neuron_device"

    def set_efa(self, device: str, **counters: int) -> None:
        """Set counters of a device's port."""
        for name, value in counters.items():
            write(self.efa / device / "ports/1/hw_counters" / name, value)

    def set_core(self, device: int, core: int, **values: int) -> None:
        """Set what is told of a core."""
        folder = self.neuron / f"neuron{device}/neuron_core{core}/stats/other_info"
        for name, value in values.items():
            write(folder / name, value)

    def add_efa(self, device: str) -> None:
        """Plug in a device, with all its counters at zero."""
        self.set_efa(device, **dict.fromkeys(PORT_COUNTERS, 0))
        for name in DEVICE_COUNTERS:
            write(self.efa / device / "hw_counters" / name, 1)

    def add_neuron(self, device: int, *, n_cores: int) -> None:
        """Plug in a Neuron device."""
        folder = self.neuron / f"neuron{device}"
        write(folder / "core_count", n_cores)
        write(
            folder / "stats/power/utilization", "POWER_STATUS_VALID,1789180860,10.00,60.00,42.50"
        )
        for kind in ("mem", "sram"):
            write(folder / f"stats/hardware/{kind}_ecc_uncorrected", 0)
        write(folder / "stats/hardware/health_status/unhealthy_components", "")
        for core in range(n_cores):
            self.set_core(device, core, nc_time_in_use=0)
            memory = folder / f"neuron_core{core}/stats/memory_usage/device_mem"
            write(memory / "tensors/present", 1_000_000)
            write(memory / "constants/present", 500_000)


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
