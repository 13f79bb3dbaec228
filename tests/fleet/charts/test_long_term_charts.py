"""Charts of alerts and drills older than the database come from the long-term store."""

from datetime import timedelta

import numpy as np
import pytest

from fleet.charts.alerts import alert_figure, alert_window
from fleet.charts.figures import Chart, Heat
from fleet.models import Alert, InjectedFault, Node, Run
from fleet.simulation.drill_results import drill_figure, drill_window
from telemetry.blocks import FloatArray, IntArray
from telemetry.store import durable
from telemetry.store.chunks import ENDED, N_COLUMNS
from telemetry.store.hot import HotStore
from telemetry.store.rollups import coarser
from tests.alerts import straggling
from tests.helpers import NOON, block

AGO = NOON - timedelta(days=100)
BUSY_RATIO, STEP_S = 0.75, 1.5
MINUTE_S = 60


class Archive:
    """A long-term store that remembers the same of everything, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def node_minutes(
        self, node: str, metric: str, *, start: int, end: int, every_s: int
    ) -> tuple[IntArray, FloatArray]:
        self.asked.append(f"{metric} of {node}")
        t_s = np.arange(start, end, every_s)
        return t_s, np.full((len(t_s), 3 * 8), BUSY_RATIO)

    def run_minutes(self, run: str, *, start: int, end: int, every_s: int) -> FloatArray:
        self.asked.append(f"steps of {run}")
        ends = np.arange(start, end, every_s) + every_s
        rows = np.full((len(ends), N_COLUMNS), STEP_S)
        rows[:, ENDED] = ends
        return rows


@pytest.fixture
def archive(hot: HotStore, run: Run, steady: Node) -> Archive:
    """Give a long-term store, and a database with recent data only."""
    hot.append([block(tick=int(NOON.timestamp()) + i) for i in range(120)])
    durable.write_rollups(
        hot.window("llama", (), start=int(NOON.timestamp()), end=int(NOON.timestamp()) + 59)
    )
    return Archive()


@pytest.fixture
def alert(run: Run, limping: Node) -> Alert:
    """Give an alert of which the database has nothing any more but its row."""
    return straggling(
        run, limping, at=AGO, cause="slow_core", device=1, resolved_at=AGO + timedelta(minutes=5)
    )


def tiers(figure: Chart | Heat | None) -> list[str]:
    """Return the tiers that a chart names as its sources."""
    assert figure is not None
    return [stretch.tier for stretch in figure.stretches]


@pytest.mark.parametrize("chart", ["phases", "share", "culprit"])
def test_an_old_alert_is_drawn_from_there(
    hot: HotStore, archive: Archive, alert: Alert, chart: str
) -> None:
    window = alert_window(alert, now=NOON)
    without = alert_figure(hot, alert, chart, window, now=NOON)
    figure = alert_figure(hot, alert, chart, window, now=NOON, long_term=archive)

    assert "long term" not in tiers(without)
    assert tiers(figure)[0] == "long term"
    assert archive.asked
    assert isinstance(figure, Chart)
    assert figure.shade


@pytest.mark.parametrize("chart", ["phases", "share", "metric"])
def test_so_is_an_old_drill(
    hot: HotStore, archive: Archive, run: Run, limping: Node, chart: str
) -> None:
    fault = InjectedFault.objects.create(
        run=run,
        node=limping,
        kind="slow_core",
        device=1,
        magnitude=1.5,
        starts_at=AGO,
        ends_at=AGO + timedelta(minutes=5),
    )
    window = drill_window(fault, None, now=NOON)
    figure = drill_figure(hot, fault, None, chart, window, long_term=archive)

    assert tiers(figure)[0] == "long term"
    assert archive.asked


def test_a_metric_that_no_one_ever_reported_is_merged_to_nothing() -> None:
    assert coarser(np.zeros((60, 3, 0)), 30).shape == (2, 3, 0)
