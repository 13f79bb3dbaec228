"""Histograms: each value counted once, edges that stay, text as the client would write it."""

import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition, parser

from telemetry.collecting import FamilyCollector
from telemetry.families import EDGES_S, HistogramFamily, Spec, counted, text

SPEC = Spec("trnwatch_wait_seconds", "histogram", "Waits.", ("run",))


def family(*names: str) -> HistogramFamily:
    made = HistogramFamily(SPEC)
    for i, name in enumerate(names):
        values = np.random.default_rng(i).lognormal(0, 1, 1_000)
        made.add(counted(values).tolist(), float(values.sum()), name)
    return made


def by_the_book(values: list[float]) -> list[int]:
    """Count literally: at most each edge."""
    return [sum(value <= edge for value in values) for edge in (*EDGES_S, np.inf)]


@given(st.lists(st.one_of(st.floats(0, 2_000), st.sampled_from(EDGES_S)), max_size=50))
def test_a_value_is_counted_at_its_edge_and_at_all_above(values: list[float]) -> None:
    assert np.cumsum(counted(np.array(values))).tolist() == by_the_book(values)


def test_what_is_not_known_is_not_counted() -> None:
    assert counted(np.array([np.nan, 1.0])).sum() == 1


def test_edges_rise_by_a_quarter_at_most() -> None:
    ratios = np.array(EDGES_S[1:]) / np.array(EDGES_S[:-1])

    assert (EDGES_S[0], EDGES_S[-1], len(EDGES_S)) == (0.01, 1000.0, 61)
    assert 1 < ratios.min() < ratios.max() <= 1.2501


def test_it_writes_what_the_client_writes() -> None:
    made = [family("llama", 'a "b"'), HistogramFamily(SPEC)]
    registry = CollectorRegistry()
    registry.register(FamilyCollector(made))

    assert text(made) == generate_latest(registry)
    page = exposition.generate_latest(registry)  # type: ignore[no-untyped-call]
    assert text(made, is_open_metrics=True) == page


def test_strict_readers_of_open_metrics_read_it() -> None:
    page = text([family("llama", "vit")], is_open_metrics=True).decode()

    (read,) = parser.text_string_to_metric_families(page)  # type: ignore[no-untyped-call]

    assert (read.type, len(read.samples)) == ("histogram", 2 * (len(EDGES_S) + 3))


@pytest.mark.prometheus
def test_promtool_has_nothing_to_say() -> None:
    command = ["promtool", "check", "metrics"]
    check = subprocess.run(
        command, input=text([family("llama")]), capture_output=True, check=False
    )

    assert (check.returncode, check.stdout, check.stderr) == (0, b"", b"")
