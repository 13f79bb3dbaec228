"""Prometheus' text: what a family is, its series, and a page of them in pieces."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from prometheus_client.utils import floatToGoString

from telemetry.blocks import FloatArray
from telemetry.store.packing import ABSENT_RATIO, ABSENT_ROUNDED, RATIO_STEPS, Codes, decode

ObjectArray = NDArray[np.object_]


def number(value: float) -> bytes:
    """Write a value as the end of a line."""
    written: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return written.encode() + b"\n"


def written(values: FloatArray) -> ObjectArray:
    """Write values as the ends of lines, in their shape; equal ones only once."""
    flat = np.ravel(values)
    distinct, place = np.unique(flat, return_inverse=True)
    texts = np.empty(len(distinct), object)
    texts[:] = [number(value) for value in distinct.tolist()]
    return np.asarray(texts[place]).reshape(np.shape(values))


def numbers(codes: Codes, packing: str) -> ObjectArray:
    """Write the values that codes stand for: as many texts, in their shape.

    A rounded value is written with the four digits that it has; there are so few different
    ones that each is written only once per process.
    """
    return written(codes) if packing == "exact" else np.asarray(_every(packing)[codes])


def present(codes: Codes, packing: str) -> NDArray[np.bool_]:
    """Whether codes stand for a value."""
    if packing == "exact":
        return np.isfinite(codes)
    return np.asarray(codes != (ABSENT_RATIO if packing == "ratio" else ABSENT_ROUNDED))


@cache
def _every(packing: str) -> NDArray[Any]:
    """Write every value that a packing knows, by code."""
    if packing == "ratio":
        values: list[float] = [round(code / RATIO_STEPS, 4) for code in range(ABSENT_RATIO)]
        return np.array([*map(number, values), b"NaN\n"], dtype=object)
    every = decode(np.arange(1 << 16, dtype="<u2"), packing).tolist()
    return np.array([number(float(f"{value:.4g}")) for value in every], dtype=object)


__all__ = [
    "EXEMPLAR_CHARACTERS",
    "Exemplar",
    "Family",
    "MetricFamily",
    "Sample",
    "Spec",
    "numbers",
    "pair",
    "pieces",
    "text",
]

END_OF_OPEN_METRICS = b"# EOF\n"
# A page goes out in pieces of about this size: no page is ever held whole.
PIECE_BYTES = 1 << 16
# OpenMetrics allows an exemplar's labels so many characters, names included.
EXEMPLAR_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class Spec:
    """What a family is: its name, as scraped, and what it tells of."""

    name: str
    kind: Literal["gauge", "counter", "info", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One example of what a series counts: its labels, its value, and when it was."""

    labels: Mapping[str, str]
    value: float
    at_s: float


class Sample(NamedTuple):
    """One series: the values of its family's labels, an example of it, its value as text."""

    labels: tuple[str, ...]
    exemplar: Exemplar | None
    value: bytes


class MetricFamily(Protocol):
    """A family with its series, however it comes by them."""

    @property
    def spec(self) -> Spec:
        """What the family is."""

    def lines(self, *, is_open_metrics: bool) -> Iterator[bytes]:
        """Yield its series as text, many at a time; nothing where it has none."""

    def samples(self) -> Iterator[Sample]:
        """Yield its series one by one."""


@dataclass(slots=True)
class Family:
    """A family of few series, held as they are added."""

    spec: Spec
    held: list[Sample] = field(default_factory=list)

    def add(self, value: float | None, *labels: str, exemplar: Exemplar | None = None) -> None:
        """Add one series, unless there is nothing to say."""
        if value is not None and np.isfinite(value):
            self.held.append(Sample(labels, exemplar, number(float(value))))

    def samples(self) -> Iterator[Sample]:
        """Yield the series."""
        yield from self.held

    def lines(self, *, is_open_metrics: bool) -> Iterator[bytes]:
        """Yield the series as text; exemplars are OpenMetrics' own."""
        if self.held:
            yield b"".join(
                _line(self.spec, sample, is_open_metrics=is_open_metrics) for sample in self.held
            )


def _line(spec: Spec, sample: Sample, *, is_open_metrics: bool) -> bytes:
    """Write one series."""
    pairs = ",".join(
        pair(*named) for named in sorted(zip(spec.labels, sample.labels, strict=True))
    )
    stem = f"{spec.name}{{{pairs}}} " if pairs else f"{spec.name} "
    line = stem.encode() + sample.value
    if sample.exemplar is None or not is_open_metrics:
        return line
    example = sample.exemplar
    tells = ",".join(pair(label, example.labels[label]) for label in sorted(example.labels))
    value = number(example.value)[:-1].decode()
    return line[:-1] + f" # {{{tells}}} {value} {example.at_s}\n".encode()


def pair(label: str, value: str) -> str:
    """Write a label; what is no Unicode text is replaced, lest it break the page."""
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode()
    return f'{label}="{_escaped(value)}"'


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def pieces(families: Iterable[MetricFamily], *, is_open_metrics: bool = False) -> Iterator[bytes]:
    """Write families as a page, piece by piece; those without a series are left out."""
    waiting: list[bytes] = []
    size = 0
    for line in _all_lines(families, is_open_metrics=is_open_metrics):
        waiting.append(line)
        size += len(line)
        if size >= PIECE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def _all_lines(families: Iterable[MetricFamily], *, is_open_metrics: bool) -> Iterator[bytes]:
    for family in families:
        is_begun = False
        for lines in family.lines(is_open_metrics=is_open_metrics):
            if not is_begun:
                yield _head(family.spec, is_open_metrics=is_open_metrics)
                is_begun = True
            yield lines
    if is_open_metrics:
        yield END_OF_OPEN_METRICS


def text(families: Iterable[MetricFamily], *, is_open_metrics: bool = False) -> bytes:
    """Write families as one page."""
    return b"".join(pieces(families, is_open_metrics=is_open_metrics))


def _head(spec: Spec, *, is_open_metrics: bool) -> bytes:
    """Write what a family is, in the words of either format.

    OpenMetrics names a family without its series' suffix, and knows no counter without one:
    of such it says nothing but that they are numbers, so that their names stay.
    """
    name = spec.name
    kind: str = "gauge" if spec.kind == "info" else spec.kind
    about = spec.help.replace("\\", r"\\").replace("\n", r"\n")
    if is_open_metrics:
        about = about.replace('"', r"\"")
        suffix = {"counter": "_total", "info": "_info"}.get(spec.kind, "")
        kind = spec.kind if name.endswith(suffix) else "unknown"
        name = name.removesuffix(suffix)
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n".encode()


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
