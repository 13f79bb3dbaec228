"""Fleet resources by the API: the figures of the pages, gaps as null, few queries."""

import json
import math
import time
from datetime import UTC, datetime

import numpy as np
import pytest
from pytest_django import DjangoAssertNumQueries

from fleet.api.fields import EARLIEST, LATEST, parse_time
from fleet.api.series import MAX_NUMBERS, Table
from fleet.models import Alert, Node, Run
from fleet.version import VERSION
from telemetry.blocks import METRICS, Block
from telemetry.store.hot import HotStore
from tests.alerts import straggling
from tests.fleet.api.conftest import Ask
from tests.helpers import NOON, block, just_now

LISTS = (
    *("runs", "nodes", "alerts", "silences", "annotations", "tokens", "trials"),
    *("prices", "budgets", "compiles", "support-checks"),
)


def test_a_run_reports_its_last_minute(ask: Ask, fleet: Alert) -> None:
    run = ask("runs/llama").json()

    assert run["now"]["step_s"] == pytest.approx(1.1)
    assert run["now"]["allreduce_share_ratio"] == pytest.approx(0.2 / 1.1)
    assert (run["n_open_alerts"], run["usd_per_hour"]) == (1, 86.0)
    assert run["started_at"] == "2026-03-02T12:00:00Z"


def test_a_run_has_what_it_reports_of_its_recipe(ask: Ask, fleet: Alert) -> None:
    def shown() -> tuple[object, ...]:
        run = ask("runs/llama").json()
        return run["cp"], run["micro_batch"], run["recompute"]

    assert shown() == (None, None, None)

    Run.objects.update(recipe={"cp": 2, "vp": 4, "recompute": "full"})
    assert shown() == (2, None, "full")


def test_an_alert_about_several_runs_counts_in_each(ask: Ask, fleet: Alert, run: Run) -> None:
    run.pk, run.name = None, "other"
    run.save()
    fleet.evidence = fleet.evidence | {"runs": ["llama", "other"]}
    fleet.save()

    counts = {each["name"]: each["n_open_alerts"] for each in ask("runs").json()["items"]}

    assert counts == {"llama": 1, "other": 1}


def test_a_price_that_no_one_knows_is_null(ask: Ask, run: Run) -> None:
    Run.objects.update(usd_per_node_hour=0)

    assert ask("runs/llama").json()["usd_per_hour"] is None


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("state=up", ["limping", "steady"]),
        ("state=silent", ["silent"]),
        ("state=released", []),
        ("run=llama&team=LLM", ["limping", "silent", "steady"]),
        ("run=other", []),
        ("source=neuron-monitor", []),
    ],
)
def test_nodes_are_listed_by_what_they_are(
    ask: Ask, fleet: Alert, query: str, names: list[str]
) -> None:
    assert [node["name"] for node in ask(f"nodes?{query}").json()["items"]] == names


def test_a_node_has_hardware_flops_power_and_execution_latency(
    ask: Ask, hot: HotStore, fleet: Alert
) -> None:
    Node.objects.filter(name="steady").update(shard="node:steady")
    values = {
        "core_flops_per_s": np.full((1, 32), 1.5 * 2.0**45),
        "device_power_ratio": np.full((1, 16), 0.5),
        "execution_latency_p50_s": np.array([[0.25]]),
        "execution_latency_p99_s": np.array([[0.5]]),
    }
    hot.append([Block("node:steady", int(time.time()), ("steady",), values)])

    now = ask("nodes/steady").json()["now"]

    assert now["flops_per_s"] == 32 * 1.5 * 2.0**45
    assert now["flops_ratio"] == pytest.approx(1.5 * 2.0**45 / 95e12)
    assert now["power_mean_ratio"] == pytest.approx(0.5)
    assert (now["execution_latency_p50_s"], now["execution_latency_p99_s"]) == (0.25, 0.5)
    assert now["execution_latency_p100_s"] is None
    Node.objects.filter(name="steady").update(instance_type="unknown")
    assert ask("nodes/steady").json()["now"]["flops_ratio"] is None


