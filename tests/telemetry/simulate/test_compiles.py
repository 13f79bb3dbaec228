"""Simulated compiles: cache requests of a run's nodes, and unplanned recompilation."""

import pytest

from telemetry.compiles import HIT, MISS, key_changes
from telemetry.simulate.compiles import (
    LOCAL,
    MOST_ASKING,
    SHARED,
    Accident,
    changed,
    compiles_at_all,
    first_compiles,
    graphs_of,
    n_first_compiles,
    recompiled,
    toolchain_of,
)
from telemetry.simulate.plan import RunSpec
from telemetry.simulate.timeline import BOOT_S
from tests.helpers import LLAMA, NOON_S


def spec(**other: object) -> RunSpec:
    usual = {name: getattr(LLAMA, name) for name in LLAMA.__struct_fields__}
    return RunSpec(**usual | {"compile_s": 600.0} | other)


def test_with_a_shared_cache_one_node_compiles_and_the_others_find() -> None:
    run = spec(nodes=8)
    tools = toolchain_of(run)
    asked = first_compiles(run, tools, epoch_s=NOON_S)
    missed = [event for event in asked if event.outcome == MISS]

    assert tools.cache == SHARED
    assert {event.rank for event in missed} == {0}
    assert sum(event.seconds for event in missed) == pytest.approx(600.0)
    assert len(asked) == 8 * len(graphs_of(run))


def test_of_a_large_run_the_first_nodes_are_listed() -> None:
    run = spec(nodes=4_000)
    asked = first_compiles(run, toolchain_of(run), epoch_s=NOON_S)

    assert {event.rank for event in asked} == set(range(MOST_ASKING))
    assert len(asked) == n_first_compiles(run) == MOST_ASKING * len(graphs_of(run))
    assert [event.outcome for event in asked[:MOST_ASKING]] == [MISS, *[HIT] * (MOST_ASKING - 1)]
    assert len(recompiled(run, toolchain_of(run), at_s=0.0, seconds=9.0)) == MOST_ASKING


def test_without_one_each_compiles_for_itself() -> None:
    run = spec(nodes=4)
    asked = first_compiles(run, toolchain_of(run), epoch_s=NOON_S)

    assert toolchain_of(run).cache == LOCAL
    assert {event.outcome for event in asked} == {MISS}
    assert len({event.process for event in asked}) == 4


def test_they_follow_one_another_from_the_boot_to_the_end_of_the_phase() -> None:
    run = spec(nodes=1)
    asked = first_compiles(run, toolchain_of(run), epoch_s=NOON_S)
    ends_s = [event.at_s + event.seconds for event in asked]

    assert asked[0].at_s == NOON_S - 1 + BOOT_S
    assert [event.at_s for event in asked[1:]] == pytest.approx(ends_s[:-1])
    assert ends_s[-1] == pytest.approx(NOON_S - 1 + BOOT_S + 600.0)


def test_a_warm_cache_answers_everything() -> None:
    asked = first_compiles(spec(compile_s=0.0), toolchain_of(LLAMA), epoch_s=NOON_S)

    assert {event.outcome for event in asked} == {HIT}


def test_a_layout_of_its_own_has_graphs_of_its_own() -> None:
    assert graphs_of(spec()) == graphs_of(spec(name="other"))
    assert not set(graphs_of(spec())) & set(graphs_of(spec(seq_len=8192)))


@pytest.mark.parametrize(
    ("accident", "what"), [("flags", "flags"), ("compiler", "compiler"), ("lost", "nothing")]
)
def test_an_accident_changes_its_part_of_the_key(accident: Accident, what: str) -> None:
    run, tools = spec(nodes=8), toolchain_of(spec(nodes=8))
    before = recompiled(run, tools, at_s=NOON_S, seconds=60.0)[0]
    after = recompiled(run, changed(tools, accident), at_s=NOON_S, seconds=60.0)[0]

    assert [part.what for part in key_changes(before, after)] == [what]
    assert changed(changed(tools, accident), accident) == tools


def test_what_is_planned_states_it() -> None:
    events = recompiled(spec(), toolchain_of(LLAMA), at_s=0.0, seconds=9.0, is_planned=True)

    assert all(event.is_planned for event in events)


def test_a_gpu_has_no_neuron_compiler() -> None:
    assert compiles_at_all(LLAMA)
    assert not compiles_at_all(spec(instance="p5.48xlarge"))
