"""Grafana's dashboards: what they show, in words and PromQL; their JSON is written from it."""

import json
from collections.abc import Mapping

from fleet.metrics.grafana import Ask, Choice, Dashboard, Panel, PanelRow
from fleet.metrics.rules import EXAMPLE_URL, STOPPED_S
from fleet.runs.summaries import LATE_AFTER_S
from telemetry.detect.rules import RULES

OF_BUDGET = "max by (budget, team, run)"
MONEY = PanelRow(
    "Budgets",
    (
        Panel(
            "Forecast share of each budget",
            (Ask("budget:trnwatch_budget_forecast_ratio:max", "{{team}}{{run}}"),),
            "percentunit",
            "At today's pace and the prices announced; above 100 % it will be overrun.",
            limit=1,
            link="/budgets/",
        ),
        Panel(
            "Share spent so far",
            (
                Ask(
                    f"{OF_BUDGET} (trnwatch_budget_spent_usd)\n"
                    f"/ {OF_BUDGET} (trnwatch_budget_usd)",
                    "{{team}}{{run}}",
                ),
            ),
            "percentunit",
            limit=1,
            link="/budgets/",
        ),
    ),
)


SHARE = RULES["allreduce_share"].limits["limit_ratio"]
LOSS = RULES["efa_degraded"].limits["loss_ratio"]
CORES = "trnwatch_core_utilization_ratio"
RUN_PAGE, NODE_PAGE = "/runs/${__field.labels.run}/", "/nodes/${__field.labels.node}/"


def of_run(name: str) -> tuple[Ask, ...]:
    return (Ask(f"max by (run) (trnwatch_run_{name})", "{{run}}"),)


