"""Collectives compared with published tables of nccom-test and nccl-tests."""

import numpy as np
import pytest

from tests.telemetry.simulate.published import CollectiveRow, collective_rows

ROWS = collective_rows()


def errors(table: str) -> list[float]:
    return [abs(row.error_ratio) for row in ROWS if row.table == table]


def test_half_of_all_rows_are_within_ten_percent_and_nine_of_ten_within_twenty_five() -> None:
    found = [abs(row.error_ratio) for row in ROWS]

    assert np.median(found) <= 0.10
    assert np.quantile(found, 0.9) <= 0.25


@pytest.mark.parametrize(
    ("table", "most"), [("i", 0.02), ("ii", 0.06), ("iii", 0.15), ("iv", 0.05)]
)
def test_each_table_has_its_median(table: str, most: float) -> None:
    assert np.median(errors(table)) <= most


@pytest.mark.parametrize("row", [r for r in ROWS if r.table in {"i", "ii"}], ids=lambda r: r.name)
def test_every_row_of_the_main_tables_holds(row: CollectiveRow) -> None:
    assert row.predicted_s == pytest.approx(row.published_s, rel=0.16)
