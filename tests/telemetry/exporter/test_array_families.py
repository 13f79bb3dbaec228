"""Families of array data: prometheus_client's text, in bounded memory."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from telemetry.exporter.exposition import (
    MAX_LINES,
    PIECE_BYTES,
    ArrayFamily,
    Collected,
    LabelRows,
    SeriesArray,
    SeriesKind,
    Spec,
    format_values,
    stream_page,
    write_page,
)

HEAT = Spec("heat_ratio", "gauge", "Heat.", ("zone", "node", "core", "about"))
anything = st.text(max_size=6)


def heat(n_rows: int, n_parts: int, *, zone: str = "b") -> ArrayFamily:
    """Return a family of so many rows and parts."""

    def array() -> SeriesArray:
        rows = LabelRows({"node": [f"node-{i}" for i in range(n_rows)], "zone": [zone] * n_rows})
        parts = [(str(core), "it") for core in range(n_parts)]
        values = np.arange(n_rows * n_parts, dtype=float).reshape(n_rows, n_parts)
        return SeriesArray(rows, ("core", "about"), parts, format_values(values))

    return ArrayFamily(HEAT, lambda: [array()])


@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (2, MAX_LINES), (MAX_LINES + 1, 1)])
@pytest.mark.parametrize("kind", ["gauge", "counter", "info"])
def test_it_writes_what_the_client_writes(shape: tuple[int, int], kind: SeriesKind) -> None:
    name = {"gauge": "heat_ratio", "counter": "heat_total", "info": "heat_info"}[kind]
    spec = replace(HEAT, name=name, kind=kind, help='How "hot" it is:\nback\\slash.')
    family = ArrayFamily(spec, heat(*shape).arrays)

    assert write_page([family]) == generate_latest(Collected([family]))
    page: bytes = openmetrics.generate_latest(Collected([family]))  # type: ignore[no-untyped-call]
    assert write_page([family], is_open_metrics=True) == page


def test_a_counter_without_total_keeps_its_name() -> None:
    family = ArrayFamily(replace(HEAT, name="tx_bytes", kind="counter"), heat(1, 1).arrays)

    assert write_page([family]).startswith(b"# HELP tx_bytes Heat.\n# TYPE tx_bytes counter\n")
    page: bytes = openmetrics.generate_latest(Collected([family]))  # type: ignore[no-untyped-call]
    assert write_page([family], is_open_metrics=True) == page
    assert b"# TYPE tx_bytes unknown\n" in page


@given(
    st.lists(st.tuples(anything, anything), min_size=1, max_size=4, unique=True),
    st.lists(st.tuples(anything, anything), min_size=1, max_size=3, unique=True),
    st.data(),
)
def test_labels_may_hold_anything(
    rows: list[tuple[str, str]], parts: list[tuple[str, str]], data: st.DataObject
) -> None:
    shape = (len(rows), len(parts))
    flags = st.lists(st.booleans(), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    present = np.array(data.draw(flags)).reshape(shape)
    labels = dict(zip(("node", "zone"), zip(*rows, strict=True), strict=True))
    array = SeriesArray(
        LabelRows(labels), ("core", "about"), parts, format_values(np.ones(shape)), present
    )
    family = ArrayFamily(HEAT, lambda: [array])

    page = write_page([family])

    assert page == (generate_latest(Collected([family])) if present.any() else b"")
    found = [s.labels for f in text_string_to_metric_families(page.decode()) for s in f.samples]
    assert [(s["node"], s["zone"], s["core"], s["about"]) for s in found] == [
        (*row, *part)
        for i, row in enumerate(rows)
        for j, part in enumerate(parts)
        if present[i, j]
    ]


def test_what_is_no_text_does_not_break_the_page() -> None:
    assert b'zone="?"' in write_page([heat(1, 1, zone="\ud800")])


def test_without_a_series_a_family_is_not_reported() -> None:
    values = format_values(np.ones((1, 1)))
    array = SeriesArray(
        LabelRows({"node": ["a"], "zone": ["b"]}), ("core", "about"), [("0", "")], values
    )
    absent = SeriesArray(array.rows, array.labels, array.parts, values, np.array([[False]]))

    assert write_page([ArrayFamily(HEAT, lambda: [absent]), ArrayFamily(HEAT, list)]) == b""


def test_pieces_are_of_bounded_size() -> None:
    found = [*stream_page([heat(3, 20_000), heat(20_000, 3)])]

    assert len(found) > 20
    assert max(map(len, found)) < 40 * PIECE_BYTES


def peak_bytes(n_arrays: int) -> int:
    """Return the peak memory of writing that many arrays."""
    family = ArrayFamily(HEAT, lambda: (s for _ in range(n_arrays) for s in heat(32, 64).arrays()))
    tracemalloc.start()
    for piece in stream_page([family]):
        assert piece
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_a_longer_page_needs_no_more_memory() -> None:
    peak_bytes(1)

    assert peak_bytes(20) < 1.5 * peak_bytes(2)