GLANCE = PanelRow(
    "Is anything wrong?",
    (
        Panel(
            "Pages firing",
            (Ask('fleet:trnwatch_alerts_firing:sum{severity="page"}'),),
            kind="stat",
            width=4,
            height=4,
            limit=1,
            link="/alerts/?state=firing",
            about="Alerts that are not resolved, taken or not.",
        ),
        Panel(
            "Nobody has taken",
            (Ask("sum(max by (rule, severity) (trnwatch_alerts_unacknowledged))"),),
            kind="stat",
            width=4,
            height=4,
            limit=1,
            link="/alerts/?state=firing",
        ),
        Panel(
            "Nodes down",
            (Ask("fleet:trnwatch_nodes:count - fleet:trnwatch_nodes_up:sum"),),
            kind="stat",
            width=4,
            height=4,
            limit=1,
            link="/nodes/",
        ),
        Panel(
            "Nodes",
            (Ask("fleet:trnwatch_nodes:count"),),
            kind="stat",
            width=4,
            height=4,
            link="/nodes/",
        ),
        Panel(
            "Tokens per second",
            (Ask("fleet:trnwatch_tokens_per_second:sum"),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Dollars per hour",
            (Ask("fleet:trnwatch_cost_usd_per_hour:sum"),),
            "currencyUSD",
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Alerts of trnwatch, by rule",
            (Ask("max by (rule, severity) (trnwatch_alerts_firing) > 0", "{{rule}}", rare=True),),
            stacks=True,
            about="What trnwatch itself has found. Its own page names the culprit.",
        ),
        Panel(
            "Alerts of Prometheus",
            (
                Ask(
                    'count by (alertname, severity) (ALERTS{alertstate="firing"})',
                    "{{alertname}}",
                    rare=True,
                ),
            ),
            stacks=True,
        ),
    ),
)
RUNS = PanelRow(
    "Runs",
    (
        Panel(
            "All-reduce share of a step",
            of_run("allreduce_share_ratio"),
            "percentunit",
            "Each run has a limit of its own; the line is the usual one.",
            limit=SHARE,
            link=RUN_PAGE,
        ),
        Panel("Seconds per step", of_run("step_seconds"), "s", link=RUN_PAGE),
        Panel("Tokens per second", of_run("tokens_per_second"), link=RUN_PAGE),
        Panel(
            "Model FLOPs utilization",
            of_run("mfu_ratio"),
            "percentunit",
            link=RUN_PAGE,
        ),
        Panel(
            "Dollars per million tokens",
            of_run("cost_per_million_tokens_usd"),
            "currencyUSD",
            link=RUN_PAGE,
        ),
        Panel(
            "Since the last step",
            (Ask("time() - max by (run) (trnwatch_run_last_step_timestamp_seconds)", "{{run}}"),),
            "s",
            "Rises without falling when a run stands still.",
            link=RUN_PAGE,
        ),
    ),
)
PARTS = PanelRow(
    "The worst parts, which an average hides",
    (
        Panel(
            "Core utilization, all cores",
            tuple(
                Ask(f"fleet:{CORES}:{name}", name)
                for name in ("min", "q01", "q50", "avg", "q99", "max")
            ),
            "percentunit",
            "The least and the most beside the mean.",
            most=1,
        ),
        Panel(
            "Nodes whose cores are least alike",
            (Ask(f"topk(10, node:{CORES}:max - node:{CORES}:median)", "{{node}}"),),
            "percentunit",
            "A sick core stays busy while the rest of its node waits for it.",
            link=NODE_PAGE,
        ),
        Panel(
            "Slowest EFA devices, by node",
            (Ask("topk(10, node:trnwatch_efa_latency_seconds:max)", "{{node}}"),),
            "s",
            "Latency is probed; where nobody probes there is none.",
            link=NODE_PAGE,
        ),
        Panel(
            "Packets sent again, by node",
            (Ask("topk(10, node:trnwatch_efa_retransmit_ratio:max)", "{{node}}"),),
            "percentunit",
            "The worst device of each node.",
            limit=LOSS,
            link=NODE_PAGE,
        ),
        Panel(
            "Uncorrected memory errors, last hour",
            (
                Ask(
                    "sum by (node, device) "
                    "(increase(trnwatch_device_mem_ecc_uncorrected_total[1h])) > 0",
                    rare=True,
                ),
            ),
            kind="table",
        ),
        Panel(
            "Nodes that are down",
            (
                Ask(
                    "max by (node) (trnwatch_node_up) * on (node) group_left (run) "
                    "node:trnwatch_run:info == 0",
                    rare=True,
                ),
            ),
            kind="table",
        ),
    ),
)
SERVICE = PanelRow(
    "trnwatch itself",
    (
        Panel(
            "Late by",
            (
                Ask("max(trnwatch_tick_lateness_seconds)", "tick", rare=True),
                Ask("time() - max(trnwatch_watched_timestamp_seconds)", "watching", rare=True),
            ),
            "s",
            f"Ticks late by {LATE_AFTER_S:g} s, or watching by {STOPPED_S} s, are an alert.",
            width=8,
        ),
        Panel(
            "Tasks that wait",
            (Ask("max by (queue) (trnwatch_queue_tasks)", "{{queue}}"),),
            width=8,
        ),
        Panel(
            "Scrape",
            (Ask('max(scrape_duration_seconds{job="trnwatch"})', "seconds"),),
            "s",
            width=8,
        ),
        Panel(
            "Reports of real nodes",
            (
                Ask("sum(rate(trnwatch_ingest_reports_total[$__rate_interval]))", "taken"),
                Ask("sum(rate(trnwatch_ingest_errors_total[$__rate_interval]))", "refused"),
            ),
            "ops",
            width=8,
        ),
        Panel("Redis holds", (Ask("max(trnwatch_hot_bytes)", "bytes"),), "bytes", width=8),
        Panel(
            "Notifications given up",
            (Ask("max by (receiver) (trnwatch_notifications_dead)", "{{receiver}}", rare=True),),
            width=8,
            limit=1,
            link="/notifications/",
        ),
    ),
)
FLEET = Dashboard(
    "trnwatch-fleet",
    "trnwatch / fleet",
    "Is anything wrong, where, and how every run and the worst parts get on.",
    "/",
    (GLANCE, RUNS, MONEY, PARTS, SERVICE),
)


def of_node(name: str, legend: str = "", *, rate: bool = False) -> Ask:
    told = f'trnwatch_node_{name}{{node="$node"}}'
    expr = f"rate({told}[$__rate_interval])" if rate else told
    return Ask(f"max({expr})", legend or name)


def of_parts(metric: str, label: str = "device") -> tuple[Ask, ...]:
    return (Ask(f'max by ({label}) ({metric}{{node="$node"}})', f"{label} {{{{{label}}}}}"),)


def counted(*names: str) -> tuple[Ask, ...]:
    return tuple(
        Ask(
            f'max by (device) (trnwatch_device_{name}_total{{node="$node"}})',
            f"{name} {{{{device}}}}",
        )
        for name in names
    )


NODE_GLANCE = PanelRow(
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
NODE_CORES = PanelRow(
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
DEVICES = PanelRow(
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
EFA = PanelRow(
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
HOST = PanelRow(
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
    (NODE_GLANCE, NODE_CORES, DEVICES, EFA, HOST),
    (
        Choice("run", "Run", "trnwatch_node_info"),
        Choice("node", "Node", 'trnwatch_node_info{run="$run"}'),
    ),
)


DRIFT = RULES["cost_drift"].limits
IDLE = RULES["node_idle"].limits["idle_ratio"]
RUN_NODE_PAGE = "/nodes/${__field.labels.node}/"
RUN_CORES, HBM = (
    "trnwatch_core_utilization_ratio",
    "trnwatch_device_hbm_bandwidth_bytes_per_second",
)


def figure(name: str, legend: str = "") -> Ask:
    return Ask(f'max(trnwatch_run_{name}{{run="$run"}})', legend or name)


def quantile(q: str) -> Ask:
    buckets = 'trnwatch_run_step_duration_seconds_bucket{run="$run"}'
    counted = f"max by (le) (rate({buckets}[10m]))"
    return Ask(f"histogram_quantile({q}, {counted})", f"quantile {q}", rare=True)


def by_node(metric: str, *, rare: bool = False) -> tuple[Ask, ...]:
    return (Ask(f'{metric}{{run="$run"}}', "{{node}}", rare=rare),)


RUN_GLANCE = PanelRow(
    "Now",
    (
        Panel(
            "Nodes down",
            (Ask('run:trnwatch_nodes:count{run="$run"} - run:trnwatch_nodes_up:sum{run="$run"}'),),
            kind="stat",
            width=4,
            height=4,
            limit=1,
        ),
        Panel(
            "Since the last step",
            (Ask('time() - max(trnwatch_run_last_step_timestamp_seconds{run="$run"})'),),
            "s",
            kind="stat",
            width=4,
            height=4,
        ),
        Panel("Steps", (figure("steps_total"),), kind="stat", width=4, height=4),
        Panel("Tokens", (figure("tokens_total"),), kind="stat", width=4, height=4),
        Panel(
            "Spent",
            (figure("cost_usd_total"),),
            "currencyUSD",
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Alerts of Prometheus",
            (Ask('count(ALERTS{alertstate="firing", run="$run"}) or vector(0)'),),
            kind="stat",
            width=4,
            height=4,
            limit=1,
        ),
    ),
)
STEPS = PanelRow(
    "Steps",
    (
        Panel(
            "All-reduce share",
            (
                figure("allreduce_wait_ratio", "waiting for peers"),
                figure("allreduce_transfer_ratio", "moving gradients"),
            ),
            "percentunit",
            "Waiting: somebody arrives late. Moving: look at the links.",
            stacks=True,
        ),
        Panel(
            "All-reduce share against its limits",
            (
                figure("allreduce_share_ratio", "share"),
                figure("allreduce_limit_ratio", "fires above"),
                figure("allreduce_resolve_ratio", "resolves below"),
            ),
            "percentunit",
        ),
        Panel(
            "Seconds per step",
            (figure("step_seconds", "mean of a minute"), *map(quantile, ("0.5", "0.99"))),
            "s",
            "Quantiles are of every step, a minute late, and as fine as their buckets.",
            width=8,
        ),
        Panel("Tokens per second", (figure("tokens_per_second"),), width=8),
        Panel("Model FLOPs utilization", (figure("mfu_ratio"),), "percentunit", width=8),
        Panel(
            "Dollars per million tokens",
            (figure("cost_per_million_tokens_usd"),),
            "currencyUSD",
            width=8,
        ),
        Panel(
            "Node-seconds per million tokens",
            (
                figure("node_seconds_per_million_tokens", "taken"),
                figure("expected_node_seconds_per_million_tokens", "expected"),
            ),
            "s",
            f"Alerts where hours are {DRIFT['estimate_ratio']:.0%} above the estimate, or "
            f"{DRIFT['own_ratio']:.0%} above the run's own first hours.",
            width=8,
        ),
        Panel("Dollars per hour", (figure("cost_usd_per_hour"),), "currencyUSD", width=8),
        Panel(
            "What it is",
            (Ask('trnwatch_run_info{run="$run"}'),),
            kind="table",
            width=24,
        ),
    ),
)
NODES = PanelRow(
    "Nodes: the worst part of each",
    (
        Panel(
            "Core utilization of the run",
            tuple(
                Ask(f'run:{RUN_CORES}:{name}{{run="$run"}}', name)
                for name in ("min", "avg", "max")
            ),
            "percentunit",
            most=1,
        ),
        Panel(
            "Busiest core over the usual one, by node",
            (
                Ask(
                    f'node:{RUN_CORES}:max{{run="$run"}} / on (node) '
                    f'(node:{RUN_CORES}:median{{run="$run"}} > 0)',
                    "{{node}}",
                ),
            ),
            "short",
            "1 is even; a sick core is busier than its neighbours.",
            link=RUN_NODE_PAGE,
        ),
        Panel(
            "Least busy node",
            by_node(f"node:{RUN_CORES}:max"),
            "percentunit",
            f"A node whose busiest core stays below {IDLE:.0%} does nothing.",
            link=RUN_NODE_PAGE,
        ),
        Panel(
            "Slowest memory, by node",
            by_node(f"node:{HBM}:min"),
            "Bps",
            "An estimate on real nodes.",
            link=RUN_NODE_PAGE,
        ),
        Panel(
            "Slowest EFA device, by node",
            by_node("node:trnwatch_efa_latency_seconds:max"),
            "s",
            link=RUN_NODE_PAGE,
        ),
        Panel(
            "Packets sent again, by node",
            by_node("node:trnwatch_efa_retransmit_ratio:max"),
            "percentunit",
            limit=LOSS,
            link=RUN_NODE_PAGE,
        ),
        Panel(
            "EFA sends",
            by_node("node:trnwatch_efa_tx_bytes_per_second:sum"),
            "Bps",
            link=RUN_NODE_PAGE,
        ),
        Panel(
            "Host vCPUs in use",
            (
                Ask(
                    "max by (node) (trnwatch_node_vcpu_usage_ratio) * on (node) group_left (run) "
                    'node:trnwatch_run:info{run="$run"}',
                    "{{node}}",
                ),
            ),
            "percentunit",
            "Compilers keep hosts busy while cores rest.",
            link=RUN_NODE_PAGE,
        ),
    ),
)
RUN = Dashboard(
    "trnwatch-run",
    "trnwatch / run",
    "Where the time of a run's steps goes, what it costs, and which of its nodes stands out.",
    "/runs/${run}/",
    (RUN_GLANCE, STEPS, NODES),
    (Choice("run", "Run", "trnwatch_run_info"),),
)


DASHBOARDS: Mapping[str, Dashboard] = {"fleet": FLEET, "run": RUN, "node": NODE}


def dashboard_files(url: str = EXAMPLE_URL) -> dict[str, str]:
    """Return the dashboards as JSON by file name."""
    return {
        f"trnwatch-{name}.json": json.dumps(board.as_json(url), indent=2) + "\n"
        for name, board in DASHBOARDS.items()
    }
