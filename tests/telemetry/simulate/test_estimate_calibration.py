"""The physics and published training figures: one fitted number per chip and precision."""

from dataclasses import replace

import numpy as np
import pytest

from telemetry.simulate.constants import CHIPS
from tests.telemetry.simulate.published import TrainingRow, training_rows

ROWS = training_rows()
GROUPS = {
    ("Trainium1", "bf16"): ("c1", "c2", "c3", "c4", "c5"),
    ("Trainium2", "bf16"): ("c6",),
    ("H100", "bf16"): ("c7", "c8", "c9"),
    ("H100", "fp8"): ("c10",),
}


def fitted(chip: str, precision: str, rows: list[TrainingRow]) -> float:
    """Return the matmul ratio with the least squared error of the logarithm."""
    ratios = np.arange(0.2, 0.9, 0.005)
    return float(min(ratios, key=lambda ratio: misfit(chip, precision, ratio, rows)))


def misfit(chip: str, precision: str, ratio: float, rows: list[TrainingRow]) -> float:
    constants = CHIPS[chip]
    changed = replace(constants, matmul_ratio={**constants.matmul_ratio, precision: ratio})
    return float(sum(np.log(row.speed_ratio(changed)) ** 2 for row in rows))


def test_the_median_is_within_ten_percent_and_nine_of_ten_within_twenty_five() -> None:
    errors = [abs(row.speed_ratio() - 1) for row in ROWS.values()]

    assert np.median(errors) <= 0.10
    assert np.quantile(errors, 0.9) <= 0.25


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_no_row_is_off_by_more_than_releases_differ(row: TrainingRow) -> None:
    assert row.speed_ratio() == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize(("chip", "precision"), GROUPS)
def test_the_constant_is_the_one_that_fits_its_rows(chip: str, precision: str) -> None:
    best = fitted(chip, precision, [ROWS[name] for name in GROUPS[chip, precision]])

    assert CHIPS[chip].matmul_ratio[precision] == pytest.approx(best, abs=0.015)


@pytest.mark.parametrize("left_out", [*GROUPS["Trainium1", "bf16"], *GROUPS["H100", "bf16"]])
def test_a_row_left_out_of_the_fit_is_predicted_all_the_same(left_out: str) -> None:
    group = next(group for group in GROUPS if left_out in GROUPS[group])
    others = [ROWS[name] for name in GROUPS[group] if name != left_out]
    chip, precision = group
    constants = CHIPS[chip]
    ratio = fitted(chip, precision, others)
    changed = replace(constants, matmul_ratio={**constants.matmul_ratio, precision: ratio})

    assert ROWS[left_out].speed_ratio(changed) == pytest.approx(1, abs=0.12)
