"""Charts of an incident: stored seconds, a window of them, an alert in its earlier state."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from fleet.charts.alerts import alert_window
from fleet.charts.frozen import freeze, incident_figure
from fleet.charts.windows import Window
from fleet.models import Alert
from telemetry.store.hot import HotStore
from tests.helpers import NOON, NOON_S, block, steps

Make = Callable[..., Alert]
LATER = NOON + timedelta(hours=5)


@pytest.fixture
def kept(hot: HotStore, make: Make) -> Alert:
    """Freeze an alert of two minutes, then let the seconds be forgotten."""
    hot.append(block(tick=tick) for tick in range(NOON_S - 300, NOON_S + 240))
    hot.append_steps(steps(n_steps=200, ended_at_s=NOON_S - 200, compute_s=2.0))
    alert = make(resolved_at=NOON + timedelta(seconds=120), evidence={"share_ratio": 0.3})
    freeze(hot, alert, now=NOON + timedelta(seconds=240))
    return alert


def drawn(hot: HotStore, alert: Alert, window: Window, *, at: str = "") -> dict[str, object]:
    figure = incident_figure(hot, alert, "culprit", window, at=at, now=LATER)
    assert isinstance(figure, bytes)
    found: dict[str, object] = msgspec.json.decode(figure)
    return found


def test_its_own_window_is_drawn_from_what_was_kept(hot: HotStore, kept: Alert) -> None:
    figure = drawn(hot, kept, alert_window(kept, now=LATER))

    assert len(figure["t"]) > 500  # type: ignore[arg-type]


def test_a_window_inside_is_cut_out_by_the_second(hot: HotStore, kept: Alert) -> None:
    figure = drawn(hot, kept, Window(NOON_S - 10, NOON_S + 20), at=str(NOON_S + 20))

    assert figure["t"] == list(range(NOON_S - 10, NOON_S + 21))
    assert {len(line["values"]) for line in figure["series"]} == {31}  # type: ignore[attr-defined]


def test_an_alert_with_another_culprit_at_that_time_is_drawn_again(
    hot: HotStore, kept: Alert
) -> None:
    reported = kept.snapshot | {"cause": "hbm_slow", "device": 3}
    kept.events.create(at=NOON, kind="fired", snapshot=reported)
    window = Window(NOON_S - 10, NOON_S + 20)
    figure = incident_figure(hot, kept, "culprit", window, at=str(NOON_S + 20), now=LATER)

    assert not isinstance(figure, bytes)


def test_a_chart_it_does_not_have_is_none(hot: HotStore, kept: Alert) -> None:
    window = Window(NOON_S, NOON_S + 1)

    assert incident_figure(hot, kept, "missing", window, at="", now=LATER) is None
