"""Charts of an alert: chosen and drawn by its evidence, for any rule."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fleet.alerts.record import Observation
from fleet.charts.alerts import alert_figure, alert_window, charts_of, leads_of
from fleet.charts.figures import Chart
from fleet.charts.runs import PER_STEP
from fleet.models import Alert, Node, Run
from telemetry.detect import RULES
from telemetry.store.hot import HotStore
from tests.helpers import NOON, NOON_S, block, steps

Make = Callable[..., Alert]


@pytest.fixture
def make(run: Run, limping: Node, steady: Node) -> Make:
    def make(**fields: Any) -> Alert:
        usual: dict[str, Any] = {
            "rule": "core_slow",
            "cause": "slow_core",
            "severity": Alert.Severity.PAGE,
            "subject": "node:limping",
            "run": run,
            "node": limping,
            "device": 7,
            "score": 1.2,
            "onset_at": NOON,
            "fired_at": NOON,
            "last_seen_at": NOON,
        }
        return Alert.objects.create(**usual | fields)

    return make


def drawn(hot: HotStore, alert: Alert, chart: str) -> Chart:
    figure = alert_figure(hot, alert, chart, alert_window(alert, now=NOON), now=NOON)
    assert isinstance(figure, Chart)
    return figure


def names(alert: Alert) -> list[str]:
    return [chart.name for chart in charts_of(alert)]


def test_a_node_s_own_metric_comes_first_and_a_run_s_steps(make: Make) -> None:
    of_run = make(rule="allreduce_share", subject="run:llama")

    assert names(make())[:2] == ["culprit", "phases"]
    assert names(of_run)[:2] == ["phases", "culprit"]


@pytest.mark.parametrize(
    ("evidence", "node", "said"),
    [
        ({"kind": "transferring", "wait_ratio": 0.1, "transfer_ratio": 0.2}, None, "transfer"),
        # Whole steps were compared; some of them have been traced, or none.
        ({"kind": "step", "wait_ratio": 0.23, "transfer_ratio": 0.0}, "limping", "for limping"),
        ({"kind": "step", "wait_ratio": 0.02, "transfer_ratio": 0.0}, None, ""),
        ({"kind": "step", "wait_ratio": None, "transfer_ratio": None}, None, ""),
    ],
)
def test_waits_are_captioned_by_what_was_measured(
    make: Make, evidence: dict[str, Any], node: str | None, said: str
) -> None:
    of_run = {"rule": "step_slow", "subject": "run:llama", "cause": "slow_compute"}
    alert = make(**of_run, evidence=evidence, **({} if node else {"node": None, "device": None}))
    (workers,) = (chart.help for chart in charts_of(alert) if chart.name == "workers")

    assert said in workers
    assert (workers == PER_STEP) == (not said)


@pytest.mark.parametrize("rule", [*RULES, "a_new_rule"])
def test_every_rule_can_be_drawn(hot: HotStore, make: Make, rule: str) -> None:
    hot.append(block(tick=tick) for tick in range(NOON_S - 30, NOON_S + 1))
    metrics = ("vcpu_usage_ratio", "execution_errors_per_s", "no_such_metric")
    charts = [{"metric": metric, "node": "limping", "device": None} for metric in metrics]
    alert = make(rule=rule, cause=rule, device=None, evidence={"charts": charts})

    for chart in charts_of(alert):
        assert drawn(hot, alert, chart.name).shade
    assert names(alert)[:2] == ["culprit", "culprit-2"]


def test_the_level_of_the_peers_and_the_threshold_are_drawn(hot: HotStore, make: Make) -> None:
    culprit = {
        "metric": "core_utilization_ratio",
        "value": 0.95,
        "peers_median": 0.62,
        "limit": 0.8,
        "unit": "ratio",
    }
    hot.append(block(tick=tick) for tick in range(NOON_S - 30, NOON_S + 1))
    marks = drawn(hot, make(evidence={"culprit": culprit}), "culprit").marks

    assert [(level, kind) for level, _, kind in marks] == [(0.62, "peers"), (0.8, "threshold")]


def test_a_record_is_drawn_with_the_figures_of_its_text(hot: HotStore, make: Make) -> None:
    hot.append(block(tick=tick) for tick in range(NOON_S - 30, NOON_S + 1))

    def seen(value: float, peers: float, **figures: float) -> dict[str, Any]:
        figure = {"metric": "core_utilization_ratio", "unit": "ratio"}
        return figures | {"culprit": figure | {"value": value, "peers_median": peers}}

    place = ("core_slow", "node:limping", "page", "slow_core", "limping", 7)
    figures = seen(0.9, 0.5, step_s=3.4)
    worst = Observation(NOON_S - 5, NOON_S - 20, *place, 1.0, 1.0, figures).json()
    alert = make(evidence=seen(0.7, 0.6), worst=worst, latest=worst)
    is_open = drawn(hot, alert, "culprit")
    alert.resolved_at = NOON
    culprit, phases = (drawn(hot, alert, name) for name in ("culprit", "phases"))

    assert [level for level, *_ in culprit.marks] == [0.5]
    assert (culprit.rest, phases.rest) == ((NOON_S - 5, 0.9), (NOON_S - 5, 3.4))
    assert is_open.rest is None


def test_a_whole_node_is_drawn_next_to_the_others_of_its_run(hot: HotStore, make: Make) -> None:
    hot.append(block(tick=tick) for tick in range(NOON_S - 30, NOON_S + 1))
    charts = [{"metric": "vcpu_usage_ratio", "node": "limping", "device": None}]
    figure = drawn(hot, make(device=None, evidence={"charts": charts}), "culprit")

    assert {line.label: line.role for line in figure.lines} == {
        "steady": "muted",
        "limping": "bad",
    }


def test_a_slow_checkpoint_shows_the_longest_of_each_worker(
    hot: HotStore, make: Make, run: Run
) -> None:
    Run.objects.update(n_nodes=2)
    run.refresh_from_db()
    hot.append_steps(steps(n_steps=5, ended_at_s=NOON_S - 20, compute_s=1.0))
    saved = [9.0, 12.0]
    hot.append_steps(
        steps(n_steps=1, first=6, ended_at_s=NOON_S + 8, compute_s=1.0, checkpoint_s=saved)
    )
    hot.append_steps(steps(n_steps=20, first=7, ended_at_s=NOON_S + 9, compute_s=1.0))
    alert = make(
        rule="checkpoint_slow", cause="checkpoint_slow", subject="run:llama", run=run, node=None
    )
    later = NOON.replace(minute=2)
    figure = alert_figure(hot, alert, "workers", alert_window(alert, now=later), now=later)

    assert isinstance(figure, Chart)
    np.testing.assert_allclose(figure.lines[0].values, saved)


@pytest.mark.parametrize(
    ("rule", "cause"), [("step_slow", "slow_compute"), ("input_stall", "input_stall")]
)
def test_own_time_is_drawn_where_the_text_names_it(
    hot: HotStore, make: Make, run: Run, rule: str, cause: str
) -> None:
    Run.objects.update(n_nodes=2)
    run.refresh_from_db()
    for i, own_s in enumerate(([2.0, 2.0], [2.0, 3.1], [2.0, 2.0])):
        at_s = NOON_S + 30 * i
        hot.append_steps(
            steps(n_steps=8, first=1 + 8 * i, ended_at_s=at_s, compute_s=own_s, transfer_s=0.2)
        )
    figure = {"metric": "own_s", "value": 3.1, "peers_median": 2.0, "unit": "s"}
    alert = make(
        rule=rule,
        cause=cause,
        subject="run:llama",
        run=run,
        evidence={"kind": "waiting", "culprit": figure},
    )
    later = NOON.replace(minute=2)
    chart = alert_figure(hot, alert, "workers", alert_window(alert, now=later), now=later)

    (title,) = (each.title for each in charts_of(alert) if each.name == "workers")
    assert title == "Own time by worker"
    assert isinstance(chart, Chart)
    drawn_s = dict(zip(chart.labels, chart.lines[0].values, strict=True))
    assert drawn_s == pytest.approx({"limping": 3.1, "steady": 2.0})
    assert chart.culprit == (list(chart.labels).index("limping"), "culprit")


def test_own_time_over_time_shows_the_culprit_next_to_its_peers(
    hot: HotStore, make: Make, run: Run
) -> None:
    Run.objects.update(n_nodes=2)
    run.refresh_from_db()
    slow = steps(n_steps=8, ended_at_s=NOON_S, compute_s=[2.0, 3.1], transfer_s=0.2)
    hot.append_steps(slow)
    figure = {"metric": "own_s", "value": 3.1, "peers_median": 2.0, "unit": "s"}
    alert = make(
        rule="step_slow",
        cause="slow_compute",
        subject="run:llama",
        run=run,
        evidence={"kind": "waiting", "culprit": figure},
    )
    later = NOON.replace(minute=2)
    chart = alert_figure(hot, alert, "own-time", alert_window(alert, now=later), now=later)

    # It is what a message shows, too: the first chart over time.
    assert names(alert)[0] == "own-time"
    assert [each.name for each in leads_of(charts_of(alert))] == ["own-time", "phases"]
    assert isinstance(chart, Chart)
    drawn_s = {line.label: line.values for line in chart.lines}
    assert drawn_s["limping"] == pytest.approx(3.1)
    assert drawn_s["its peer"] == pytest.approx(2.0)


def test_hosts_stand_side_by_side_where_that_shows_who_is_stuck(hot: HotStore, make: Make) -> None:
    alert = make(rule="hang", cause="hang", evidence={"host_by_node": {"a": 0.1, "b": 0.01}})

    assert list(drawn(hot, alert, "by-node").labels) == ["a", "b"]
