"""Repeated steps compared with a job that is played through."""

import numpy as np
import pytest

from telemetry.statistics.verdicts import is_lost

Starts = list[tuple[float, float]]


def played(pieces: list[tuple[int, int]]) -> tuple[list[int], Starts]:
    """Return a job's own numbers, step by step, and its starts; a piece is first and last."""
    own: list[int] = []
    starts: Starts = []
    for first, last in pieces:
        starts.append((len(own) + 1, len(own) + 1 - first))
        own += range(first, last + 1)
    return own, starts


def by_the_book(own: list[int]) -> list[float]:
    """Ask of every step whether its number, or an earlier one, comes again."""
    return [float(any(later <= number for later in own[i + 1 :])) for i, number in enumerate(own)]


@pytest.mark.parametrize(
    "pieces",
    [
        [(1, 20)],
        [(1, 20), (21, 30)],
        [(1, 20), (16, 30)],
        [(1, 20), (16, 18), (11, 40)],
        [(1, 20), (11, 15), (16, 40)],
        [(5, 9), (1, 3), (1, 2), (3, 12)],
    ],
)
def test_of_every_number_the_last_step_stays(pieces: list[tuple[int, int]]) -> None:
    own, starts = played(pieces)
    steps = np.arange(1.0, len(own) + 1)

    found = is_lost(steps, starts)

    assert found.tolist() == by_the_book(own)
    assert len(own) - found.sum() == len(set(own))


def test_a_job_that_began_once_has_lost_nothing() -> None:
    assert is_lost(np.arange(5.0), []).tolist() == [0.0] * 5
