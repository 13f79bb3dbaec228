"""One physical fault of several nodes or runs is one alert."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from drills.playback import play_scenario
from drills.scenario import load_scenario
from fleet.alerts import reconcile
from fleet.alerts.text import AlertText, plain
from fleet.models import Alert, Delivery, Node, Run
from fleet.simulation.runs import create_run
from fleet.simulation.scoring import Firing
from telemetry.detect.findings import Finding
from telemetry.simulate.plan import RunSpec
from tests.fleet.alerts.test_concurrency import at_once
from tests.helpers import NOON

EVALUATED = {
    ("efa_degraded", f"node:{run}-{rank:02}") for run in ("left", "right") for rank in range(4)
}


@pytest.fixture
def runs(transactional_db: None) -> list[Run]:
    """Create two runs of four nodes each, which share racks r0 and r1."""
    spec = {"model": "llama2-7b", "instance": "trn1.32xlarge", "nodes": 4, "tp": 8}
    spec |= {"pp": 1, "seq_len": 4096, "global_batch": 128, "nodes_per_rack": 2}
    return [
        create_run(RunSpec(name=name, **spec), started_at=NOON)  # type: ignore[arg-type]
        for name in ("left", "right")
    ]


def slow_link(node: str, *, at_s: float = 0.0, cause: str = "efa_latency") -> Finding:
    run = node.partition("-")[0]
    onset_s = NOON.timestamp() + at_s
    return Finding("efa_degraded", cause, "warn", run, node, 2, onset_s=onset_s, score=3.0)


def evaluate(second: float, *findings: Finding, evaluated: set[Any] = EVALUATED) -> None:
    reconcile(findings, evaluated=evaluated, now=NOON + timedelta(seconds=second))


def of_run(name: str) -> set[tuple[str, str]]:
    return {key for key in EVALUATED if f":{name}-" in key[1]}


def test_simulated_nodes_know_their_rack(runs: list[Run]) -> None:
    racks = Node.objects.filter(run=runs[1]).order_by("rank").values_list("rack", flat=True)
    assert list(racks) == ["r0", "r0", "r1", "r1"]


def test_two_runs_in_one_rack_are_one_alert(runs: list[Run]) -> None:
    evaluate(5, slow_link("left-02"), slow_link("right-03", at_s=20, cause="efa_loss"))

    alert = Alert.objects.get()
    assert (alert.nodes, alert.runs) == (["left-02", "right-03"], ["left", "right"])
    assert (alert.cause, alert.evidence["rack"]) == ("network", "r1")
    assert "in rack r1, runs left and right" in alert.events.get().text


def test_nodes_of_one_ultraserver_share_a_place_where_racks_are_unknown(runs: list[Run]) -> None:
    Node.objects.update(rack="")
    Node.objects.filter(name__in=["left-02", "right-03"]).update(ultraserver_id="c0ffee04")
    evaluate(5, slow_link("left-02"), slow_link("right-03", at_s=20, cause="efa_loss"))

    alert = Alert.objects.get()
    assert (alert.nodes, alert.runs) == (["left-02", "right-03"], ["left", "right"])
    assert "in UltraServer c0ffee04, runs left and right" in alert.events.get().text


def test_pages_and_messages_name_the_group(runs: list[Run]) -> None:
    evaluate(5, slow_link("left-02"), slow_link("left-03"), slow_link("right-02"))

    text = AlertText(Alert.objects.get(), NOON + timedelta(seconds=9))
    expected = "3 nodes in rack r1, runs left and right: high EFA latency"
    assert plain(text.headline).replace("\u202f", " ").replace("\u00a0", " ") == expected
    for name in ("left-02", "left-03", "right-02"):
        assert f'<a href="/nodes/{name}/">{name}</a>' in text.story
    assert list(Alert.objects.of_run("right")) == list(Alert.objects.all())


@pytest.mark.parametrize(
    "other",
    [
        slow_link("right-00"),
        slow_link("right-02", at_s=300),
        slow_link("right-02", cause="throttle"),
    ],
    ids=["another rack", "five minutes later", "another class of cause"],
)
def test_independent_faults_are_two_alerts(runs: list[Run], other: Finding) -> None:
    evaluate(305, slow_link("left-02"), other)

    assert Alert.objects.count() == 2


def slow_run(name: str, *, at_s: float = 0.0, cause: str = "unknown") -> Finding:
    onset_s = NOON.timestamp() + at_s
    return Finding("step_slow", cause, "warn", name, onset_s=onset_s, score=3.0)


RUNS_TOO = EVALUATED | {("step_slow", f"run:{name}") for name in ("left", "right")}


def test_runs_of_the_same_racks_that_slow_down_together_are_one_alert(runs: list[Run]) -> None:
    evaluate(30, slow_run("left"), evaluated=RUNS_TOO)
    evaluate(31, slow_run("left"), slow_run("right", at_s=3), evaluated=RUNS_TOO)

    alert = Alert.objects.get()
    assert (alert.cause, alert.nodes, alert.runs) == ("unknown", [], ["left", "right"])
    text = AlertText(alert, NOON + timedelta(seconds=32))
    assert plain(text.headline) == "runs left and right: steps take longer"

    # One alert: it learns its cause and its nodes, one run after the other.
    for second, *found in (
        (60, slow_link("left-02", at_s=5), slow_run("right", at_s=3)),
        (70, slow_link("left-02", at_s=5), slow_link("right-03", at_s=40)),
    ):
        evaluate(second, *found, evaluated=RUNS_TOO)
        alert.refresh_from_db()
        assert (alert.rule, alert.cause) == ("efa_degraded", "efa_latency")
    assert (alert.nodes, alert.runs) == (["left-02", "right-03"], ["left", "right"])
    assert Alert.objects.count() == 1


@pytest.mark.parametrize(
    "other",
    [
        slow_run("right", at_s=45),
        slow_link("right-02", cause="throttle"),
        slow_run("right", cause="seq_imbalance"),
    ],
    ids=["45 seconds later", "a cause of one node", "a cause of one run"],
)
def test_runs_that_slow_down_for_other_reasons_are_two_alerts(
    runs: list[Run], other: Finding
) -> None:
    evaluate(50, slow_run("left"), other, evaluated=RUNS_TOO)

    assert Alert.objects.count() == 2


def test_nodes_of_one_run_with_one_cause_are_one_alert(runs: list[Run]) -> None:
    evaluate(5, slow_link("left-00"), slow_link("left-03", at_s=30))

    alert = Alert.objects.get()
    assert (alert.nodes, alert.runs) == (["left-00", "left-03"], ["left"])


@pytest.mark.parametrize(("at_s", "n_alerts"), [(10, 1), (45, 2)])
def test_nodes_of_one_run_become_slow_together_or_are_two_alerts(
    runs: list[Run], at_s: float, n_alerts: int
) -> None:
    evaluate(
        50,
        slow_link("left-00", cause="throttle"),
        slow_link("left-03", at_s=at_s, cause="throttle"),
    )

    assert Alert.objects.count() == n_alerts


def test_a_run_that_joins_refreshes_the_alert_without_a_page(runs: list[Run]) -> None:
    evaluate(5, slow_link("left-02"), evaluated=of_run("left"))
    n_deliveries = Delivery.objects.count()
    evaluate(9, slow_link("right-02", at_s=3), evaluated=of_run("right"))

    alert = Alert.objects.get()
    assert (alert.nodes, alert.node) == (["left-02", "right-02"], None)
    last = alert.events.last()
    assert last is not None
    assert last.kind == "worsened"
    assert "also affects run right" in last.text
    assert Delivery.objects.count() == n_deliveries


def test_the_alert_stays_open_until_its_last_part_ends(runs: list[Run]) -> None:
    both = [slow_link("left-02"), slow_link("right-02")]
    evaluate(5, *both)
    evaluate(20, both[1], evaluated=of_run("left"))
    evaluate(25, both[1])
    assert Alert.objects.get().nodes == ["left-02", "right-02"]

    evaluate(90, both[1])
    alert = Alert.objects.get()
    assert (alert.nodes, alert.runs, alert.parts) == (["right-02"], ["right"], [])
    assert alert.subject == "node:right-02"
    last = alert.events.last()
    assert last is not None
    assert "continues at right-02 alone" in last.text

    evaluate(91)
    assert not Alert.objects.get().is_open


def test_missing_data_leaves_the_group_unchanged(runs: list[Run]) -> None:
    evaluate(5, slow_link("left-02"), slow_link("right-02"))
    evaluate(200, slow_link("left-02"), evaluated=of_run("left"))
    evaluate(300, evaluated=set())

    assert Alert.objects.get().nodes == ["left-02", "right-02"]


def test_runs_evaluated_in_turn_resolve_the_group(runs: list[Run]) -> None:
    evaluate(5, slow_link("left-02"), slow_link("right-02"))
    evaluate(20, evaluated=of_run("left"))
    assert Alert.objects.get().is_open
    evaluate(21, evaluated=of_run("right"))

    alert = Alert.objects.get()
    assert (alert.is_open, alert.nodes) == (False, ["left-02", "right-02"])


def test_two_alerts_of_one_fault_merge(runs: list[Run]) -> None:
    evaluate(5, slow_link("left-02"), slow_link("right-02", cause="unknown"))
    assert Alert.objects.open().count() == 2
    evaluate(6, slow_link("left-02"), slow_link("right-02"))

    alert = Alert.objects.open().get()
    assert alert.nodes == ["left-02", "right-02"]


def test_two_processes_create_one_group(runs: list[Run]) -> None:
    def evaluate_run(run: str) -> Callable[[], None]:
        return lambda: evaluate(5, slow_link(f"{run}-02"), evaluated=of_run(run))

    at_once(evaluate_run("left"), evaluate_run("right"))

    assert Alert.objects.count() == 1
    evaluate(6, slow_link("left-02"), slow_link("right-02"))

    alert = Alert.objects.get()
    assert alert.nodes == ["left-02", "right-02"]
    assert [event.kind for event in alert.events.all()] == ["fired", "worsened"]


@pytest.mark.parametrize(("n_hit", "n_alerts"), [(3, 1), (1, 2)])
def test_nodes_without_a_rack_are_grouped_only_by_most_of_a_zone(
    runs: list[Run], n_hit: int, n_alerts: int
) -> None:
    Node.objects.update(rack="", zone="us-east-1a")
    hit = [f"{run}-{rank:02}" for run in ("left", "right") for rank in range(n_hit)]
    evaluate(5, *map(slow_link, hit))

    assert Alert.objects.count() == n_alerts


def test_runs_that_together_are_most_of_a_zone_are_one_alert(runs: list[Run]) -> None:
    spec = RunSpec(
        name="calm",
        model="llama2-7b",
        instance="trn1.32xlarge",
        nodes=4,
        tp=8,
        seq_len=4096,
        global_batch=128,
    )
    create_run(spec, started_at=NOON)
    Node.objects.update(rack="", zone="us-east-1a")
    # No two of the three runs have more than 6 of the 12 nodes.
    hit = ["left-00", "left-01", "left-02", "right-00", "right-01", "right-02", "calm-00"]
    evaluate(5, *map(slow_link, hit))
    assert Alert.objects.get().nodes == sorted(hit)


def test_an_urgent_part_makes_the_group_a_page(runs: list[Run]) -> None:
    evaluate(5, slow_link("left-02"), slow_link("right-02"))
    urgent = replace(slow_link("left-02"), rule="allreduce_share", severity="page")
    evaluate(6, urgent, slow_link("right-02"))

    alert = Alert.objects.get()
    assert (alert.rule, alert.severity, alert.nodes) == (
        "allreduce_share",
        Alert.Severity.PAGE,
        ["left-02", "right-02"],
    )


RACK = """
name = "switch"
duration_s = 600
seed = 5
""" + "".join(
    f"""
