"""A run's compile cache in sum: graphs, processes, lost time."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.models import CompileEvent, Run
from fleet.runs.compile_summaries import compile_summary, covered_s, with_compile_flag
from tests.helpers import NOON


def compiled(run: Run, module: str, outcome: str, *, after_s: float = 0.0, **more: object) -> None:
    at = NOON + timedelta(seconds=after_s)
    CompileEvent.objects.create(run=run, module=module, outcome=outcome, at=at, **more)


def test_a_graph_counts_once_and_every_process_that_asked_for_it(run: Run) -> None:
    for rank in range(4):
        compiled(run, "MODULE_1+a", "hit" if rank else "miss", rank=rank, process=f"{rank}")
    compiled(run, "MODULE_2+a", "fail")
    found = compile_summary(run)

    assert (found.n_graphs, found.n_hits, found.n_misses, found.n_failures) == (2, 3, 1, 1)
    assert found.hit_ratio == 0.6


def test_time_that_processes_compile_side_by_side_passes_once(run: Run) -> None:
    compiled(run, "MODULE_1+a", "miss", seconds=100.0, process="1")
    compiled(run, "MODULE_1+a", "miss", seconds=100.0, process="2", after_s=50)
    compiled(run, "MODULE_2+a", "miss", seconds=30.0, process="1", after_s=500)
    found = compile_summary(run)

    assert (found.seconds, found.wall_s) == (230.0, 180.0)
    assert [graph.n_misses for graph in found.graphs] == [2, 1]


def test_other_flags_for_the_same_graph_are_noticed(run: Run) -> None:
    compiled(run, "MODULE_1+a", "miss")
    compiled(run, "MODULE_1+b", "miss")
    compiled(run, "MODULE_2+a", "miss")

    assert compile_summary(run).n_flag_changes == 1


def test_what_no_one_timed_has_no_time(run: Run) -> None:
    compiled(run, "MODULE_1+a", "miss")

    assert compile_summary(run).wall_s is None


def test_a_run_without_compiles_states_it_in_one_question(run: Run) -> None:
    asked = with_compile_flag(Run.objects.all())

    assert not asked.get().has_compiles  # type: ignore[attr-defined]
    compiled(run, "", "hit")
    assert asked.get().has_compiles  # type: ignore[attr-defined]
    assert compile_summary(run).n_graphs == 0


def test_an_event_is_kept_once_and_a_hit_takes_no_time(run: Run) -> None:
    compiled(run, "MODULE_1+a", "hit", process="1")

    with pytest.raises(IntegrityError), transaction.atomic():
        compiled(run, "MODULE_1+a", "hit", process="1")
    with pytest.raises(IntegrityError), transaction.atomic():
        compiled(run, "MODULE_2+a", "hit", seconds=5.0)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=20))
def test_covered_time_is_that_of_a_plain_count(spans: list[tuple[int, int]]) -> None:
    seconds = {s for begin, length in spans for s in range(begin, begin + length)}

    assert covered_s(sorted(spans)) == len(seconds)
