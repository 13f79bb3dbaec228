"""What was said to have happened, as marks on a run's charts over time."""

from dataclasses import replace

from fleet.charts.figures import Figure
from fleet.charts.windows import Window
from fleet.models import Annotation, Run
from fleet.models.annotation import moment_of

MOST = 40


def annotated(figure: Figure, run: Run, window: Window) -> Figure:
    """Return a chart with the annotations of its run; bars have no moments to mark."""
    if figure.labels:
        return figure
    within = Annotation.objects.within(moment_of(window.start), moment_of(window.end))
    said = within.about(run=run.pk, node=None)
    events = [
        (note.at.timestamp(), f"{note.kind}: {note.text}", note.kind)
        for note in said.order_by("-at")[:MOST]
    ]
    return replace(figure, events=events[::-1])
