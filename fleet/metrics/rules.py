"""The rule file: recording rules, an alert for every detection rule, alerts about trnwatch."""

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import yaml

from fleet.runs.node_columns import LATE_AFTER_S
from telemetry.detect.rules import RULES, Rule, Severity, names_of

Recording = tuple[str, str]

# The run of each node: multiplying a series by it adds the label ``run``.
RUN = "node:trnwatch_run:info"
WITH_RUN = f"on (node) group_left (run) {RUN}"
IN_A_RUN = f'{WITH_RUN}{{run!=""}}'
# Aggregates over the parts of a node. An average alone would hide the slowest part.
NODE_AGGREGATES = {
    "trnwatch_core_utilization_ratio": ("min", "avg", "median", "max"),
    "trnwatch_device_hbm_bandwidth_bytes_per_second": ("min", "median", "sum"),
    "trnwatch_device_memory_used_bytes": ("max", "sum"),
    "trnwatch_efa_latency_seconds": ("median", "max"),
    "trnwatch_efa_tx_bytes_per_second": ("min", "sum"),
}
# Aggregates over the nodes of a run, by aggregate of the node.
RUN_AGGREGATES = {
    "trnwatch_core_utilization_ratio": {"min": "min", "avg": "avg", "max": "max"},
    "trnwatch_device_hbm_bandwidth_bytes_per_second": {"min": "min", "sum": "sum"},
    "trnwatch_efa_latency_seconds": {"median": "avg", "max": "max"},
    "trnwatch_efa_tx_bytes_per_second": {"sum": "sum"},
}
VCPU_USAGE = "trnwatch_node_vcpu_usage_ratio"
QUANTILES = {"q01": "0.01", "q50": "0.5", "q99": "0.99"}


def node_recordings() -> Iterator[Recording]:
    """Yield the recording rules about nodes, with the label ``run``."""
    yield RUN, "group by (node, run) (trnwatch_node_info)"
    for metric, aggregates in NODE_AGGREGATES.items():
        for name in aggregates:
            start = "quantile by (node) (0.5, " if name == "median" else f"{name} by (node) ("
            yield f"node:{metric}:{name}", f"{start}{metric}) * {WITH_RUN}"
    retransmits, sent = "trnwatch_efa_retransmits_per_second", "trnwatch_efa_tx_packets_per_second"
    yield (
        "efa:trnwatch_efa_retransmit_ratio:avg2m",
        f"avg_over_time({retransmits}[2m])\n/ (avg_over_time({sent}[2m]) > 0)\n* {WITH_RUN}",
    )
    yield (
        "node:trnwatch_efa_retransmit_ratio:max",
        "max by (node, run) (efa:trnwatch_efa_retransmit_ratio:avg2m)",
    )


def run_recordings() -> Iterator[Recording]:
    for metric, aggregates in RUN_AGGREGATES.items():
        for name, over_nodes in aggregates.items():
            expr = f'{over_nodes} by (run) (node:{metric}:{name}{{run!=""}})'
            yield f"run:{metric}:{name}", expr
    for name in ("avg", "max"):
        yield f"run:{VCPU_USAGE}:{name}", f"{name} by (run) ({VCPU_USAGE} * {IN_A_RUN})"
    yield (
        "run:trnwatch_efa_retransmit_ratio:max",
        'max by (run) (node:trnwatch_efa_retransmit_ratio:max{run!=""})',
    )
    up = f"max by (node) (trnwatch_node_up) * {IN_A_RUN}"
    yield "run:trnwatch_nodes:count", f"count by (run) ({up})"
    yield "run:trnwatch_nodes_up:sum", f"sum by (run) ({up})"


def fleet_recordings() -> Iterator[Recording]:
    cores = "trnwatch_core_utilization_ratio"
    for name in ("min", "avg", "max"):
        yield f"fleet:{cores}:{name}", f"{name}(node:{cores}:{name})"
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


EXPLAINING = "|".join(sorted(names_of(lambda rule: rule.explains_cost)))
DRIFT = RULES["cost_drift"].limits
HALF_S = DRIFT["window_s"] / 2
# Interval of the cost rules.
COST_INTERVAL_S = 60


def cost_recordings() -> Iterator[Recording]:
    explaining = "run:trnwatch_alerts_explaining:sum"
    cost = "run:trnwatch_node_seconds_per_million_tokens:unexplained"
    half, least = f"[{HALF_S:g}s]", DRIFT["least_minutes"] / 2
    alerts = f'trnwatch_run_alerts_firing{{rule=~"{EXPLAINING}"}}'
    yield explaining, f"sum by (run) (\n  max by (run, rule) (\n    {alerts}\n  )\n)"
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
    yield ("run:trnwatch_cost_drift_ratio:min2h", f"({late} < {early})\nor\n({early} <= {late})")
    of_budget = "max by (budget, team, run)"
    yield (
        "budget:trnwatch_budget_forecast_ratio:max",
        f"{of_budget} (trnwatch_budget_forecast_usd) / {of_budget} (trnwatch_budget_usd)",
    )


