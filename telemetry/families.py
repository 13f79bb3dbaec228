"""Prometheus' text: what a family is, its series, and a page of them in pieces."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np

from telemetry.numbers import number, numbers

__all__ = [
    "EXEMPLAR_CHARACTERS",
    "Exemplar",
    "Family",
    "Sample",
    "Spec",
    "Told",
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


class Told(Protocol):
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


def pieces(families: Iterable[Told], *, is_open_metrics: bool = False) -> Iterator[bytes]:
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


def _all_lines(families: Iterable[Told], *, is_open_metrics: bool) -> Iterator[bytes]:
    for family in families:
        is_begun = False
        for lines in family.lines(is_open_metrics=is_open_metrics):
            if not is_begun:
                yield _head(family.spec, is_open_metrics=is_open_metrics)
                is_begun = True
            yield lines
    if is_open_metrics:
        yield END_OF_OPEN_METRICS


def text(families: Iterable[Told], *, is_open_metrics: bool = False) -> bytes:
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
