"""Families of very many series: as the client would write them, in little memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from telemetry.collecting import FamilyCollector
from telemetry.exporter.hardware import MOST_LINES, Slab, SlabFamily, SlabRows
from telemetry.families import PIECE_BYTES, Spec, pieces, text, written

HEAT = Spec("heat_ratio", "gauge", "Heat.", ("zone", "node", "core", "about"))
anything = st.text(max_size=6)


def heat(n_rows: int, n_parts: int, *, zone: str = "b") -> SlabFamily:
    """Return a family of so many rows and parts."""

    def slab() -> Slab:
        rows = SlabRows({"node": [f"node-{i}" for i in range(n_rows)], "zone": [zone] * n_rows})
        parts = [(str(core), "it") for core in range(n_parts)]
        values = np.arange(n_rows * n_parts, dtype=float).reshape(n_rows, n_parts)
        return Slab(rows, ("core", "about"), parts, written(values))

    return SlabFamily(HEAT, lambda: [slab()])


def of_the_client(family: SlabFamily) -> bytes:
    registry = CollectorRegistry()
    registry.register(FamilyCollector([family]))
    return generate_latest(registry)


@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (2, MOST_LINES), (MOST_LINES + 1, 1)])
def test_it_writes_what_the_client_writes(shape: tuple[int, int]) -> None:
    assert text([heat(*shape)]) == of_the_client(heat(*shape))


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
    slab = Slab(SlabRows(labels), ("core", "about"), parts, written(np.ones(shape)), present)
    family = SlabFamily(HEAT, lambda: [slab])

    page = text([family])

    assert page == of_the_client(family)
    found = [s.labels for f in text_string_to_metric_families(page.decode()) for s in f.samples]
    assert [(s["node"], s["zone"], s["core"], s["about"]) for s in found] == [
        (*row, *part)
        for i, row in enumerate(rows)
        for j, part in enumerate(parts)
        if present[i, j]
    ]


def test_what_is_no_text_does_not_break_the_page() -> None:
    assert b'zone="?"' in text([heat(1, 1, zone="\ud800")])


def test_without_a_series_a_family_is_not_told_of() -> None:
    values = written(np.ones((1, 1)))
    slab = Slab(SlabRows({"node": ["a"], "zone": ["b"]}), ("core", "about"), [("0", "")], values)
    absent = Slab(slab.rows, slab.labels, slab.parts, values, np.array([[False]]))

    assert text([SlabFamily(HEAT, lambda: [absent]), SlabFamily(HEAT, list)]) == b""


def test_pieces_are_of_bounded_size() -> None:
    found = [*pieces([heat(3, 20_000), heat(20_000, 3)])]

    assert len(found) > 20
    assert max(map(len, found)) < 40 * PIECE_BYTES


def peak_bytes(n_slabs: int) -> int:
    """Return what writing that many slabs takes at most, none of them held."""
    family = SlabFamily(HEAT, lambda: (s for _ in range(n_slabs) for s in heat(32, 64).slabs()))
    tracemalloc.start()
    for piece in pieces([family]):
        assert piece
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_a_longer_page_needs_no_more_memory() -> None:
    peak_bytes(1)

    assert peak_bytes(20) < 1.5 * peak_bytes(2)
