"""Any input is parsed or refused."""

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.blocks import METRICS
from telemetry.ingest.neuron_monitor import read_lines
from tests.telemetry.ingest.reports import lines, report

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of everything in a document."""
    if isinstance(document, dict):
        inside = [
            place for key, value in document.items() for place in places(value, (*path, key))
        ]
    elif isinstance(document, list):
        inside = [p for i, value in enumerate(document) for p in places(value, (*path, i))]
    else:
        inside = []
    return [path, *inside] if path else inside


PLACES = places(report("trn1.2xlarge"))


def holds(values: Any, name: str) -> bool:
    """Whether values are what their metric may be: absent, or finite and not negative."""
    known = values[np.isfinite(values)]
    highest = 1.0 if name.endswith("_ratio") else np.inf
    return bool((known >= 0).all() and (known <= highest).all() and not np.isinf(values).any())


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_bring_it_down(line: bytes) -> None:
    readings, refusals = read_lines([line])

    assert len(readings) + len(refusals) == bool(line.strip())


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(report())) | st.text(max_size=5), ANYTHING))
def test_no_json_brings_it_down(document: dict[str, Any]) -> None:
    readings, refusals = read_lines([json.dumps(document).encode()])

    assert len(readings) + len(refusals) == 1


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(PLACES), ANYTHING)
def test_no_change_of_a_real_report_brings_it_down(place: tuple[Any, ...], value: Any) -> None:
    document = report("trn1.2xlarge")
    at = document
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value

    readings, refusals = read_lines([json.dumps(document).encode()])

    assert len(readings) + len(refusals) == 1
    for _, reading in readings:
        for name, values in reading.values.items():
            assert name in METRICS
            assert holds(values, name), name


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 3000), st.binary(max_size=6), st.integers(0, 6))
def test_no_damage_to_a_real_line_brings_it_down(at: int, bytes_: bytes, cut: int) -> None:
    line = lines("trn1.2xlarge")[0]

    damaged = line[:at] + bytes_ + line[at + cut :]

    readings, refusals = read_lines([damaged])

    assert len(readings) + len(refusals) == bool(damaged.strip())
    for _, reading in readings:
        assert {
            name for name, values in reading.values.items() if not holds(values, name)
        } == set()
