"""The physics and published training figures: every second row is fitted, the others check."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from telemetry.simulate.constants import CHIPS, SPREADS, ChipConstants
from tests.telemetry.simulate.published import TrainingRow, training_rows

ROWS = list(training_rows().values())
CHECKS = [row for row in ROWS if row.use == "check"]
FAMILIES = {
    "Trainium1": ("Trainium1",),
    "Trainium2": ("Trainium2",),
    "A100": ("A100-40GB", "A100-80GB"),
    "H100": ("H100", "H200"),
}
# A figure that differs by more than this counts no more than linearly.
OUTLIER = 0.15


def rows_of(family: str, use: str) -> list[TrainingRow]:
    return [row for row in ROWS if row.use == use and row.group[0] in FAMILIES[family]]


def loss(rows: list[TrainingRow], changed: Mapping[str, ChipConstants]) -> float:
    """Sum of Huber's loss of the logarithm of the speed ratio."""
    errors = np.abs([np.log(row.speed_ratio(changed[row.group[0]])) for row in rows])
    tail = OUTLIER * (errors - OUTLIER / 2)
    return float(np.where(errors < OUTLIER, errors**2 / 2, tail).sum())


def scaled(constants: ChipConstants, name: str, factor: float) -> ChipConstants:
    """Scale one constant: a field, or the matmul ratio of a precision."""
    if name not in constants.matmul_ratio:
        return replace(constants, **{name: factor * getattr(constants, name)})
    ratio = dict(constants.matmul_ratio)
    return replace(constants, matmul_ratio=ratio | {name: factor * ratio[name]})


def test_rows_that_were_not_fitted_are_within_ten_percent_half_of_the_time() -> None:
    errors = [abs(row.error_ratio) for row in CHECKS]

    assert len(errors) >= 60
    assert np.median(errors) <= 0.10
    assert np.quantile(errors, 0.9) <= 0.25


def test_every_second_row_of_a_source_is_fitted() -> None:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in ROWS:
        groups.setdefault((*row.group, row.source.split(",")[0]), []).append(row.use)

    for key, uses in groups.items():
        assert uses.count("fit") <= uses.count("check") + 1, key


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("Trainium1", "bf16"),
        ("Trainium1", "attention"),
        ("Trainium2", "bf16"),
        ("A100", "bf16"),
        ("A100", "attention"),
        ("H100", "bf16"),
        ("H100", "fp8"),
        ("H100", "attention"),
    ],
)
def test_no_other_constant_fits_the_fitted_rows_better(family: str, name: str) -> None:
    rows, chips = rows_of(family, "fit"), FAMILIES[family]
    losses = [
        loss(rows, {chip: scaled(CHIPS[chip], name, factor) for chip in chips})
        for factor in (0.9, 1.0, 1.1)
    ]

    assert losses[1] < 1.02 * min(losses)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_spread_is_that_of_the_rows_that_check(family: str) -> None:
    rows = rows_of("Trainium1" if family == "Trainium2" else family, "check")
    errors = [abs(row.error_ratio) for row in rows]

    for chip in FAMILIES[family]:
        assert SPREADS[chip] == pytest.approx(
            (np.median(errors), np.quantile(errors, 0.9)), abs=0.006
        )


def test_one_set_of_constants_serves_all_rows_of_a_chip_family() -> None:
    for chips in FAMILIES.values():
        assert len({id(CHIPS[chip]) for chip in chips}) == 1