def test_a_node_has_its_alert_history(ask: Ask, fleet: Alert) -> None:
    history = ask("nodes/limping").json()["alert_history"]

    assert history["last_at"] == history["causes"][0].pop("last_at")
    assert history["causes"] == [{"cause": "slow_core", "n_alerts": 2, "n_runs": 1}]
    assert (history["n_others"], history["others_median"], history["is_unusual"]) == (2, 0, False)


@pytest.mark.parametrize(
    ("query", "n_alerts"),
    [
        ("", 2),
        ("state=open", 1),
        ("state=firing", 1),
        ("state=resolved", 1),
        ("state=silenced", 0),
        ("state=acknowledged", 0),
        ("rule=hang", 1),
        ("severity=page&run=llama&node=limping&team=LLM", 2),
        ("severity=warn", 0),
        ("who=ada", 0),
        ("drill=yes", 0),
        ("since=2026-01-01T00:00:00Z", 2),
        ("until=0", 0),
    ],
)
def test_alerts_are_listed_by_what_they_are(
    ask: Ask, fleet: Alert, query: str, n_alerts: int
) -> None:
    assert len(ask(f"alerts?{query}").json()["items"]) == n_alerts


def test_an_alert_has_its_timeline_and_evidence(ask: Ask, fleet: Alert) -> None:
    over = ask("alerts?state=resolved").json()["items"][0]["id"]

    assert ask(f"alerts/{fleet.pk}").json()["evidence"]["share_ratio"] == 0.31
    assert ask(f"alerts/{over}").json()["timeline"][0]["text"] == "swapped it"


def test_a_window_in_which_no_one_reported_anything_is_answered_in_few_points(
    ask: Ask, fleet: Alert
) -> None:
    window = "since=2021-11-21T14:30:00Z&until=2021-11-21T15:30:00Z"
    series = ask(f"nodes/steady/series?metric=core_utilization_ratio&max_points=2&{window}").json()

    assert (len(series["t_s"]), series["parts"]) == (2, [])


def test_gaps_are_null_and_json_knows_no_nan(ask: Ask, fleet: Alert, hot: HotStore) -> None:
    hot.append([block(tick=int(just_now().timestamp()), fill=math.nan)])
    answer = ask("nodes/steady/series?metric=core_utilization_ratio&max_points=900")
    series = json.loads(answer.content, parse_constant=pytest.fail)

    assert (series["unit"], len(series["parts"])) == ("ratio", 32)
    values = series["parts"][0]["values"]
    assert len(values) == len(series["t_s"])
    assert (values[0], values[-2]) == (None, pytest.approx(0.5, abs=0.01))
    assert series["stretches"][0]["tier"] == "hot"


@pytest.mark.parametrize("metric", [m for m in METRICS if not m.startswith("device")])
def test_every_metric_of_a_node_can_be_asked_for(ask: Ask, fleet: Alert, metric: str) -> None:
    series = ask(f"nodes/steady/series?metric={metric}&max_points=5").json()

    assert len(series["t_s"]) <= 5
    assert all(part["high"] is not None for part in series["parts"])


@pytest.mark.parametrize("metric", ["step_s", "tokens_per_s", "allreduce_share_ratio", "wait_s"])
def test_a_run_is_reported_step_by_step(ask: Ask, fleet: Alert, metric: str) -> None:
    series = ask(f"runs/llama/series?metric={metric}").json()

    assert len(series["parts"][0]["values"]) == len(series["t_s"]) == 10
    assert series["every_s"] == pytest.approx(1.1)


def test_an_unknown_metric_is_refused_by_those_there_are(ask: Ask, fleet: Alert) -> None:
    response = ask("nodes/steady/series?metric=colour")

    assert (response.status_code, response.json()["field"]) == (400, "metric")
    assert "core_utilization_ratio" in response.json()["detail"]


