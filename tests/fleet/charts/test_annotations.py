"""Annotations appear on the charts of their subject, and on no others."""

from datetime import timedelta

import msgspec
import numpy as np

from fleet.charts.figures import Chart, ChartLine, Event, Heat
from fleet.charts.markers import marked
from fleet.charts.windows import Window
from fleet.models import Annotation, Node, Run
from tests.helpers import NOON, NOON_S

WINDOW = Window(NOON_S - 600, NOON_S + 600)


def test_it_marks_what_happened_to_the_run_and_to_everything(run: Run, steady: Node) -> None:
    for text, about, minutes in (
        ("loader", {"run": run}, 0),
        ("firmware", {}, -5),
        ("one node", {"node": steady}, 0),
        ("yesterday", {"run": run}, -60 * 24),
    ):
        at = NOON + timedelta(minutes=minutes)
        Annotation.objects.create(at=at, kind="deploy", text=text, **about)
    figure = marked(Chart("s", t_s=np.array([NOON_S])), WINDOW, run=run.pk)

    assert [event[1] for event in figure.events] == ["deploy: firmware", "deploy: loader"]
    assert figure.as_json()["events"][1][:3] == [NOON_S, "deploy: loader", "deploy"]


def test_bars_have_no_events_to_mark(run: Run) -> None:
    Annotation.objects.create(at=NOON, kind="note", text="loader", run=run)
    bars = Chart("s", [ChartLine("waiting", np.array([1.0]))], labels=["steady"])

    assert marked(bars, WINDOW, run=run.pk).events == ()
    frozen = msgspec.json.encode(bars.as_json())
    assert marked(frozen, WINDOW, run=run.pk) == frozen


def test_a_heat_map_has_no_annotations(run: Run) -> None:
    Annotation.objects.create(at=NOON, kind="note", text="loader", run=run)
    heat = Heat(np.array([NOON_S]), ["core 0"], np.array([[0.5]]))

    assert marked(heat, WINDOW, run=run.pk) is heat


def test_what_is_reported_joins_what_the_chart_has_to_say_itself(run: Run, steady: Node) -> None:
    Annotation.objects.create(at=NOON, kind="note", text="cable", node=steady)
    figure = Chart("s", t_s=np.array([NOON_S]), events=[Event(NOON_S - 5.0, "fired", "alert")])

    assert [event[1] for event in marked(figure, WINDOW, node=steady.pk).events] == [
        "fired",
        "note: cable",
    ]
    frozen = marked(msgspec.json.encode(figure.as_json()), WINDOW, node=steady.pk)
    assert isinstance(frozen, bytes)
    assert [event[1] for event in msgspec.json.decode(frozen)["events"]] == [
        "fired",
        "note: cable",
    ]
