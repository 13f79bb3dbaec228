"""docs/physics.md shows the model's current predictions and errors."""

import re
from pathlib import Path

import numpy as np
import pytest

from telemetry.simulate.constants import CHIPS, STEP_FABRICS
from tests.telemetry.simulate.published import collective_rows, training_rows

TEXT = (Path(__file__).parents[3] / "docs/physics.md").read_text().replace("\u2212", "-")
ROWS = training_rows()
COLLECTIVES = collective_rows()
COLUMNS = ("Trainium1", "Trainium2", "A100-40GB", "H100")


def cells(start: str) -> list[str]:
    line = next(line for line in TEXT.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("name", ROWS)
def test_a_training_row(name: str) -> None:
    _, _, published, predicted, error, _ = cells(f"{name} ")
    row = ROWS[name]

    assert float(published.split()[0]) == pytest.approx(row.published)
    assert float(predicted) == pytest.approx(row.predicted(), rel=0.005)
    assert float(error.split()[0]) / 100 == pytest.approx(row.speed_ratio() - 1, abs=0.002)


def test_the_summary_of_the_training_rows() -> None:
    found = re.search(r"Median error ([\d.]+) %, 90th percentile ([\d.]+) %", TEXT)
    errors = [abs(row.speed_ratio() - 1) for row in ROWS.values()]

    assert found is not None
    assert float(found[1]) == pytest.approx(100 * np.median(errors), abs=0.1)
    assert float(found[2]) == pytest.approx(100 * np.quantile(errors, 0.9), abs=0.1)


@pytest.mark.parametrize("table", ["i", "ii", "iii", "iv", "all"])
def test_a_table_of_collectives(table: str) -> None:
    _, n_rows, median, tail = cells("all" if table == "all" else f"({table}) ")
    errors = [abs(row.error_ratio) for row in COLLECTIVES if table in {"all", row.table}]

    assert int(n_rows) == len(errors)
    assert float(median.split()[0]) == pytest.approx(100 * np.median(errors), abs=0.1)
    assert float(tail.split()[0]) == pytest.approx(100 * np.quantile(errors, 0.9), abs=0.1)


def test_the_fitted_constants() -> None:
    printed = [float(cell) for cell in cells("`matmul_ratio` bf16")[1:5]]

    assert printed == [CHIPS[chip].matmul_ratio["bf16"] for chip in COLUMNS]


@pytest.mark.parametrize("name", ["link_ratio", "network_ratio", "unhidden_ratio"])
def test_a_constant_of_the_fabrics(name: str) -> None:
    printed = [float(cell) for cell in cells(f"`{name}`")[1:5]]

    assert printed == [getattr(STEP_FABRICS[chip], name) for chip in COLUMNS]
