"""The charts of a run that was read from a log: pace, throughput and loss."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fleet.charts.figures import Chart, ChartLine, thinned
from fleet.charts.runs import NOT_FINITE
from fleet.charts.windows import Window
from fleet.models import ReadLog
from fleet.runs.imported import Curves, unpack_curves

SLACK_S = 2.0
SLACK_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class LogChart:
    name: str
    title: str
    help: str
    draw: Callable[[Curves], tuple[str, ChartLine]]
    is_whole: bool = False
    kind: str = "lines"
    query: str = ""  # of the address of its data; templates add it


def pace(curves: Curves) -> tuple[str, ChartLine]:
    return "s", ChartLine("step", curves["step_s"])


def throughput(curves: Curves) -> tuple[str, ChartLine]:
    """Draw tokens per second, or sequences where the log has no tokens."""
    if np.isfinite(curves["tokens_per_s"]).any():
        return "per_s", ChartLine("tokens", curves["tokens_per_s"])
    return "per_s", ChartLine("sequences", curves["seq_per_s"])


def loss(curves: Curves) -> tuple[str, ChartLine]:
    return "count", ChartLine("loss", curves["loss"])


_ALL = (
    LogChart("pace", "Step time", "seconds per step, as logged", pace, is_whole=True),
    LogChart("throughput", "Throughput", "per second, as logged", throughput),
    LogChart("loss", "Loss", "of training, as logged", loss),
)
LOG_CHARTS: Mapping[str, LogChart] = {chart.name: chart for chart in _ALL}


def charts_of(log: ReadLog) -> list[LogChart]:
    curves = unpack_curves(bytes(log.curves))
    return [each for each in _ALL if np.isfinite(each.draw(curves)[1].values).any()]


def log_figure(log: ReadLog, chart: str, window: Window) -> Chart:
    """Draw one chart, with NaN where much more time passed than the steps between take."""
    curves = unpack_curves(bytes(log.curves))
    unit, line = LOG_CHARTS[chart].draw(curves)
    rows = (curves["ended_at_s"] >= window.start) & (curves["ended_at_s"] < window.end)
    step, step_s = curves["step"][rows], curves["step_s"][rows]
    t_s, values = thinned(curves["ended_at_s"][rows], line.values[rows])
    if len(t_s) == len(step) > 1:
        expected_s = np.diff(step) * np.nan_to_num(step_s[1:], nan=np.inf)
        before = np.flatnonzero(np.diff(t_s) > SLACK_RATIO * expected_s + SLACK_S) + 1
        holes = t_s[before - 1] + SLACK_S / 2
        t_s, values = np.insert(t_s, before, holes), np.insert(values, before, np.nan)
    span = (window.start, window.end)
    # The last finite loss is not the one at the end.
    not_finite = log.details.get("not_finite", ())
    is_bad = any(each["name"] == chart and each["is_last"] for each in not_finite)
    return Chart(
        unit,
        [ChartLine(line.label, values)],
        t_s,
        window=span,
        has_gaps=True,
        missing=NOT_FINITE if is_bad else "",
    )
