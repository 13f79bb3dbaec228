"""docs/physics.md shows the model's current predictions and errors."""

from pathlib import Path

import numpy as np
import pytest

from telemetry.simulate.constants import CHIPS, STEP_FABRICS
from tests.telemetry.simulate.published import collective_rows, training_rows

TEXT = (Path(__file__).parents[3] / "docs/physics.md").read_text()
ROWS = training_rows()
COLLECTIVES = collective_rows()
COLUMNS = ("Trainium1", "Trainium2", "A100-40GB", "H100")


def cells(start: str) -> list[str]:
    line = next(line for line in TEXT.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_row_is_in_the_table() -> None:
    """``python -m tests.telemetry.simulate.published`` prints the lines."""
    missing = [row.line for row in ROWS.values() if row.line not in TEXT]

    assert not missing, "\n".join(missing)


FAMILIES = {
    "Trainium1": "Trainium1",
    "Trainium2": "Trainium2",
    "A100": "A100",
    "H100, H200": "H",
    "together": "",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_summary_of_the_training_rows(family: str) -> None:
    printed = cells(f"{family} | ")[1:]
    figures = []
    for use in ("check", "fit"):
        errors = [
            100 * abs(row.error_ratio)
            for row in ROWS.values()
            if row.use == use and row.group[0].startswith(FAMILIES[family])
        ]
        figures += [len(errors), np.median(errors), np.quantile(errors, 0.9)]

    found = [float(cell.split()[0]) for cell in printed]
    assert found == pytest.approx(figures, abs=0.1)


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

    printed = [float(cell) for cell in cells("`attention`")[1:5]]
    assert printed == [CHIPS[chip].attention for chip in COLUMNS]


@pytest.mark.parametrize("name", ["link_ratio", "network_ratio", "unhidden_ratio"])
def test_a_constant_of_the_fabrics(name: str) -> None:
    printed = [float(cell) for cell in cells(f"`{name}`")[1:5]]

    assert printed == [getattr(STEP_FABRICS[chip], name) for chip in COLUMNS]
