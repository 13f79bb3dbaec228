"""Histograms for Prometheus: how many values were at most each of some edges, for each series."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from prometheus_client.utils import floatToGoString

from telemetry.blocks import FloatArray
from telemetry.families import Sample, Spec, pair
from telemetry.numbers import number

# Twelve to a decade, as resistors are graded: none is more than a quarter above the one before.
E12 = (1.0, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9, 4.7, 5.6, 6.8, 8.2)
# From ten milliseconds to a thousand seconds. They stay: a series' edges never change.
EDGES_S = (*(float(f"{digits}e{power}") for power in range(-2, 3) for digits in E12), 1000.0)
Counts = NDArray[np.int64]


def counted(values: FloatArray, edges: Sequence[float] = EDGES_S) -> Counts:
    """Count values by the first edge that they do not exceed: (n_edges + 1,), the last above all.

    What is not known is not counted.

    Examples
    --------
    >>> counted(np.array([0.5, 1.0, 1.1, 9.0, np.nan]), edges=(1.0, 2.0))
    array([2, 1, 1])
    """
    places = np.searchsorted(np.asarray(edges), values[np.isfinite(values)], side="left")
    return np.bincount(places, minlength=len(edges) + 1).astype(np.int64)


@dataclass(slots=True)
class HistogramFamily:
    """Histograms of one name and the same edges: buckets, their count and their sum each."""

    spec: Spec
    edges: tuple[float, ...] = EDGES_S
    held: list[tuple[tuple[str, ...], Counts, float]] = field(default_factory=list)

    def add(self, counts: Sequence[int], total: float, *labels: str) -> None:
        """Add one: (n_edges + 1,) values between edges, and the sum of all values."""
        self.held.append((labels, np.asarray(counts, np.int64), total))

    def samples(self) -> Iterator[Sample]:
        """Yield nothing: no series has the family's own name."""
        yield from ()

    def lines(self, *, is_open_metrics: bool) -> Iterator[bytes]:
        """Yield its series as text, a histogram at a time; both formats write it alike."""
        edges = [pair("le", text) for text in (*map(floatToGoString, self.edges), "+Inf")]
        for labels, counts, total in self.held:
            # The label of a bucket stands in its place among the others, by name.
            named = [pair(*each) for each in sorted(zip(self.spec.labels, labels, strict=True))]
            place = sum(each < "le" for each in named)
            head = "".join(f"{each}," for each in named[:place])
            tail = "".join(f",{each}" for each in named[place:])
            up_to = [number(float(n)) for n in np.cumsum(counts)]
            lines = [
                f"{self.spec.name}_bucket{{{head}{edge}{tail}}} ".encode() + n
                for edge, n in zip(edges, up_to, strict=True)
            ]
            whose = f"{{{','.join(named)}}}" if named else ""
            lines += [f"{self.spec.name}_count{whose} ".encode() + up_to[-1]]
            lines += [f"{self.spec.name}_sum{whose} ".encode() + number(total)]
            yield b"".join(lines)
