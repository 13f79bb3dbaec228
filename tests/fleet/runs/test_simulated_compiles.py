"""Simulated runs compile at the start and after a restart."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from fleet.models import CompileEvent, InjectedFault, Run
from fleet.runs.compile_summaries import change_lines
from fleet.simulation.compiles import RECOMPILE, store_simulated
from telemetry.simulate.compiles import graphs_of
from telemetry.simulate.plan import RunSpec
from telemetry.store.hot import HotStore
from tests.helpers import LLAMA, NOON, steps

N_NODES = LLAMA.nodes


@pytest.fixture
def spec() -> RunSpec:
    return msgspec.structs.replace(LLAMA, compile_s=600.0)


@pytest.fixture
def simulated(run: Run, spec: RunSpec) -> Run:
    run.plan, run.is_simulated = msgspec.to_builtins(spec), True
    run.save()
    return run


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.fixture
def struck(hot: HotStore, simulated: Run) -> InjectedFault:
    """Let a recompile hold up one step for five minutes."""
    fault = InjectedFault.objects.create(
        run=simulated,
        kind=RECOMPILE,
        magnitude=300.0,
        starts_at=after(2_000),
        ends_at=after(2_060),
    )
    usual = steps(ended_at_s=after(1_990).timestamp(), compute_s=1.0, n_steps=11)
    held_up = steps(
        first=12, ended_at_s=after(2_301).timestamp(), compute_s=1.0, other_s=300.0, n_steps=1
    )
    hot.append_steps(usual)
    hot.append_steps(held_up)
    return fault


def test_graphs_come_as_they_are_compiled_and_once(
    hot: HotStore, simulated: Run, spec: RunSpec
) -> None:
    store_simulated(hot, now=after(10))
    early = CompileEvent.objects.count()
    for _ in range(2):
        store_simulated(hot, now=after(610))

    assert early < CompileEvent.objects.count() == N_NODES * len(graphs_of(spec))
    assert set(CompileEvent.objects.values_list("verdict", flat=True)) == {"first", "beside"}


def test_a_recompile_is_kept_once_its_step_is_over_and_states_what_changed(
    hot: HotStore, simulated: Run, struck: InjectedFault
) -> None:
    store_simulated(hot, now=after(2_200))
    before = CompileEvent.objects.unannounced().count()
    for second in (2_310, 2_315):
        store_simulated(hot, now=after(second))
    accidents = CompileEvent.objects.unannounced()
    first = accidents.order_by("pk")[0]

    # Four nodes without a shared cache: one goes first, the others compile in parallel.
    assert (before, accidents.count()) == (0, 1)
    assert (first.at, first.seconds) == (
        datetime.fromtimestamp(after(2_000).timestamp(), UTC),
        300,
    )
    assert change_lines(first.change) == ["flags: -O1 became -O2"]


def test_a_fault_that_held_nothing_up_made_no_one_compile(
    hot: HotStore, simulated: Run, struck: InjectedFault
) -> None:
    InjectedFault.objects.create(
        run=simulated,
        kind=RECOMPILE,
        magnitude=300.0,
        starts_at=after(1_991),
        ends_at=after(1_993),
    )
    store_simulated(hot, now=after(2_310))

    assert CompileEvent.objects.unannounced().count() == 1


def test_what_is_over_or_real_is_left_alone(hot: HotStore, simulated: Run) -> None:
    Run.objects.update(finished_at=after(5))
    store_simulated(hot, now=after(610))

    assert not CompileEvent.objects.exists()
