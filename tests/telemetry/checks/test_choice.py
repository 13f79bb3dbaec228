"""Node choice compared with a search of all groups."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from telemetry.checks import preflight
from telemetry.checks.preflight import closest, compatible

PAIRS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda p: p[0] != p[1]))


def largest_by_trying(n: int, bad: list[tuple[int, int]]) -> int:
    fits = (
        size
        for size in range(n, -1, -1)
        for group in combinations(range(n), size)
        if not any(one in group and other in group for one, other in bad)
    )
    return next(fits)


@given(PAIRS)
def test_no_group_without_a_bad_pair_is_larger(bad: list[tuple[int, int]]) -> None:
    taken = compatible(9, bad, np.zeros(9))

    assert not any(one in taken and other in taken for one, other in bad)
    assert len(taken) == largest_by_trying(9, bad)
    assert taken == compatible(9, bad[::-1], np.zeros(9))


def test_of_two_alike_the_costlier_stays_behind_and_else_the_later() -> None:
    assert compatible(3, [(0, 1)], np.array([1.0, 0, 0])) == [1, 2]
    assert compatible(3, [(0, 1)], np.zeros(3)) == [0, 2]


def test_large_components_are_thinned_without_a_bad_pair() -> None:
    bad = [(i, i + 1) for i in range(preflight.EXACTLY + 10)]

    taken = compatible(len(bad) + 1, bad, np.zeros(len(bad) + 1))

    assert not any(one in taken and other in taken for one, other in bad)
    assert len(taken) == (len(bad) + 2) // 2


def test_the_farthest_are_left_first_and_of_equals_the_later() -> None:
    distance = np.zeros((5, 5))
    distance[2, :] = distance[:, 2] = 1.0

    assert closest(range(5), distance, take=4) == [0, 1, 3, 4]
    assert closest(range(5), distance, take=3) == [0, 1, 3]
    assert closest([3, 1], distance, take=9) == [1, 3]
    assert closest([], distance, take=2) == []
