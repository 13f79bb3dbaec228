"""An alert's charts as a table of figures: what each line was before the onset, and during it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from fleet.charts.alerts import alert_figure, alert_window, charts_of
from fleet.charts.figures import Figure, Line
from fleet.models import Alert
from fleet.words.wording import figure as written
from telemetry.blocks import FloatArray
from telemetry.store.source import Source

NEGLIGIBLE_RATIO = 1e-3


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a chart in two figures, written with their unit."""

    chart: str
    line: str
    before: str
    during: str


def figures_of(source: Source, alert: Alert, *, now: datetime) -> Sequence[Row]:
    """Return the medians of the lines that matter: phases, shares, the culprit and its peers."""
    window, found = alert_window(alert, now=now), []
    for chart in charts_of(alert):
        figure = alert_figure(source, alert, chart.name, window, now=now)
        if isinstance(figure, Figure) and len(figure.t_s):
            end_s = (alert.resolved_at or now).timestamp()
            found += _rows(chart.title, figure, alert.onset_at.timestamp(), end_s)
    return found


def _rows(title: str, figure: Figure, onset_s: float, end_s: float) -> list[Row]:
    t_s = np.asarray(figure.t_s, float)
    before, during = t_s < onset_s, (t_s >= onset_s) & (t_s <= end_s)
    lines = [line for line in _told(figure) if np.isfinite(line.values).any()]
    medians = [
        (line, _median(line.values[before]), _median(line.values[during])) for line in lines
    ]
    largest = max((abs(v) for _, *pair in medians for v in pair if v is not None), default=0.0)
    return [
        Row(title, line.label, written(a, figure.unit), written(b, figure.unit))
        for line, a, b in medians
        if max(abs(a or 0.0), abs(b or 0.0)) > NEGLIGIBLE_RATIO * largest
    ]


def _told(figure: Figure) -> Sequence[Line]:
    """Return the lines to tell of: all but the peers, and those as one."""
    muted = [line for line in figure.lines if line.role == "muted"]
    others = [line for line in figure.lines if line.role != "muted"]
    if not muted:
        return others
    together = np.stack([line.values for line in muted])
    known = np.isfinite(together).any(axis=0)
    median = np.full(together.shape[1], np.nan)
    median[known] = np.nanmedian(together[:, known], axis=0)
    return [*others, Line(f"median of {len(muted)} peers", median)]


def _median(values: FloatArray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else None
