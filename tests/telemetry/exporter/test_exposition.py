"""Exposition equals prometheus_client's, without empty families."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from telemetry.exporter.exposition import (
    ArrayFamily,
    Collected,
    LabelRows,
    SeriesArray,
    Spec,
    add,
    format_codes,
    format_values,
    write_page,
)
from telemetry.store.packing import decode, encode

HEAT = Spec("trnwatch_heat_ratio", "gauge", 'How "hot" it is:\nback\\slash.', ("node", "core"))
COUNT = Spec("trnwatch_things_total", "counter", "Things.")
UP = Spec("trnwatch_node_up", "gauge", "Up.", ("node",))


def families(*values: float, label: str = "a") -> list[Metric]:
    heat, count = HEAT.family(), COUNT.family()
    for i, value in enumerate(values):
        add(heat, value, label, str(i))
    add(count, 3)
    rows = LabelRows({"node": [label]})
    array = SeriesArray(rows, (), [()], format_values(np.ones((1, 1))))
    return [heat, ArrayFamily(UP, lambda: [array]), count]


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=5),
    st.text(max_size=8),
)
def test_it_writes_what_the_client_writes(values: list[float], label: str) -> None:
    made = families(0.5, *values, label=label)

    assert write_page(made) == generate_latest(Collected(made))
    page: bytes = openmetrics.generate_latest(Collected(made))  # type: ignore[no-untyped-call]
    assert write_page(made, is_open_metrics=True) == page


def test_unknown_values_and_empty_families_are_left_out() -> None:
    nothing = Spec("trnwatch_nothing", "gauge", "Nothing.").family()
    add(nothing, None)

    page = write_page([*families(math.nan, 1.0, math.inf), nothing]).decode()

    assert page.count('trnwatch_heat_ratio{core="') == 1
    assert "trnwatch_nothing" not in page


@pytest.mark.parametrize("packing", ["ratio", "rounded", "exact"])
def test_a_number_is_written_as_finely_as_it_is_kept(packing: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(0, 1, 500) if packing == "ratio" else np.exp(rng.uniform(-20, 30, 500))
    codes = encode(values, packing)

    written = np.array([float(each) for each in format_codes(codes, packing)])

    np.testing.assert_allclose(written, decode(codes, packing), rtol=6e-4, atol=6e-5)
