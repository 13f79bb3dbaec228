"""Every AWS exporter name is documented with its source; estimates are marked."""

import re
from pathlib import Path

import pytest

from telemetry.exporter import neuron_exporter_names
from telemetry.exporter.exposition import Spec
from telemetry.exporter.neuron_observer import OBSERVED

DOCUMENT = (Path(__file__).parents[3] / "docs/metrics.md").read_text()


def row(name: str) -> str:
    """Return the row of a table that begins with a name, or names it among others."""
    rows = [line for line in DOCUMENT.splitlines() if re.match(rf"\| [^|]*`{name}`[^|]* \|", line)]
    assert len(rows) == 1
    return rows[0]


@pytest.mark.parametrize("spec", neuron_exporter_names.ALL, ids=lambda spec: spec.name)
def test_a_name_of_neuron_monitors_exporter_has_its_row(spec: Spec) -> None:
    found = row(spec.name)

    assert f"| {spec.kind} |" in found
    if "the same" not in found:
        assert all(f"`{label}`" in found for label in neuron_exporter_names.own_labels(spec))
        assert ("`runtime_tag`" in found) == (neuron_exporter_names.TAG in spec.labels)


@pytest.mark.parametrize("name", OBSERVED)
def test_a_name_of_neuron_observer_has_its_row(name: str) -> None:
    assert row(name)


@pytest.mark.parametrize("counter", neuron_exporter_names.COUNTERS)
def test_an_efa_counter_has_its_row(counter: str) -> None:
    assert row(counter)