# A longer pause between evaluations counts as stopped.
STOPPED_S = 60


@dataclass(frozen=True, slots=True)
class ServiceAlert:
    """An alert about trnwatch itself, see service_alerts.toml."""

    name: str
    title: str
    severity: Severity
    expr: str
    for_s: float
    description: str
    runbook: str = "service"


_LIMITS = {"stopped_s": STOPPED_S, "late_s": f"{LATE_AFTER_S:g}"}
SERVICE_ALERTS: Mapping[str, ServiceAlert] = {
    name: ServiceAlert(name, **table | {"expr": Template(table["expr"]).substitute(_LIMITS)})
    for name, table in tomllib.loads(
        Path(__file__).with_name("service_alerts.toml").read_text(encoding="utf-8")
    ).items()
}


class _Dumper(yaml.SafeDumper):
    """Writes multi-line strings as blocks, for readable PromQL."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


# The address in links, unless `--url` is given; also in the committed file.
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
# A budget belongs to a team or a run: one of the two labels is empty.
SUBJECT_SUFFIX = {
    "run": ": {{ $labels.run }}",
    "node": ": {{ $labels.node }}",
    "fleet": "",
    "budget": ": {{ $labels.team }}{{ $labels.run }}",
}


def rule_file(url: str = EXAMPLE_URL) -> str:
    groups = {
        "trnwatch-nodes": recordings(node_recordings()),
        "trnwatch-runs": recordings(run_recordings()),
        "trnwatch-fleet": recordings(fleet_recordings()),
        "trnwatch-money": recordings(cost_recordings()),
        "trnwatch-alerts": [alert for rule in RULES.values() for alert in alerts(rule, url)],
        "trnwatch-service": [
            {
                "alert": alert.name,
                "expr": alert.expr,
                **_times(alert.for_s, 0),
                "labels": {"severity": alert.severity, "rule": alert.name},
                "annotations": {
                    "summary": alert.title,
                    "description": alert.description,
                    "runbook_url": f"{url}/runbooks/{alert.runbook}/",
                    "dashboard": f"{url}/",
                },
            }
            for alert in SERVICE_ALERTS.values()
        ],
    }
    intervals = {"trnwatch-money": {"interval": f"{COST_INTERVAL_S}s"}}
    named = [
        {"name": name, **intervals.get(name, {}), "rules": rules} for name, rules in groups.items()
    ]
    body = yaml.dump(
        {"groups": named}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return f"{HEAD}{body}"


def base_url(given: str) -> str:
    """Strip the final slash; ValueError where the URL is not http(s)."""
    if not given.startswith(("http://", "https://")):
        raise ValueError(f"--url: {given} is not a URL. Start it with http:// or https://.")
    return given.rstrip("/")


def recordings(rules: Iterable[Recording]) -> list[dict[str, Any]]:
    return [{"record": record, "expr": expr} for record, expr in rules]


def alerts(rule: Rule, url: str) -> Iterator[dict[str, Any]]:
    """Yield a rule's alerts: its own queries, or the count of trnwatch's alerts."""
    if not rule.queries:
        # PromQL cannot express this rule, so it watches trnwatch's own alerts.
        yield {
            "alert": rule.name,
            "expr": f'max by (rule, severity) (trnwatch_alerts_firing{{rule="{rule.name}"}}) > 0',
            **_times(0, 120),
            "labels": {"severity": "{{ $labels.severity }}", "rule": rule.name},
            "annotations": {
                "summary": rule.title,
                "description": f"{rule.help} {{{{ $value }}}} firing; see trnwatch for details.",
                "runbook_url": f"{url}/runbooks/{rule.name}/",
                "dashboard": f"{url}/alerts/?rule={rule.name}",
            },
        }
    for query in rule.queries:
        description = rule.filled(query.description)
        yield {
            "alert": rule.name,
            "expr": rule.filled(query.expr).strip(),
            **_times(rule.seconds(query.for_s), rule.seconds(query.keep_s)),
            "labels": {"severity": query.severity or rule.severity, "rule": rule.name},
            "annotations": {
                "summary": f"{rule.title}{SUBJECT_SUFFIX[rule.subject]}",
                "description": f"{rule.help} {description}",
                "runbook_url": f"{url}/runbooks/{rule.name}/",
                "dashboard": f"{url}{PAGES[rule.subject]}",
            },
        }


def _times(for_s: float, keep_s: float) -> dict[str, Any]:
    times: dict[str, Any] = {"for": f"{for_s:g}s"} if for_s else {}
    return times | ({"keep_firing_for": f"{keep_s:g}s"} if keep_s else {})
