"""Every AWS exporter name is documented with its source; estimates are marked."""

import re
from pathlib import Path

from telemetry.exporter import neuron_exporter_names
from telemetry.exporter.neuron_observer import OBSERVED

DOCUMENT = (Path(__file__).parents[3] / "docs/metrics.md").read_text()


def row(name: str) -> str:
    """Return the row of a table that begins with a name, or names it among others."""
    rows = [line for line in DOCUMENT.splitlines() if re.match(rf"\| [^|]*`{name}`[^|]* \|", line)]
    assert len(rows) == 1, name
    return rows[0]


def test_a_name_of_neuron_monitors_exporter_has_its_row() -> None:
    for spec in neuron_exporter_names.ALL:
        found = row(spec.name)

        assert f"| {spec.kind} |" in found
        if "the same" not in found:
            assert all(f"`{label}`" in found for label in neuron_exporter_names.own_labels(spec))
            assert ("`runtime_tag`" in found) == (neuron_exporter_names.TAG in spec.labels)


def test_a_name_of_neuron_observer_and_an_efa_counter_have_their_row() -> None:
    for name in (*OBSERVED, *neuron_exporter_names.COUNTERS):
        assert row(name)
