"""The scenario set: complete, and the same each time."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from bench.scenario_grid import MATRIX, as_toml, grid_scenarios, matrix_tables
from drills.scenario import load_scenario
from telemetry.simulate.faults import BENIGN, FAULTS

PLAIN = sorted(path for path in MATRIX.parent.glob("*.toml") if path != MATRIX)


def test_it_has_every_kind_of_fault_on_every_kind_of_machine() -> None:
    scenarios = grid_scenarios().values()
    kinds = Counter(fault.kind for each in scenarios for fault in each.faults)
    machines = {each.runs[0].instance.partition(".")[0] for each in scenarios}
    sizes = {each.runs[0].nodes for each in scenarios}

    assert set(FAULTS) - set(kinds) == set(), "scenarios/matrix.toml: add it to [sizes]"
    assert min(kinds.values()) >= 3
    assert machines == {"trn1", "trn2", "p5"}
    assert {1, 64} <= sizes


def test_every_kind_that_has_a_strength_comes_in_three() -> None:
    for kind in FAULTS.values():
        faults = [f for s in grid_scenarios().values() for f in s.faults if f.kind == kind.name]
        strengths = {f.magnitude if kind.magnitude_unit else f.duration_s for f in faults}
        assert len(strengths) >= 3, f"scenarios/matrix.toml: add three sizes of {kind.name}"


def test_it_has_benign_events_pairs_and_healthy_runs() -> None:
    scenarios = grid_scenarios()
    benign = {event.kind for each in scenarios.values() for event in each.benign}
    healthy = [each for name, each in scenarios.items() if name.endswith("-healthy")]
    first, second, *_ = next(s for n, s in scenarios.items() if n.endswith("-pairs")).faults

    assert benign >= set(BENIGN) - {"node_joins"}
    assert all(not each.faults and each.runs[0].checkpoint_every_s for each in healthy)
    assert second.start_s < first.start_s + first.duration_s


def test_it_is_the_same_each_time() -> None:
    assert matrix_tables() == matrix_tables()


def test_a_scenario_of_the_set_is_the_file_it_could_have_been() -> None:
    scenarios = grid_scenarios()
    for name, table in matrix_tables().items():
        written = load_scenario(as_toml(table))
        assert msgspec.structs.replace(written, inputs=scenarios[name].inputs) == scenarios[name]


def test_every_fault_has_time_to_be_noticed() -> None:
    for scenario in grid_scenarios().values():
        for fault in scenario.faults:
            assert fault.start_s + fault.duration_s + 60 <= scenario.duration_s


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.stem)
def test_an_example_is_named_as_its_file_and_states_what_it_shows(path: Path) -> None:
    text = path.read_text()

    assert load_scenario(text).name == path.stem
    assert text.startswith("# ")


def test_the_examples_show_every_kind_of_fault() -> None:
    shown = {fault.kind for path in PLAIN for fault in load_scenario(path.read_text()).faults}

    assert set(FAULTS) - shown == set(), "scenarios: add one that shows it"