[[run]]
name = "{name}"
model = "llama2-7b"
instance = "trn1.32xlarge"
nodes = 8
tp = 8
seq_len = 4096
global_batch = 256
compile_s = 0
nodes_per_rack = 2
"""
    for name in ("left", "right")
)


def switch_fault(rack: int, *, start_s: int = 120, run: str = "") -> str:
    of = f'run = "{run}"\n' if run else ""
    return f"""
[[fault]]
kind = "efa_latency"
rack = {rack}
{of}start_s = {start_s}
duration_s = 60
magnitude = 6.0
"""


def firings_of(scenario: str) -> list[Firing]:
    return list(play_scenario(load_scenario(scenario)).firings)


def test_a_drill_of_one_switch_is_one_alert(db: None) -> None:
    [firing] = firings_of(RACK + switch_fault(1))

    assert sorted(firing.accused) == ["left-02", "left-03", "right-02", "right-03"]
    assert firing.accused_runs == ("left", "right")
    assert firing.resolved_s is not None


def test_a_drill_of_two_switches_names_the_nodes_behind_both(db: None) -> None:
    faults = switch_fault(1, run="left") + switch_fault(3, run="right")
    firings = firings_of(RACK + faults)

    # Both begin in the same second, with the same cause: one alert, or one of each.
    assert len(firings) <= 2
    accused = sorted(node for each in firings for node in each.accused)
    assert accused == ["left-02", "left-03", "right-06", "right-07"]
