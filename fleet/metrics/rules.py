"""The rule file: recordings, an alert for every rule of detection, and alerts about trnwatch."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from fleet.costs.drift import UNRELATED
from fleet.runs.summaries import LATE_AFTER_S
from telemetry.detect.rules import RULES, Query, Rule, Severity

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


def node_recordings() -> Iterator[Recording]:
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


def run_recordings() -> Iterator[Recording]:
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


def fleet_recordings() -> Iterator[Recording]:
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


def cost_recordings() -> Iterator[Recording]:
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


RUNBOOK = "service"
NOTIFICATIONS = "notifications"
# How long watching may pause before it counts as stopped.
STOPPED_S = 60


@dataclass(frozen=True, slots=True)
class ServiceAlert:
    """One alert about the service: what is asked, for how long, and in words what it means."""

    name: str
    title: str
    severity: Severity
    expr: str
    for_s: float
    says: str
    runbook: str = RUNBOOK


_ALL = (
    ServiceAlert(
        "trnwatch_absent",
        "Prometheus does not scrape trnwatch",
        "page",
        'absent(up{job="trnwatch"})',
        300,
        "No target of the job trnwatch is known: its scrape configuration is gone.",
    ),
    ServiceAlert(
        "trnwatch_scrape_down",
        "trnwatch does not answer",
        "page",
        'max by (job) (up{job="trnwatch"}) == 0',
        120,
        "Every scrape fails: no page, no watching, and alerts of nodes go stale.",
    ),
    ServiceAlert(
        "trnwatch_not_watching",
        "Nobody looks at the fleet",
        "page",
        f"time() - max(trnwatch_watched_timestamp_seconds) > {STOPPED_S}",
        30,
        "The rules were last applied {{ $value | humanizeDuration }} ago: workers, beat or the "
        "broker stand still.",
    ),
    ServiceAlert(
        "trnwatch_nothing_to_watch",
        "trnwatch tells of no node",
        "warn",
        'absent(trnwatch_node_up) and on () up{job="trnwatch"} == 1',
        300,
        "It answers, and knows no node that ought to report.",
    ),
    ServiceAlert(
        "trnwatch_ticks_stale",
        "No ticks arrive",
        "page",
        "max(increase(trnwatch_ticks_total[5m])) == 0\n"
        'and on () count(trnwatch_node_info{source="simulated", run!=""}) > 0',
        60,
        "Simulated nodes have stood still for five minutes.",
    ),
    ServiceAlert(
        "trnwatch_reports_stale",
        "No reports arrive",
        "page",
        "max(increase(trnwatch_ingest_reports_total[5m])) == 0\n"
        "and max(increase(trnwatch_ingest_reports_total[1h] offset 5m)) > 0",
        60,
        "Real nodes reported within the hour, and none has for five minutes.",
    ),
    ServiceAlert(
        "trnwatch_tick_late",
        "Ticks come late",
        "warn",
        f"max(trnwatch_tick_lateness_seconds) > {LATE_AFTER_S:g}",
        120,
        "The latest tick was {{ $value | humanizeDuration }} late: too few workers.",
    ),
    ServiceAlert(
        "trnwatch_queue_long",
        "Tasks wait for workers",
        "warn",
        "max by (queue) (trnwatch_queue_tasks) > 100",
        120,
        "{{ $value }} tasks wait in {{ $labels.queue }}.",
    ),
    ServiceAlert(
        "trnwatch_dead_letters",
        "Notifications were given up",
        "page",
        "max by (receiver) (trnwatch_notifications_dead) > 0",
        0,
        "{{ $value }} that {{ $labels.receiver }} did not take: somebody may not know.",
        NOTIFICATIONS,
    ),
    ServiceAlert(
        "trnwatch_sender_gone",
        "Nobody sends notifications",
        "page",
        "max(trnwatch_notifications_sender_age_seconds) > 60",
        30,
        "No sender was heard of for {{ $value | humanizeDuration }}.",
        NOTIFICATIONS,
    ),
    ServiceAlert(
        "trnwatch_untaken",
        "A page that nobody has taken",
        "page",
        'sum by (rule) (max by (rule, severity) (trnwatch_alerts_unacknowledged{severity="page"}))'
        " > 0",
        900,
        "{{ $value }} of {{ $labels.rule }}, for a quarter of an hour.",
    ),
    ServiceAlert(
        "trnwatch_refuses_data",
        "Data are refused",
        "warn",
        "sum(increase(trnwatch_refused_blocks_total[10m]))\n"
        "+ sum(increase(trnwatch_refused_steps_total[10m]))\n"
        "+ sum(increase(trnwatch_refused_for_room_total[10m])) > 0",
        300,
        "{{ $value | humanize }} within ten minutes came too late, from the future, or beyond "
        "what there is room for.",
    ),
    ServiceAlert(
        "trnwatch_refuses_deliveries",
        "Deliveries of nodes are refused",
        "warn",
        "sum(rate(trnwatch_ingest_errors_total[10m])) > 0.05 * (\n"
        "  sum(rate(trnwatch_ingest_reports_total[10m]))\n"
        "  + sum(rate(trnwatch_ingest_errors_total[10m]))\n"
        ")",
        300,
        "{{ $value | humanize }} a second: tokens that expired, or agents too old.",
    ),
    ServiceAlert(
        "trnwatch_clocks_wrong",
        "Clocks of nodes are wrong",
        "warn",
        "sum(increase(trnwatch_ingest_skewed_total[10m])) > 0",
        600,
        "{{ $value | humanize }} reports within ten minutes had to be corrected.",
    ),
    ServiceAlert(
        "trnwatch_scrape_slow",
        "Scrapes take long",
        "warn",
        'max by (job) (scrape_duration_seconds{job="trnwatch"}) > 5',
        300,
        "The latest took {{ $value | humanizeDuration }}.",
    ),
)
SERVICE_ALERTS: Mapping[str, ServiceAlert] = {watch.name: watch for watch in _ALL}


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, as people write PromQL."""