@pytest.mark.parametrize(
    "window", ["since=9e99", "until=0", "since=2026-11-21T10:00:00Z&until=2026-11-21T09:00:00Z"]
)
def test_a_window_that_holds_nothing_is_empty(ask: Ask, fleet: Alert, window: str) -> None:
    assert ask(f"runs/llama/series?metric=step_s&{window}").json()["t_s"] == []
    assert ask(f"runs/llama/steps?{window}").json()["items"] == []
    assert ask(f"nodes/steady/series?metric=efa_latency_s&{window}").status_code == 200


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-03-02T12:00:00Z", NOON),
        ("2026-03-02t13:00:00.0+01:00", NOON),
        ("1772452800", NOON),
        ("2016-12-31T23:59:60Z", datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("0001-01-01T00:00:00+23:00", EARLIEST),
        ("9999-12-31T23:59:59-23:00", LATEST),
        ("1e300", LATEST),
        ("-1", EARLIEST),
    ],
)
def test_any_time_can_be_read(text: str, moment: datetime) -> None:
    assert parse_time(text) == moment


@pytest.mark.parametrize("text", ["", "now", "2026-03-02", "2026-03-02T12:00:00", "nan", "1_0"])
def test_an_invalid_time_is_refused(ask: Ask, text: str) -> None:
    response = ask(f"runs?since={text}")

    assert (response.status_code, response.json()["field"]) == (400, "since")


def test_neighbours_are_averaged_and_their_extremes_kept() -> None:
    values = np.array([[1.0], [3.0], [np.nan], [np.nan], [5.0]])

    slim = Table(np.arange(5), values).downsampled(3)

    assert slim.low is not None
    assert slim.high is not None
    np.testing.assert_array_equal(slim.t_s, [0, 2, 4])
    np.testing.assert_array_equal(slim.mean[:, 0], [2.0, np.nan, 5.0])
    np.testing.assert_array_equal(slim.low[:, 0], [1.0, np.nan, 5.0])
    np.testing.assert_array_equal(slim.high[:, 0], [3.0, np.nan, 5.0])


def test_many_parts_are_reported_in_fewer_points() -> None:
    slim = Table(np.arange(2_000), np.zeros((2_000, 128))).downsampled(2_000)

    assert slim.mean.size <= MAX_NUMBERS


@pytest.mark.parametrize("path", LISTS)
def test_a_full_list_asks_the_database_little(
    ask: Ask,
    fleet: Alert,
    run: Run,
    path: str,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    ask("me")
    Node.objects.bulk_create(
        Node(
            name=f"node-{i:03}",
            instance_type="trn1.32xlarge",
            source="simulated",
            shard="llama/0",
            run=run,
            n_cores=32,
            n_devices=16,
            first_seen_at=NOON,
        )
        for i in range(100)
    )
    for i, node in enumerate(Node.objects.all()):
        straggling(run, node, at=NOON, subject=f"node:{i}")

    with django_assert_max_num_queries(10):
        assert ask(f"{path}?limit=200").status_code == 200


def test_it_describes_itself_and_every_field(ask: Ask) -> None:
    document = ask("openapi.json").json()
    reported = [
        (name, field)
        for name, schema in document["components"]["schemas"].items()
        if name.endswith(("Out", "Page", "Detail", "In", "Figures", "Me", "NewToken"))
        for field, shown in schema["properties"].items()
        if "description" not in shown
    ]

    assert (document["openapi"], document["info"]["version"]) == ("3.1.0", VERSION)
    assert reported == []
    for path in ("neuron-monitor", "efa", "steps"):
        assert "x-ndjson" in str(document["paths"][f"/api/v1/ingest/{path}"])
    for path in document["paths"].values():
        for operation in path.values():
            assert operation["summary"]
            assert operation["description"]
            nameless = [
                p["name"] for p in operation.get("parameters", ()) if "description" not in p
            ]
            assert nameless == []
