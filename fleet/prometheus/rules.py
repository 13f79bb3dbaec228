"""The rule file: recordings, an alert for every rule of detection, and alerts about trnwatch."""

from collections.abc import Iterable, Iterator

from fleet.prometheus.recording import (
    MONEY_EVERY_S,
    Recording,
    of_fleet,
    of_money,
    of_nodes,
    of_runs,
)
from fleet.prometheus.service import WATCHES, Watch
from fleet.prometheus.yaml import Value, written
from telemetry.detect.rules import RULES, Query, Rule

# Where links lead unless somebody says; the committed file says this.
EXAMPLE_URL = "https://trnwatch.example.org"
HEAD = """\
# Written by `manage.py export_rules`: change the definitions in telemetry/detect/rulebook and
# fleet/prometheus instead, and `--url` to what people call your trnwatch. See docs/prometheus.md.
"""
PAGES = {
    "run": "/runs/{{ $labels.run }}/",
    "node": "/nodes/{{ $labels.node }}/",
    "fleet": "/",
    "budget": "/budgets/",
}
# A budget is a team's or a run's: one of the two labels is empty.
WHOM = {
    "run": ": {{ $labels.run }}",
    "node": ": {{ $labels.node }}",
    "fleet": "",
    "budget": ": {{ $labels.team }}{{ $labels.run }}",
}


def rule_file(url: str = EXAMPLE_URL) -> str:
    """Write the rule file; links begin with ``url``."""
    groups = {
        "trnwatch-nodes": recordings(of_nodes()),
        "trnwatch-runs": recordings(of_runs()),
        "trnwatch-fleet": recordings(of_fleet()),
        "trnwatch-money": recordings(of_money()),
        "trnwatch-alerts": [alert for rule in RULES.values() for alert in alerts(rule, url)],
        "trnwatch-service": [_of_service(watch, url) for watch in WATCHES.values()],
    }
    every = {"trnwatch-money": {"interval": f"{MONEY_EVERY_S}s"}}
    named: list[Value] = [
        {"name": name, **every.get(name, {}), "rules": rules} for name, rules in groups.items()
    ]
    return HEAD + written({"groups": named})


def base_url(given: str) -> str:
    """Return what links begin with, without a slash; ValueError where it is no address."""
    if not given.startswith(("http://", "https://")):
        raise ValueError("--url: begins with http:// or https://.")
    return given.rstrip("/")


def recordings(rules: Iterable[Recording]) -> list[Value]:
    """Return recording rules as Prometheus reads them."""
    return [{"record": record, "expr": expr} for record, expr in rules]


def alerts(rule: Rule, url: str) -> Iterator[Value]:
    """Yield what stands for a rule: its queries, or what trnwatch itself says of it."""
    if not rule.queries:
        yield _told(rule, url)
    for query in rule.queries:
        yield _alert(rule, query, url)


def _alert(rule: Rule, query: Query, url: str) -> Value:
    """Write one query of a rule as an alert, under the name its alerts have here too."""
    says = rule.filled(query.says)
    return {
        "alert": rule.name,
        "expr": rule.filled(query.expr).strip(),
        **_times(rule.seconds(query.for_s), rule.seconds(query.keep_s)),
        "labels": {"severity": query.severity or rule.severity, "rule": rule.name},
        "annotations": {
            "summary": f"{rule.title}{WHOM[rule.subject]}",
            "description": f"{rule.help} {says}",
            "runbook_url": f"{url}/runbooks/{rule.name}/",
            "dashboard": f"{url}{PAGES[rule.subject]}",
        },
    }


def _told(rule: Rule, url: str) -> Value:
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


def _of_service(watch: Watch, url: str) -> Value:
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


def _times(for_s: float, keep_s: float) -> dict[str, Value]:
    """Write how long an alert is pending, and how long it outlives what it saw."""
    times: dict[str, Value] = {"for": f"{for_s:g}s"} if for_s else {}
    return times | ({"keep_firing_for": f"{keep_s:g}s"} if keep_s else {})
