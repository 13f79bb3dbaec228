"""The fleet: is anything wrong, where, and how every run and the worst parts get on."""

from fleet.prometheus.dashboards.budgets import MONEY
from fleet.prometheus.dashboards.grafana import Ask, Dashboard, Panel, Row
from fleet.prometheus.service import STOPPED_S
from fleet.summaries import LATE_AFTER_S
from telemetry.detect.rules import RULES

SHARE = RULES["allreduce_share"].limits["limit_ratio"]
LOSS = RULES["efa_degraded"].limits["loss_ratio"]
CORES = "trnwatch_core_utilization_ratio"
RUN_PAGE, NODE_PAGE = "/runs/${__field.labels.run}/", "/nodes/${__field.labels.node}/"


def of_run(name: str) -> tuple[Ask, ...]:
    """Ask for one figure of every run."""
    return (Ask(f"max by (run) (trnwatch_run_{name})", "{{run}}"),)


GLANCE = Row(
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
RUNS = Row(
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
PARTS = Row(
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
SERVICE = Row(
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
