"""Dashboards: files are current, every expression returns data."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings
from pytest_django import DjangoDbBlocker
from redis import Redis

from fleet.metrics.dashboards import COLUMNS, dashboard_files, dashboards
from telemetry.store.hot import HotStore
from tests.fleet.metrics import aws_queries, prometheus_run
from tests.web_server import served

ROOT = Path(__file__).parents[3]
COMMITTED = ROOT / "deploy/grafana/dashboards"
# The whole fleet from one page, and on the other database each node from a page of its own.
SCRAPING = {"sqlite": "prometheus.yml", "postgresql": "prometheus-discovery.yml"}
EXAMPLE = ROOT / "deploy/prometheus" / SCRAPING[connection.vendor]
# What Grafana puts in the place of its variables.
PUT = {
    "$__rate_interval": "1m",
    "$__interval": "15s",
    "$run": prometheus_run.RUN,
    "$node": prometheus_run.NODE,
}
QUERIES = [(name, query) for name, board in dashboards().items() for query in board.queries]
CHOICES = [(name, choice) for name, board in dashboards().items() for choice in board.choices]


def filled(expr: str) -> str:
    """Put values in the place of Grafana's variables."""
    for name, value in PUT.items():
        expr = expr.replace(name, value)
    assert "$" not in expr
    return expr


def values_of(metric: str, label: str) -> str:
    """Return the query that finds what `label_values` does."""
    return f"group by ({label}) ({filled(metric)})"


@pytest.fixture(scope="module")
def answers(
    tmp_path_factory: pytest.TempPathFactory,
    redis_of_the_session: tuple[str, Iterator[int]],
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
) -> dict[str, Any]:
    """Ask a real Prometheus, once, everything that dashboards ask; its rules are there too."""
    folder, (server, numbers) = tmp_path_factory.mktemp("prometheus"), redis_of_the_session
    url = f"{server}/{next(numbers)}"
    asked = {filled(query.expr) for _, query in QUERIES} | {*aws_queries.PANELS}
    offers = {values_of(choice.metric, choice.name) for _, choice in CHOICES}
    offers |= {values_of(metric, label) for metric, label in aws_queries.VARIABLES}
    rare = {filled(query.expr) for _, query in QUERIES if query.rare}
    with (
        django_db_blocker.unblock(),
        override_settings(REDIS_URL=url, CELERY_BROKER_URL=url),
        Redis.from_url(url) as client,
    ):
        client.flushdb()
        try:
            prometheus_run.settle(HotStore(client), now=datetime.now(UTC))
            secret = prometheus_run.token()
            with served() as address:
                config = prometheus_run.configured(EXAMPLE, folder, address, secret)
                with prometheus_run.prometheus(folder, config) as ask:
                    found = prometheus_run.all_answers(
                        ask, {*asked, prometheus_run.ALL_NODES, prometheus_run.SILENCE}, rare
                    )
                    found |= {expr: prometheus_run.query(ask, expr) for expr in offers}
                    found["rules"] = ask("rules")
        finally:
            prometheus_run.leave()
            client.flushdb()
    return found


@pytest.mark.django_db
@pytest.mark.prometheus
def test_each_expression_finds_what_it_should(answers: dict[str, Any]) -> None:
    wrong = [
        (board, query.expr, answers[filled(query.expr)])
        for board, query in QUERIES
        if not isinstance(answers[filled(query.expr)], list)
        or not (answers[filled(query.expr)] or query.rare)
    ]

    assert wrong == []


@pytest.mark.django_db
@pytest.mark.prometheus
def test_a_variable_offers_what_there_is(answers: dict[str, Any]) -> None:
    offered = {
        (board, choice.name): {
            series["metric"].get(choice.name, "")
            for series in answers[values_of(choice.metric, choice.name)]
        }
        for board, choice in CHOICES
    }

    assert offered["run", "run"] == offered["node", "run"] == {prometheus_run.RUN}
    assert {prometheus_run.NODE, prometheus_run.MISSING} <= offered["node", "node"]


@pytest.mark.django_db
@pytest.mark.prometheus
def test_each_panel_that_knows_only_the_names_of_aws_is_filled(answers: dict[str, Any]) -> None:
    assert aws_queries.PANELS
    found = {expr: answers[expr] for expr in aws_queries.PANELS}
    assert {at: it for at, it in found.items() if not prometheus_run.has_result(it)} == {}


@pytest.mark.django_db
@pytest.mark.prometheus
def test_one_may_choose_by_what_aws_exporters_say(answers: dict[str, Any]) -> None:
    offered = {
        (metric, label): any(
            series["metric"].get(label) for series in answers[values_of(metric, label)]
        )
        for metric, label in aws_queries.VARIABLES
    }

    assert offered
    assert offered == dict.fromkeys(offered, True)


@pytest.mark.django_db
@pytest.mark.prometheus
def test_every_rule_is_in_good_health(answers: dict[str, Any]) -> None:
    rules = [rule for group in answers["rules"]["groups"] for rule in group["rules"]]

    assert len(rules) > 50
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []


@pytest.mark.django_db
@pytest.mark.prometheus
def test_a_rule_states_in_full_what_is_wrong(answers: dict[str, Any]) -> None:
    firing = [
        alert
        for group in answers["rules"]["groups"]
        for rule in group["rules"]
        for alert in rule.get("alerts", ())
    ]
    (silent,) = (alert for alert in firing if alert["labels"]["alertname"] == "node_silent")

    assert silent["annotations"]["summary"] == "Node silent: missing"
    assert silent["labels"]["run"] == prometheus_run.RUN
    assert silent["annotations"]["dashboard"].endswith("/nodes/missing/")


@pytest.mark.parametrize("name", dashboard_files())
def test_a_committed_dashboard_is_current(name: str) -> None:
    assert (COMMITTED / name).read_text() == dashboard_files()[name]


def test_no_other_dashboard_is_committed() -> None:
    assert {path.name for path in COMMITTED.iterdir()} == set(dashboard_files())


@pytest.mark.parametrize("name", dashboard_files())
def test_panels_stand_next_to_each_other(name: str) -> None:
    panels = json.loads(dashboard_files()[name])["panels"]
    taken = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]

    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < COLUMNS
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.parametrize("name", dashboard_files())
def test_a_dashboard_names_no_data_source_and_leads_to_trnwatch(name: str) -> None:
    text = dashboard_files()[name]
    board = json.loads(text)
    variables = {variable["name"] for variable in board["templating"]["list"]}

    assert {"datasource", "trnwatch"} <= variables
    assert set(re.findall(r'"uid": "(.*?)"', text)) == {"${datasource}", board["uid"]}
    assert board["links"][0]["url"].startswith("${trnwatch}/")
    assert set(re.findall(r"\$\{?(\w+)", text)) - variables <= {"__field", "__rate_interval"}
    assert board["schemaVersion"] >= 38


def test_the_command_writes_every_dashboard(tmp_path: Path) -> None:
    call_command("export_dashboards", tmp_path, url="https://watch.lab")

    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(written) == set(dashboard_files())
    assert all('"query": "https://watch.lab"' in text for text in written.values())


def test_the_command_wants_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="is not a folder"):
        call_command("export_dashboards", tmp_path / "nowhere")
