"""Chart notes on resolution and data source."""

import numpy as np
import pytest

from fleet.charts.figures import Chart, Heat, reach_of, reach_text, table_of
from telemetry.series import EVERY_STEP, SeriesSource
from tests.helpers import NOON_S

LIVE = SeriesSource(NOON_S, 1, "hot")
MINUTES = SeriesSource(NOON_S - 3600, 60, "durable")
MERGED = SeriesSource(NOON_S - 9 * 3600, 600, "durable", has_all_parts=False)
OLD = SeriesSource(NOON_S - 9 * 3600, 300, "long term")
UNAVAILABLE = SeriesSource(NOON_S - 9 * 3600, 300, "long term", "it does not answer")


@pytest.mark.parametrize(
    "stretches", [(), (LIVE,), (MINUTES,), (SeriesSource(0, EVERY_STEP, "durable"),)]
)
def test_a_complete_series_has_no_note(
    stretches: tuple[SeriesSource, ...],
) -> None:
    assert reach_of(stretches) == {}
    drawn = Chart("ratio", stretches=stretches).as_json()
    assert "reach" not in drawn
    assert table_of(drawn).reach == ""


@pytest.mark.parametrize(
    ("stretches", "text"),
    [
        ((SeriesSource(0, 600, "durable"),), "10 min"),
        (
            (MERGED, SeriesSource(NOON_S - 3600, 600, "durable")),
            "10 min · 10 min, similar parts merged before 2026-03-02 11:00 UTC",
        ),
        ((OLD,), "5 min, from the long-term store"),
        (
            (OLD, MINUTES, LIVE),
            "1 s · 1 min before 2026-03-02 12:00 UTC"
            " · 5 min before 2026-03-02 11:00 UTC, from the long-term store",
        ),
        (
            (UNAVAILABLE, MINUTES),
            "1 min · nothing before 2026-03-02 11:00 UTC: it does not answer",
        ),
        ((UNAVAILABLE,), "nothing: it does not answer"),
    ],
)
def test_parts_are_reported_the_newest_first(
    stretches: tuple[SeriesSource, ...], text: str
) -> None:
    assert reach_text(reach_of(stretches)["reach"]) == text


def test_a_table_states_it_too() -> None:
    drawn = Chart("ratio", stretches=(OLD, MINUTES)).as_json()

    assert table_of(drawn).reach.startswith("1 min · 5 min before")


def test_a_heat_map_states_it_too() -> None:
    heat = Heat(np.zeros(2), ["core 0"], np.zeros((1, 2)), stretches=(OLD,))

    assert heat.as_json()["reach"][0]["tier"] == "long term"
