"""Families of very many series, written a slab of rows and parts at a time."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from telemetry.families import Sample, Spec, pair
from telemetry.numbers import ObjectArray

# Lines written in one go: their text is what a scrape needs of memory.
MOST_LINES = 1024


class Rows:
    """Nodes, or what runs on them: the labels that all series of each have in common."""

    def __init__(self, labels: Mapping[str, Sequence[str]]) -> None:
        """Take in each label with its values, one per row."""
        self.labels = dict(labels)
        self._joined: dict[tuple[str, ...], ObjectArray] = {}

    def __len__(self) -> int:
        """Count the rows."""
        return len(next(iter(self.labels.values())))

    def joined(self, labels: tuple[str, ...]) -> ObjectArray:
        """Write some labels of every row, by comma."""
        if labels not in self._joined:
            values = zip(*(self.labels[label] for label in labels), strict=True)
            self._joined[labels] = _objects(_joined(labels, row) for row in values)
        return self._joined[labels]


@dataclass(frozen=True, slots=True)
class Slab:
    """Series of some rows and, for each of them, of the same parts.

    ``labels`` name what tells the parts apart, ``parts`` hold the values of these labels.
    ``values`` (n_rows, n_parts) are ends of lines; ``present`` says which there are, None: all.
    """

    rows: Rows
    labels: tuple[str, ...]
    parts: Sequence[tuple[str, ...]]
    values: ObjectArray
    present: NDArray[np.bool_] | None = None

    def lines(self, spec: Spec) -> Iterator[bytes]:
        """Yield the series as text."""
        stem = _stem(spec, self)
        n_rows = max(1, MOST_LINES // max(1, len(self.parts)))
        for start in range(0, len(self.rows), n_rows):
            here = slice(start, start + n_rows)
            values = self.values[here]
            out = np.empty((*values.shape, len(stem) + 1), object)
            for i, texts in enumerate(stem):
                out[:, :, i] = texts[here] if texts.shape[0] > 1 else texts
            out[:, :, -1] = values
            kept = out if self.present is None else out[self.present[here]]
            if kept.size:
                yield b"".join(kept.ravel().tolist())

    def samples(self, spec: Spec) -> Iterator[Sample]:
        """Yield the series one by one."""
        known = self.rows.labels
        for i in range(len(self.rows)):
            for j, part in enumerate(self.parts):
                if self.present is None or self.present[i, j]:
                    named = dict(zip(self.labels, part, strict=True))
                    labels = (named[n] if n in named else known[n][i] for n in spec.labels)
                    yield Sample(tuple(labels), None, self.values[i, j])


@dataclass(frozen=True, slots=True)
class SlabFamily:
    """A family whose slabs are made only when they are written."""

    spec: Spec
    slabs: Callable[[], Iterable[Slab]]

    def lines(self, *, is_open_metrics: bool) -> Iterator[bytes]:
        """Yield the series as text; they read alike in both formats."""
        del is_open_metrics
        for slab in self.slabs():
            yield from slab.lines(self.spec)

    def samples(self) -> Iterator[Sample]:
        """Yield the series one by one."""
        for slab in self.slabs():
            yield from slab.samples(self.spec)


def _stem(spec: Spec, slab: Slab) -> list[ObjectArray]:
    """Write all that comes before the values: texts by row (n_rows, 1) or by part (1, n_parts).

    Labels are in order of their names; neighbours that change together are one text.
    """
    runs = [
        (is_part, tuple(labels))
        for is_part, labels in groupby(sorted(spec.labels), key=slab.labels.__contains__)
    ]
    stem = []
    for i, (is_part, labels) in enumerate(runs):
        texts = _parts(slab, labels)[None, :] if is_part else slab.rows.joined(labels)[:, None]
        before = f"{spec.name}{{".encode() if i == 0 else b","
        after = b"} " if i == len(runs) - 1 else b""
        stem.append(before + texts + after)
    return stem


def _parts(slab: Slab, labels: tuple[str, ...]) -> ObjectArray:
    """Write some labels of every part, by comma."""
    places = [slab.labels.index(label) for label in labels]
    return _objects(_joined(labels, [part[i] for i in places]) for part in slab.parts)


def _joined(labels: Sequence[str], values: Sequence[str]) -> bytes:
    return ",".join(map(pair, labels, values)).encode()


def _objects(texts: Iterable[bytes]) -> ObjectArray:
    held = list(texts)
    array = np.empty(len(held), object)
    array[:] = held
    return array
