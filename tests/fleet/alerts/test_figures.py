"""Figures inside alert sentences."""

import pytest

from fleet.formatting import counted, figure


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (142e-6, "s", "142 µs"),
        (0.314, "ratio", "31.4 %"),
        (96e9, "bytes", "96.0 GB"),
        (1.8e12, "bytes_per_s", "1.80 TB/s"),
        (1200, "per_s", "1.20 k/s"),
        (12, "count", "12"),
        (1.5, "factor", "1.50 \u00d7"),
        (7, None, "7.00"),
        (7, "parsec", "7.00"),
        (None, "s", "\u2013"),
    ],
)
def test_a_value_reads_by_its_unit(value: float | None, unit: str | None, text: str) -> None:
    assert figure(value, unit).replace("\u202f", " ") == text


@pytest.mark.parametrize(
    ("n", "text"), [(1, "1 step"), (0.9, "1 step"), (0, "0 steps"), (12, "12 steps")]
)
def test_one_is_not_many(n: float, text: str) -> None:
    assert counted(n, "step").replace("\u202f", " ") == text
