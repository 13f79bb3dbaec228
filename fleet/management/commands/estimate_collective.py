"""`manage.py estimate_collective`: how long one collective takes, as nccom-test would say."""

from typing import Any

from django.core.management.base import CommandParser

from fleet.management.cli import PlainCommand
from telemetry.catalog import Instance
from telemetry.catalog import instance as instance_named
from telemetry.simulate.communication import (
    OPS,
    CollectiveTime,
    bus_bytes_per_s,
    collective_time_s,
)
from telemetry.units import GIB

US_PER_S = 1e6


class Command(PlainCommand):
    help = "Predict how long one collective takes, and its bus bandwidth."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--instance", required=True, help="instance type of every node")
        parser.add_argument("--nodes", type=int, required=True, help="number of nodes")
        parser.add_argument(
            "--ranks", type=int, required=True, help="cores that take part, on all nodes together"
        )
        parser.add_argument("--bytes", type=int, required=True, help="size of the message")
        parser.add_argument(
            "--op", default="all_reduce", help=f"{', '.join(OPS)} (default all_reduce)"
        )

    def handle(self, *, json: bool, **options: Any) -> None:
        kind, n_nodes = instance_named(options["instance"]), options["nodes"]
        n_ranks, n_bytes, op = options["ranks"], options["bytes"], options["op"]
        time = collective_time_s(kind, n_nodes=n_nodes, n_ranks=n_ranks, n_bytes=n_bytes, op=op)
        bus = bus_bytes_per_s(time, n_ranks=n_ranks, n_bytes=n_bytes, op=op) / GIB
        if json:
            self.write_json({"time_us": time.total_s * US_PER_S, "busbw_gib_per_s": bus})
            return
        title = f"{op} of {n_bytes:,} bytes over {n_ranks} ranks on {n_nodes} x {kind.name}\n"
        self.stdout.write(title)
        self.write_table(_rows(kind, n_nodes, time, bus))


def _rows(
    kind: Instance, n_nodes: int, time: CollectiveTime, bus: float
) -> list[tuple[str, str, str]]:
    start, moving = time.latency_s * US_PER_S, time.bandwidth_s * US_PER_S
    link = f"{kind.link_bytes_per_s / 1e9:,.0f} GB/s per {kind.chip.name} inside a node"
    if n_nodes > 1:
        fabric = "EFA" if kind.has_efa else "Ethernet"
        link += f", {kind.network_bytes_per_s * 8 / 1e9:,.0f} Gbit/s {fabric} per node"
    return [
        ("time", f"{time.total_s * US_PER_S:,.1f} us", f"{start:,.1f} start, {moving:,.1f} bytes"),
        ("bus bandwidth", f"{bus:,.4g} GiB/s", link),
    ]
