"""What was said to have happened is drawn on the charts of its run, and on no other's."""

from datetime import timedelta

import numpy as np

from fleet.charts.annotations import annotated
from fleet.charts.figures import Figure, Line
from fleet.charts.windows import Window
from fleet.models import Annotation, Node, Run
from tests.parts import NOON, NOON_S

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
    figure = annotated(Figure("s", t_s=np.array([NOON_S])), run, WINDOW)

    assert [event[1] for event in figure.events] == ["deploy: firmware", "deploy: loader"]
    assert figure.as_json()["events"][1] == [NOON_S, "deploy: loader", "deploy"]


def test_bars_have_no_moments_to_mark(run: Run) -> None:
    Annotation.objects.create(at=NOON, kind="note", text="loader", run=run)
    bars = Figure("s", [Line("waiting", np.array([1.0]))], labels=["steady"])

    assert annotated(bars, run, WINDOW).events == ()
