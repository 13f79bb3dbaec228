"""Chart tables: units, a dash for gaps, readable length."""

import numpy as np

from fleet.charts.figures import MOST_ROWS, Chart, ChartLine, Heat, table_of

NOON_S = 1772452800


def test_rows_are_newest_first_with_dashes_for_gaps() -> None:
    lines = [ChartLine("wait", np.array([0.01, np.nan])), ChartLine("all", np.array([0.25, 0.3]))]
    drawn = Chart("ratio", lines, np.array([NOON_S, NOON_S + 1])).as_json()
    drawn["series"][0]["values"][1] = None

    table = table_of(drawn)

    assert table.heads == ["UTC", "wait", "all"]
    assert table.rows == [
        ["2026-03-02 12:00:01", "\u2013", "30.0\u202f%"],
        ["2026-03-02 12:00:00", "1.0\u202f%", "25.0\u202f%"],
    ]


def test_bars_stand_in_their_own_order() -> None:
    drawn = Chart("s", [ChartLine("wait", np.array([0.5, 2.0]))], labels=["a", "b"]).as_json()

    assert table_of(drawn).rows == [["a", "500\u202fms"], ["b", "2.00\u202fs"]]


def test_a_heat_map_has_a_column_per_part() -> None:
    heat = Heat(np.array([NOON_S]), ["core 0", "core 1"], np.array([[0.5], [1.0]]))

    table = table_of(heat.as_json())

    assert table.heads == ["UTC", "core 0", "core 1"]
    assert table.rows[0][1:] == ["50.0\u202f%", "100.0\u202f%"]


def test_a_long_table_is_thinned_from_its_newest_row_on() -> None:
    t_s = NOON_S + np.arange(1000)
    table = table_of(Chart("s", [ChartLine("x", np.ones(1000))], t_s).as_json())

    assert len(table.rows) <= MOST_ROWS
    assert table.rows[0][0] == "2026-03-02 12:16:39"


def test_no_data_is_no_row() -> None:
    assert table_of(Chart("s", []).as_json()).rows == []
