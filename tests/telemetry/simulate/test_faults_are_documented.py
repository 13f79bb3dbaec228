"""docs/faults.md has a section for every kind, with the figures of the code."""

import re
from pathlib import Path

import pytest

from telemetry.simulate.faults import BENIGN, FAULTS

TEXT = (Path(__file__).parents[3] / "docs" / "faults.md").read_text()
SECTIONS = {
    part.splitlines()[0]: " ".join(part.splitlines()[1:]) for part in TEXT.split("\n## ")[1:]
}


def test_every_kind_has_its_section_and_nothing_else_has() -> None:
    assert {*FAULTS, *BENIGN} - set(SECTIONS) == set(), "docs/faults.md: add a heading"
    assert set(SECTIONS) - {*FAULTS, *BENIGN} == set(), "docs/faults.md: remove the heading"


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_reports_its_signature_magnitude_and_source(kind: str) -> None:
    for part in ("**Signature:**", "**Magnitude:**", "**Source:**"):
        assert part in SECTIONS.get(kind, ""), f"docs/faults.md, ## {kind}"


@pytest.mark.parametrize("name", [k.name for k in FAULTS.values() if k.magnitude_unit])
def test_its_figures_are_those_of_the_code(name: str) -> None:
    fault = FAULTS[name]
    form = r"\*\*Magnitude:\*\*.*?; ([\d.,]+); ([\d.,]+) to ([\d.,]+\d|\d)"
    reported = re.search(form, SECTIONS.get(name, ""))

    assert reported, f"docs/faults.md, ## {name}: **Magnitude:** …; default; lowest to highest"
    figures = tuple(float(figure.replace(",", "")) for figure in reported.groups())
    assert figures == (fault.default_magnitude, fault.low, fault.high)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_without_strength_states_it(kind: str) -> None:
    is_none = "**Magnitude:** none" in SECTIONS.get(kind, "")
    assert is_none == (FAULTS[kind].magnitude_unit is None)


@pytest.mark.parametrize("kind", BENIGN)
def test_a_benign_event_reports_its_signature(kind: str) -> None:
    assert "**Signature:**" in SECTIONS.get(kind, ""), f"docs/faults.md, ## {kind}"
