"""docs/prometheus.md states the limits of every alert, and names existing series."""

import re
from pathlib import Path

import yaml

from fleet.metrics.dashboards import dashboards
from fleet.metrics.rules import (
    SERVICE_ALERTS,
    cost_recordings,
    fleet_recordings,
    node_recordings,
    rule_file,
    run_recordings,
)
from telemetry.detect import RULES

ROOT = Path(__file__).parents[3]
EXPORTED = re.compile(r"(?<![:\w])trnwatch_\w+")
TEXT = (ROOT / "docs/prometheus.md").read_text()
RUNBOOK = (ROOT / "docs/runbooks/service.md").read_text()
NOTIFIED = {name for name, watch in SERVICE_ALERTS.items() if watch.runbook == "notifications"}


def test_it_shows_what_an_alert_of_prometheus_does_not_see() -> None:
    for rule in RULES.values():
        severities: set[str] = {query.severity or rule.severity for query in rule.queries}
        shown = ", ".join(sorted(severities or {"from trnwatch"}))
        row = f"| `{rule.name}` | {shown} | {rule.filled(rule.falls_short)} |"

        assert row in TEXT.splitlines(), f"docs/prometheus.md: the row must be {row}"


def test_an_alert_about_trnwatch_has_a_line_and_a_remedy() -> None:
    for name in SERVICE_ALERTS:
        assert f"`{name}`" in TEXT
        assert name in NOTIFIED or f"- **`{name}`**: " in RUNBOOK, name


def test_every_example_is_named() -> None:
    paths = [f"{path.parent.name}/{path.name}" for path in (ROOT / "deploy").glob("*/*.yml")]
    shown = [path for path in paths if path.startswith(("prometheus/", "alertmanager/"))]

    assert [path for path in shown if path not in TEXT] == []


def test_it_counts_what_is_recorded() -> None:
    groups = (node_recordings, run_recordings, fleet_recordings, cost_recordings)
    n_nodes, n_runs, n_fleet, n_money = (len(list(each())) for each in groups)

    rules = f"{n_nodes} of nodes, {n_runs} of runs, {n_fleet} of the fleet and {n_money} of costs"
    assert f"recording rules: {rules}" in TEXT


def test_rules_and_dashboards_ask_only_for_what_is_exported() -> None:
    groups = yaml.safe_load(rule_file())["groups"]
    exprs = [rule["expr"] for group in groups for rule in group["rules"]]
    exprs += [query.expr for board in dashboards().values() for query in board.queries]
    asked = {name for expr in exprs for name in EXPORTED.findall(expr)}

    documented = set(EXPORTED.findall((ROOT / "docs/metrics.md").read_text()))
    assert asked - documented == set()
    assert len(asked) > 40
