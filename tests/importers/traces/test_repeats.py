"""Steps found by what repeats: the shortest pattern, where it begins, and its numbers."""

import numpy as np
import pytest

from importers.traces.repeats import (
    longest_gap_first,
    numbered,
    places_of,
    rarest_last,
    repeated_pattern,
    starts_after_pauses,
)


@pytest.mark.parametrize(
    ("labels", "pattern"),
    [
        ("aaaa", "a"),
        ("abcabcabc", "abc"),
        ("xyabcabcabcab", "cab"),
        ("abcabd", ""),
        ("a", ""),
        ("", ""),
        ("xxxxxxxxabab", ""),
    ],
)
def test_the_shortest_sequence_that_repeats_until_the_end_is_found(
    labels: str, pattern: str
) -> None:
    found = repeated_pattern(list(labels))

    assert len(found) == len(pattern)
    assert sorted(found) == sorted(pattern)


def test_the_optimizer_ends_a_step() -> None:
    assert rarest_last(("f", "o", "f", "f")) == ("f", "f", "f", "o")


def test_a_step_begins_with_the_longest_pause() -> None:
    labels = list("abcabcab")
    gaps_s = np.array([0.1, 0.7, 0.2, 0.1, 0.7, 0.2, 0.1, 0.7])

    assert longest_gap_first(("c", "a", "b"), labels, gaps_s) == ("b", "c", "a")


@pytest.mark.parametrize(
    ("gaps_s", "starts", "count"),
    [
        ([0, 1, 9, 1, 9, 1], [0, 2, 4], 2),
        ([0, 9, 1, 9, 1, 9], [1, 3], 2),
        ([0, 5, 5, 5], [0, 1, 2, 3], 1),
        ([0, 9, 1, 1, 9, 9], [0, 1, 2, 3, 4, 5], 1),
        ([0], [0], 1),
    ],
)
def test_equal_operations_are_divided_by_regular_pauses(
    gaps_s: list[int], starts: list[int], count: int
) -> None:
    assert starts_after_pauses(np.array(gaps_s, "f8")) == (starts, count)


def test_a_pattern_is_placed_without_overlaps_and_past_what_does_not_fit() -> None:
    assert places_of(("a", "b"), list("ababxab")) == [0, 2, 5]


def test_steps_are_numbered_by_time_and_by_order_where_that_is_ambiguous() -> None:
    reference = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]

    assert numbered([(1.1, 2.0), (2.1, 3.0)], reference) == {1: (1.1, 2.0), 2: (2.1, 3.0)}
    assert numbered([(9.0, 9.1), (9.1, 9.2)], reference) == {0: (9.0, 9.1), 1: (9.1, 9.2)}
    assert numbered([], reference) == {}