def _block_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _block_text)


# Where links lead unless somebody says; the committed file says this.
EXAMPLE_URL = "https://trnwatch.example.org"
HEAD = """\
# Written by `manage.py export_rules`. Do not edit: change telemetry/detect/rules.py or
# fleet/metrics/rules.py. `--url` sets the address of your trnwatch. See docs/prometheus.md.
"""
PAGES = {
    "run": "/runs/{{ $labels.run }}/",
    "node": "/nodes/{{ $labels.node }}/",
    "fleet": "/",
    "budget": "/budgets/",
}
# A budget is a team's or a run's: one of the two labels is empty.
SUBJECT_SUFFIX = {
    "run": ": {{ $labels.run }}",
    "node": ": {{ $labels.node }}",
    "fleet": "",
    "budget": ": {{ $labels.team }}{{ $labels.run }}",
}


def rule_file(url: str = EXAMPLE_URL) -> str:
    """Write the rule file; links begin with ``url``."""
    groups = {
        "trnwatch-nodes": recordings(node_recordings()),
        "trnwatch-runs": recordings(run_recordings()),
        "trnwatch-fleet": recordings(fleet_recordings()),
        "trnwatch-money": recordings(cost_recordings()),
        "trnwatch-alerts": [alert for rule in RULES.values() for alert in alerts(rule, url)],
        "trnwatch-service": [_of_service(watch, url) for watch in SERVICE_ALERTS.values()],
    }
    every = {"trnwatch-money": {"interval": f"{MONEY_EVERY_S}s"}}
    named: list[dict[str, Any]] = [
        {"name": name, **every.get(name, {}), "rules": rules} for name, rules in groups.items()
    ]
    body = yaml.dump(
        {"groups": named}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return f"{HEAD}{body}"


def base_url(given: str) -> str:
    """Return what links begin with, without a slash; ValueError where it is no address."""
    if not given.startswith(("http://", "https://")):
        raise ValueError("--url: begins with http:// or https://.")
    return given.rstrip("/")


def recordings(rules: Iterable[Recording]) -> list[dict[str, Any]]:
    """Return recording rules as Prometheus reads them."""
    return [{"record": record, "expr": expr} for record, expr in rules]


def alerts(rule: Rule, url: str) -> Iterator[dict[str, Any]]:
    """Yield what stands for a rule: its queries, or what trnwatch itself says of it."""
    if not rule.queries:
        yield _told(rule, url)
    for query in rule.queries:
        yield _alert(rule, query, url)


def _alert(rule: Rule, query: Query, url: str) -> dict[str, Any]:
    """Write one query of a rule as an alert, under the name its alerts have here too."""
    says = rule.filled(query.says)
    return {
        "alert": rule.name,
        "expr": rule.filled(query.expr).strip(),
        **_times(rule.seconds(query.for_s), rule.seconds(query.keep_s)),
        "labels": {"severity": query.severity or rule.severity, "rule": rule.name},
        "annotations": {
            "summary": f"{rule.title}{SUBJECT_SUFFIX[rule.subject]}",
            "description": f"{rule.help} {says}",
            "runbook_url": f"{url}/runbooks/{rule.name}/",
            "dashboard": f"{url}{PAGES[rule.subject]}",
        },
    }


def _told(rule: Rule, url: str) -> dict[str, Any]:
    """Write an alert for a rule that only trnwatch can judge: it says how many there are."""
    return {
        "alert": rule.name,
        "expr": f'max by (rule, severity) (trnwatch_alerts_firing{{rule="{rule.name}"}}) > 0',
        **_times(0, 120),
        "labels": {"severity": "{{ $labels.severity }}", "rule": rule.name},
        "annotations": {
            "summary": rule.title,
            "description": f"{rule.help} {{{{ $value }}}} of them; trnwatch says where.",
            "runbook_url": f"{url}/runbooks/{rule.name}/",
            "dashboard": f"{url}/alerts/?rule={rule.name}",
        },
    }


def _of_service(watch: ServiceAlert, url: str) -> dict[str, Any]:
    """Write an alert about the service."""
    return {
        "alert": watch.name,
        "expr": watch.expr,
        **_times(watch.for_s, 0),
        "labels": {"severity": watch.severity, "rule": watch.name},
        "annotations": {
            "summary": watch.title,
            "description": watch.says,
            "runbook_url": f"{url}/runbooks/{watch.runbook}/",
            "dashboard": f"{url}/",
        },
    }


def _times(for_s: float, keep_s: float) -> dict[str, Any]:
    """Write how long an alert is pending, and how long it outlives what it saw."""
    times: dict[str, Any] = {"for": f"{for_s:g}s"} if for_s else {}
    return times | ({"keep_firing_for": f"{keep_s:g}s"} if keep_s else {})
