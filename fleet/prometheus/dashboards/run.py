"""One run: where its steps' time goes, what it costs, and which of its nodes stands out."""

from fleet.prometheus.dashboards.grafana import Ask, Choice, Dashboard, Panel, Row
from telemetry.detect.rules import RULES

LOSS = RULES["efa_degraded"].limits["loss_ratio"]
DRIFT = RULES["cost_drift"].limits
IDLE = RULES["node_idle"].limits["idle_ratio"]
NODE_PAGE = "/nodes/${__field.labels.node}/"
CORES, HBM = "trnwatch_core_utilization_ratio", "trnwatch_device_hbm_bandwidth_bytes_per_second"


def figure(name: str, legend: str = "") -> Ask:
    """Ask for one figure of the run."""
    return Ask(f'max(trnwatch_run_{name}{{run="$run"}})', legend or name)


def quantile(q: str) -> Ask:
    """Ask for a quantile of its steps, one by one."""
    buckets = 'trnwatch_run_step_duration_seconds_bucket{run="$run"}'
    counted = f"max by (le) (rate({buckets}[10m]))"
    return Ask(f"histogram_quantile({q}, {counted})", f"quantile {q}", rare=True)


def by_node(metric: str, *, rare: bool = False) -> tuple[Ask, ...]:
    """Ask for one figure of each of its nodes."""
    return (Ask(f'{metric}{{run="$run"}}', "{{node}}", rare=rare),)


GLANCE = Row(
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
STEPS = Row(
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
NODES = Row(
    "Nodes: the worst part of each",
    (
        Panel(
            "Core utilization of the run",
            tuple(
                Ask(f'run:{CORES}:{name}{{run="$run"}}', name) for name in ("min", "avg", "max")
            ),
            "percentunit",
            most=1,
        ),
        Panel(
            "Busiest core over the usual one, by node",
            (
                Ask(
                    f'node:{CORES}:max{{run="$run"}} / on (node) '
                    f'(node:{CORES}:median{{run="$run"}} > 0)',
                    "{{node}}",
                ),
            ),
            "short",
            "1 is even; a sick core is busier than its neighbours.",
            link=NODE_PAGE,
        ),
        Panel(
            "Least busy node",
            by_node(f"node:{CORES}:max"),
            "percentunit",
            f"A node whose busiest core stays below {IDLE:.0%} does nothing.",
            link=NODE_PAGE,
        ),
        Panel(
            "Slowest memory, by node",
            by_node(f"node:{HBM}:min"),
            "Bps",
            "An estimate on real nodes.",
            link=NODE_PAGE,
        ),
        Panel(
            "Slowest EFA device, by node",
            by_node("node:trnwatch_efa_latency_seconds:max"),
            "s",
            link=NODE_PAGE,
        ),
        Panel(
            "Packets sent again, by node",
            by_node("node:trnwatch_efa_retransmit_ratio:max"),
            "percentunit",
            limit=LOSS,
            link=NODE_PAGE,
        ),
        Panel(
            "EFA sends",
            by_node("node:trnwatch_efa_tx_bytes_per_second:sum"),
            "Bps",
            link=NODE_PAGE,
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
            link=NODE_PAGE,
        ),
    ),
)
RUN = Dashboard(
    "trnwatch-run",
    "trnwatch / run",
    "Where the time of a run's steps goes, what it costs, and which of its nodes stands out.",
    "/runs/${run}/",
    (GLANCE, STEPS, NODES),
    (Choice("run", "Run", "trnwatch_run_info"),),
)
