"""Steps found in the executions of a core."""

from collections.abc import Sequence

import pytest

from trnwatch.runtime_trace import Execution
from trnwatch.step_finder import StepFinder, repeated_pattern


def executions(
    models: Sequence[int], *, each_s: float = 0.5, counted: bool = False
) -> list[Execution]:
    return [
        (place * each_s, place * each_s + 0.9 * each_s, model, 1_000 + place if counted else None)
        for place, model in enumerate(models)
    ]


@pytest.mark.parametrize(
    ("models", "pattern"),
    [
        ([7] * 30, (7,)),
        ([1, 1, 1, 2] * 10, (1, 1, 1, 2)),
        ([1, 2, 1, 1] * 10, (1, 1, 1, 2)),
        ([1] * 23, ()),
        (list(range(60)), ()),
    ],
)
def test_the_shortest_repeated_pattern_is_a_step(
    models: list[int], pattern: tuple[int, ...]
) -> None:
    assert repeated_pattern(models) == pattern


def test_a_step_lasts_until_the_next_begins() -> None:
    steps = StepFinder().take(executions([1, 1, 2] * 10))

    assert [number for number, _, _ in steps] == list(range(1, 10))
    assert [(began, ended) for _, began, ended in steps[:2]] == [(0.0, 1.5), (1.5, 3.0)]


def test_steps_come_as_executions_come() -> None:
    finder, known = StepFinder(), executions([1, 1, 2] * 20)
    steps = [step for place in range(0, 60, 7) for step in finder.take(known[place : place + 7])]

    assert steps == StepFinder().take(known)


def test_an_evaluation_belongs_to_no_step() -> None:
    finder = StepFinder()
    steps = finder.take(executions([1, 2] * 15 + [9, 9, 9] + [1, 2] * 15))

    assert len(steps) == 29
    assert all(ended - began == pytest.approx(1.0) for _, began, ended in steps)


def test_other_graphs_after_a_recompilation_are_learnt() -> None:
    finder = StepFinder()
    finder.take(executions([1, 2] * 15))
    known = executions([1, 2] * 15 + [3, 4] * 100, each_s=10)[30:]
    steps = [
        step for place in range(0, 200, 10) for step in finder.take(known[place : place + 10])
    ]

    assert len(steps) >= 50


def test_workers_that_start_at_different_times_agree_on_the_number() -> None:
    known = executions([1, 2] * 30, counted=True)
    early, late = StepFinder().take(known), StepFinder().take(known[10:])

    assert {began: number for number, began, _ in early}.items() >= {
        began: number for number, began, _ in late
    }.items()
