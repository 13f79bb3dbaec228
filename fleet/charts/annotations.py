"""What was said to have happened, as marks on a run's charts over time."""

from dataclasses import replace
from datetime import UTC, datetime

from fleet.charts.figures import Figure
from fleet.charts.windows import Window
from fleet.models import Annotation, Run

MOST = 40


def annotated(figure: Figure, run: Run, window: Window) -> Figure:
    """Return a chart with the annotations of its run; bars have no moments to mark."""
    if figure.labels:
        return figure
    start, end = (datetime.fromtimestamp(second, UTC) for second in (window.start, window.end))
    said = Annotation.objects.within(start, end).about(run=run.pk, node=None)
    events = [
        (note.at.timestamp(), f"{note.kind}: {note.text}", note.kind)
        for note in said.order_by("-at")[:MOST]
    ]
    return replace(figure, events=events[::-1])
