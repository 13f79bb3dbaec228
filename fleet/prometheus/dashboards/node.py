"""One node: every core, accelerator and EFA device of it beside its neighbours."""

from fleet.prometheus.dashboards.grafana import Ask, Choice, Dashboard, Panel, Row
from telemetry.detect.rules import RULES

LOSS = RULES["efa_degraded"].limits["loss_ratio"]


def of_node(name: str, legend: str = "", *, rate: bool = False) -> Ask:
    """Ask for one figure of the node."""
    told = f'trnwatch_node_{name}{{node="$node"}}'
    expr = f"rate({told}[$__rate_interval])" if rate else told
    return Ask(f"max({expr})", legend or name)


def of_parts(metric: str, label: str = "device") -> tuple[Ask, ...]:
    """Ask for one figure of all parts."""
    return (Ask(f'max by ({label}) ({metric}{{node="$node"}})', f"{label} {{{{{label}}}}}"),)


def counted(*names: str) -> tuple[Ask, ...]:
    """Ask for errors that its accelerators counted."""
    return tuple(
        Ask(
            f'max by (device) (trnwatch_device_{name}_total{{node="$node"}})',
            f"{name} {{{{device}}}}",
        )
        for name in names
    )


GLANCE = Row(
    "Now",
    (
        Panel(
            "Reports",
            (of_node("up"),),
            kind="stat",
            width=6,
            height=4,
            about="1 where it reported within the last seconds.",
        ),
        Panel(
            "Busiest core",
            (Ask('node:trnwatch_core_utilization_ratio:max{node="$node"}'),),
            "percentunit",
            kind="stat",
            width=6,
            height=4,
        ),
        Panel(
            "Alerts of Prometheus",
            (Ask('count(ALERTS{alertstate="firing", node="$node"}) or vector(0)'),),
            kind="stat",
            width=6,
            height=4,
            limit=1,
        ),
        Panel(
            "What it is",
            (Ask('trnwatch_node_info{node="$node"}'),),
            kind="table",
            width=6,
            height=4,
        ),
    ),
)
CORES = Row(
    "Cores",
    (
        Panel(
            "Utilization of every core",
            of_parts("trnwatch_core_utilization_ratio", "core"),
            "percentunit",
            "One line that lies above the others is a sick core.",
            width=24,
            height=10,
            most=1,
        ),
        Panel(
            "Utilization now",
            of_parts("trnwatch_core_utilization_ratio", "core"),
            "percentunit",
            kind="bargauge",
            width=24,
            height=12,
            most=1,
        ),
    ),
)
DEVICES = Row(
    "Accelerators",
    (
        Panel(
            "HBM bandwidth",
            of_parts("trnwatch_device_hbm_bandwidth_bytes_per_second"),
            "Bps",
            "An estimate on real nodes, the same for all devices.",
        ),
        Panel("HBM in use", of_parts("trnwatch_device_memory_used_bytes"), "bytes"),
        Panel(
            "Memory errors that were not corrected",
            counted("mem_ecc_uncorrected", "sram_ecc_uncorrected"),
            about="Any rise is an alert: a result may be wrong.",
        ),
        Panel(
            "Memory errors that were corrected", counted("mem_ecc_corrected", "sram_ecc_corrected")
        ),
    ),
)
EFA = Row(
    "EFA",
    (
        Panel(
            "Probe latency",
            of_parts("trnwatch_efa_latency_seconds"),
            "s",
            "EFA counts no latency: where nobody probes there is none.",
        ),
        Panel(
            "Packets sent again",
            (
                Ask(
                    'efa:trnwatch_efa_retransmit_ratio:avg2m{node="$node"}',
                    "device {{device}}",
                ),
            ),
            "percentunit",
            limit=LOSS,
        ),
        Panel("Sends", of_parts("trnwatch_efa_tx_bytes_per_second"), "Bps"),
        Panel("Receives", of_parts("trnwatch_efa_rx_bytes_per_second"), "Bps"),
        Panel("Packets dropped", of_parts("trnwatch_efa_drops_per_second"), "pps"),
        Panel(
            "Connections impaired, peers unresponsive",
            (
                *of_parts("trnwatch_efa_impaired_per_second"),
                *of_parts("trnwatch_efa_unresponsive_per_second"),
            ),
            "ops",
        ),
    ),
)
HOST = Row(
    "Host and executions",
    (
        Panel("vCPUs in use", (of_node("vcpu_usage_ratio", "vCPUs"),), "percentunit", most=1),
        Panel("Memory in use", (of_node("host_memory_used_bytes", "host"),), "bytes"),
        Panel(
            "Executions",
            (of_node("executions_completed_total", "completed", rate=True),),
            "ops",
        ),
        Panel(
            "Executions that failed, errors",
            (
                of_node("executions_failed_total", "failed", rate=True),
                of_node("execution_errors_total", "errors", rate=True),
            ),
            "ops",
        ),
    ),
)
NODE = Dashboard(
    "trnwatch-node",
    "trnwatch / node",
    "Every core, accelerator and EFA device of one node beside its neighbours.",
    "/nodes/${node}/",
    (GLANCE, CORES, DEVICES, EFA, HOST),
    (
        Choice("run", "Run", "trnwatch_node_info"),
        Choice("node", "Node", 'trnwatch_node_info{run="$run"}'),
    ),
)
