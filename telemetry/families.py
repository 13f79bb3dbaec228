"""Prometheus' text: families of series, written fast, or collected by its own client."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import compress
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from telemetry.store.packing import ABSENT_RATIO, RATIO_STEPS, Codes, decode

ObjectArray = NDArray[np.object_]

END_OF_OPEN_METRICS = b"# EOF\n"


@dataclass(frozen=True, slots=True)
class Spec:
    """What a family is: its name, as scraped, and what it tells of."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stems:
    """Series of one family: their label values, and their text up to the value."""

    labels: Sequence[tuple[str, ...]]
    texts: Sequence[bytes]


@dataclass(slots=True)
class Family:
    """A family with its series, as pieces: stems, values as text, and which are not absent."""

    spec: Spec
    pieces: list[tuple[Stems, Sequence[bytes], NDArray[np.bool_] | None]] = field(
        default_factory=list
    )

    def add(self, value: float | None, *labels: str) -> None:
        """Add one series, unless there is nothing to say."""
        if value is not None and np.isfinite(value):
            self.pieces.append((_stem(self.spec, labels), (number(float(value)),), None))

    def samples(self) -> Iterator[tuple[tuple[str, ...], bytes, bytes]]:
        """Yield the label values, stem and value of every series."""
        for stems, values, present in self.pieces:
            rows = zip(stems.labels, stems.texts, strict=True)
            kept = rows if present is None else compress(rows, present)
            for (labels, stem), value in zip(kept, values, strict=True):
                yield labels, stem, value


def stems(spec: Spec, labels: Sequence[tuple[str, ...]]) -> Stems:
    """Write the part of each series that stays the same from scrape to scrape."""
    order = sorted(range(len(spec.labels)), key=spec.labels.__getitem__)
    names = [spec.labels[i] for i in order]
    texts = []
    for values in labels:
        pairs = [f'{n}="{_escaped(values[i])}"' for n, i in zip(names, order, strict=True)]
        texts.append((f"{spec.name}{{{','.join(pairs)}}} " if pairs else f"{spec.name} ").encode())
    return Stems(labels, texts)


@lru_cache(maxsize=65_536)
def _stem(spec: Spec, labels: tuple[str, ...]) -> Stems:
    return stems(spec, (labels,))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> bytes:
    """Write a value as the end of a line."""
    written: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return written.encode() + b"\n"


def numbers(codes: Codes, packing: str) -> ObjectArray:
    """Write the values that codes stand for: as many texts.

    A rounded value is written with the four digits that it has; there are so few different
    ones that each is written only once per process.
    """
    if packing == "exact":
        distinct, place = np.unique(codes, return_inverse=True)
        texts = np.array([number(value) for value in distinct.tolist()], dtype=object)
        return np.asarray(texts[place])
    return np.asarray(_written(packing)[codes])


@cache
def _written(packing: str) -> ObjectArray:
    """Write every value that a packing knows, by code."""
    if packing == "ratio":
        values: list[float] = [round(code / RATIO_STEPS, 4) for code in range(ABSENT_RATIO)]
        return np.array([*map(number, values), b"NaN\n"], dtype=object)
    every = decode(np.arange(1 << 16, dtype="<u2"), packing).tolist()
    return np.array([number(float(f"{value:.4g}")) for value in every], dtype=object)


def text(families: Iterable[Family], *, is_open_metrics: bool = False) -> bytes:
    """Write families as a page; those without a series are left out."""
    page: list[bytes] = []
    for family in families:
        if family.pieces:
            page.append(_head(family.spec, is_open_metrics=is_open_metrics))
            for stem, values, present in family.pieces:
                lines: list[bytes] = [b""] * (2 * len(values))
                lines[::2] = stem.texts if present is None else compress(stem.texts, present)
                lines[1::2] = values
                page += lines
    if is_open_metrics:
        page.append(END_OF_OPEN_METRICS)
    return b"".join(page)


def _head(spec: Spec, *, is_open_metrics: bool) -> bytes:
    """Write what a family is; OpenMetrics names a counter without its suffix."""
    name = spec.name.removesuffix("_total") if is_open_metrics else spec.name
    about = spec.help.replace("\\", r"\\").replace("\n", r"\n")
    if is_open_metrics:
        about = about.replace('"', r"\"")
    return f"# HELP {name} {about}\n# TYPE {name} {spec.kind}\n".encode()


class FamilyCollector(Collector):
    """The same families for any registry of prometheus-client.

    Nothing is counted in this process, so every web worker gives the same answer and no
    multiprocess directory is needed.
    """

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield one family per metric that has a series."""
        kinds: dict[str, Any] = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
        for family in self._families:
            if family.pieces:
                spec = family.spec
                metric = kinds[spec.kind](spec.name, spec.help, labels=spec.labels)
                for labels, _, value in family.samples():
                    metric.add_metric(labels, float(value))
                yield metric
