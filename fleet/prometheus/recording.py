"""Recording rules: nodes, runs and the fleet in a few series, the worst core beside the mean."""

from collections.abc import Iterator

from fleet.money.drifting import UNRELATED
from telemetry.detect.rules import RULES

Recording = tuple[str, str]

# Which run each node trains, if any: multiplied with figures of nodes it gives them the label.
RUN = "node:trnwatch_run:info"
OF_RUN = f"on (node) group_left (run) {RUN}"
OF_RUNS = f'{OF_RUN}{{run!=""}}'
# What is kept of the parts of a node: for each the figures that an average would hide.
PARTS = {
    "trnwatch_core_utilization_ratio": ("min", "avg", "median", "max"),
    "trnwatch_device_hbm_bandwidth_bytes_per_second": ("min", "median", "sum"),
    "trnwatch_device_memory_used_bytes": ("max", "sum"),
    "trnwatch_efa_latency_seconds": ("median", "max"),
    "trnwatch_efa_tx_bytes_per_second": ("min", "sum"),
}
# What is kept of the nodes of a run: from the figure of a node.
OF_NODES = {
    "trnwatch_core_utilization_ratio": {"min": "min", "avg": "avg", "max": "max"},
    "trnwatch_device_hbm_bandwidth_bytes_per_second": {"min": "min", "sum": "sum"},
    "trnwatch_efa_latency_seconds": {"median": "avg", "max": "max"},
    "trnwatch_efa_tx_bytes_per_second": {"sum": "sum"},
}
HOSTS = "trnwatch_node_vcpu_usage_ratio"
QUANTILES = {"q01": "0.01", "q50": "0.5", "q99": "0.99"}


def of_nodes() -> Iterator[Recording]:
    """Yield what is kept of each node, with the run that it trains."""
    yield RUN, "group by (node, run) (trnwatch_node_info)"
    for metric, figures in PARTS.items():
        for figure in figures:
            how = "quantile by (node) (0.5, " if figure == "median" else f"{figure} by (node) ("
            yield f"node:{metric}:{figure}", f"{how}{metric}) * {OF_RUN}"
    again, sent = "trnwatch_efa_retransmits_per_second", "trnwatch_efa_tx_packets_per_second"
    yield (
        "efa:trnwatch_efa_retransmit_ratio:avg2m",
        f"avg_over_time({again}[2m])\n/ (avg_over_time({sent}[2m]) > 0)\n* {OF_RUN}",
    )
    yield (
        "node:trnwatch_efa_retransmit_ratio:max",
        "max by (node, run) (efa:trnwatch_efa_retransmit_ratio:avg2m)",
    )


def of_runs() -> Iterator[Recording]:
    """Yield what is kept of each run."""
    for metric, figures in OF_NODES.items():
        for figure, how in figures.items():
            yield f"run:{metric}:{figure}", f'{how} by (run) (node:{metric}:{figure}{{run!=""}})'
    for figure in ("avg", "max"):
        yield f"run:{HOSTS}:{figure}", f"{figure} by (run) ({HOSTS} * {OF_RUNS})"
    yield (
        "run:trnwatch_efa_retransmit_ratio:max",
        'max by (run) (node:trnwatch_efa_retransmit_ratio:max{run!=""})',
    )
    up = f"max by (node) (trnwatch_node_up) * {OF_RUNS}"
    yield "run:trnwatch_nodes:count", f"count by (run) ({up})"
    yield "run:trnwatch_nodes_up:sum", f"sum by (run) ({up})"


def of_fleet() -> Iterator[Recording]:
    """Yield what is kept of the whole fleet."""
    cores = "trnwatch_core_utilization_ratio"
    for figure in ("min", "avg", "max"):
        yield f"fleet:{cores}:{figure}", f"{figure}(node:{cores}:{figure})"
    for name, q in QUANTILES.items():
        yield f"fleet:{cores}:{name}", f"quantile({q}, {cores})"
    yield "fleet:trnwatch_efa_latency_seconds:max", "max(node:trnwatch_efa_latency_seconds:max)"
    yield "fleet:trnwatch_nodes:count", "count(max by (node) (trnwatch_node_up))"
    yield "fleet:trnwatch_nodes_up:sum", "sum(max by (node) (trnwatch_node_up))"
    tokens = "sum(max by (run) (trnwatch_run_tokens_per_second))"
    yield "fleet:trnwatch_tokens_per_second:sum", tokens
    yield (
        "fleet:trnwatch_cost_usd_per_hour:sum",
        "sum(max by (run) (rate(trnwatch_run_cost_usd_total[10m]))) * 3600",
    )
    yield (
        "fleet:trnwatch_alerts_firing:sum",
        "sum by (severity) (max by (rule, severity) (trnwatch_alerts_firing))",
    )


# What slows no step explains no cost.
UNRELATED_RULES = "|".join(UNRELATED)
DRIFT = RULES["cost_drift"].limits
HALF_S = DRIFT["window_s"] / 2
# What is found each minute; of a half of the window so many are needed.
MONEY_EVERY_S = 60


def of_money() -> Iterator[Recording]:
    """Yield what the rules about money judge: what tokens take beside what they should."""
    explaining = "run:trnwatch_alerts_explaining:sum"
    cost = "run:trnwatch_node_seconds_per_million_tokens:unexplained"
    half, least = f"[{HALF_S:g}s]", DRIFT["least_minutes"] / 2
    told = f'trnwatch_run_alerts_firing{{rule!~"{UNRELATED_RULES}"}}'
    yield explaining, f"sum by (run) (\n  max by (run, rule) (\n    {told}\n  )\n)"
    yield (
        cost,
        "max by (run) (trnwatch_run_node_seconds_per_million_tokens)\n"
        f"unless on (run) max_over_time({explaining}[5m]) > 0",
    )
    yield (
        "run:trnwatch_cost_drift_ratio:median1h",
        f"quantile_over_time(0.5, {cost}{half})\n"
        "/ on (run) group_right ()\n"
        "max by (run, basis) (trnwatch_run_expected_node_seconds_per_million_tokens)\n"
        f"- 1\nand on (run) count_over_time({cost}{half}) >= {least:g}",
    )
    late = "run:trnwatch_cost_drift_ratio:median1h"
    early = f"{late} offset {HALF_S:g}s"
    yield (
        "run:trnwatch_cost_drift_ratio:min2h",
        f"({late} < {early})\nor\n({early} <= {late})",
    )
    of_one = "max by (budget, team, run)"
    yield (
        "budget:trnwatch_budget_forecast_ratio:max",
        f"{of_one} (trnwatch_budget_forecast_usd) / {of_one} (trnwatch_budget_usd)",
    )
