"""Steps of recordings without step marks: what executions or collectives repeat."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray

MAX_PATTERN = 4096
# The recorded end must repeat the pattern at least so often, and be this share of all.
MIN_REPEATS, MIN_SHARE_RATIO = 2, 0.5
# Of the longest pause between operations, the pause between steps is more than this.
PAUSE_RATIO = 0.5

Span = tuple[float, float]


def repeated_pattern(labels: Sequence[Any]) -> tuple[Any, ...]:
    """Return the shortest sequence that the labels repeat until their end; empty without one."""
    known = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    codes = np.array([known[label] for label in labels])
    for length in range(1, min(MAX_PATTERN, len(codes) // MIN_REPEATS) + 1):
        differ = np.flatnonzero(codes[length:] != codes[:-length])
        first = int(differ[-1]) + 1 if len(differ) else 0
        n_repeated = len(codes) - first
        if n_repeated >= max(MIN_REPEATS * length, MIN_SHARE_RATIO * len(codes)):
            return tuple(labels[first : first + length])
    return ()


def rarest_last(pattern: tuple[Any, ...]) -> tuple[Any, ...]:
    """Rotate a pattern of graphs so that the rarest, which is the optimizer's, ends it."""
    counts = Counter(pattern)
    last = max(i for i, label in enumerate(pattern) if counts[label] == min(counts.values()))
    return (*pattern[last + 1 :], *pattern[: last + 1])


def longest_gap_first(
    pattern: tuple[Any, ...], labels: Sequence[Any], gaps_s: FloatArray
) -> tuple[Any, ...]:
    """Rotate a pattern so that the longest mean gap before a label begins it."""
    places = places_of(pattern, labels)
    means = [np.mean([gaps_s[at + i] for at in places]) for i in range(len(pattern))]
    first = int(np.argmax(means))
    return (*pattern[first:], *pattern[:first])


def starts_after_pauses(gaps_s: FloatArray) -> tuple[list[int], int]:
    """Return where steps of equal operations begin, and how many operations each has.

    Each step begins after a long pause. If these are not regular, every operation is a step.
    """
    starts = np.flatnonzero(gaps_s > PAUSE_RATIO * gaps_s.max()).tolist()
    counts = set(np.diff(starts).tolist())
    if len(counts) != 1:
        return list(range(len(gaps_s))), 1
    (count,) = counts
    if starts[0] == count:
        starts.insert(0, 0)
    return [start for start in starts if start + count <= len(gaps_s)], count


def places_of(pattern: tuple[Any, ...], labels: Sequence[Any]) -> list[int]:
    """Return where the pattern begins, without overlaps."""
    places, place, length = [], 0, len(pattern)
    while length and place + length <= len(labels):
        if tuple(labels[place : place + length]) == pattern:
            places.append(place)
            place += length
        else:
            place += 1
    return places


def numbered(spans: Sequence[Span], reference: Sequence[Span]) -> dict[int, Span]:
    """Return a rank's spans by the numbers of those of the reference that begin nearest in time.

    A rank whose recording begins later lacks the first steps.
    """
    if not spans:
        return {}
    begins, known = (np.array([begin for begin, _ in some]) for some in (spans, reference))
    nearest = np.abs(begins[:, None] - known[None, :]).argmin(axis=1).tolist()
    if len(set(nearest)) < len(nearest):
        nearest = list(range(len(spans)))
    return dict(zip(nearest, spans, strict=True))
