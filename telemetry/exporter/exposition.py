"""Prometheus exposition: family declarations, families of array data, and pages in pieces.

``prometheus_client`` writes every family but those of ``ArrayFamily``: hardware series, of which
one page may hold a million. They are written ten times faster, and equally.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from telemetry.blocks import FloatArray
from telemetry.store.packing import ABSENT_RATIO, ABSENT_ROUNDED, RATIO_STEPS, Codes, decode

ObjectArray = NDArray[np.object_]

END_OF_OPEN_METRICS = b"# EOF\n"
# A page is sent in pieces of about this size, so that memory does not grow with the page.
PIECE_BYTES = 1 << 16
# Lines joined at once: larger groups are hardly faster and need more memory.
MAX_LINES = 1024


SeriesKind = Literal["gauge", "counter", "info", "histogram"]


@dataclass(frozen=True, slots=True)
class Spec:
    """The declaration of a metric family; ``name`` is the name of its series as scraped."""

    name: str
    kind: SeriesKind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def family_name(self) -> str:
        """The family's name in OpenMetrics: without ``_total`` or ``_info``."""
        return self.name.removesuffix(self._suffix)

    @property
    def family_type(self) -> str:
        """The type in OpenMetrics: "unknown" for a counter that is not named ``_total``."""
        return self.kind if self.name.endswith(self._suffix) else "unknown"

    @property
    def _suffix(self) -> str:
        return {"counter": "_total", "info": "_info"}.get(self.kind, "")

    def family(self) -> GaugeMetricFamily | CounterMetricFamily:
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        return make(self.name, self.help, labels=self.labels)


def gauge(name: str, about: str, *labels: str) -> Spec:
    return Spec(name, "gauge", about, labels)


def counter(name: str, about: str, *labels: str) -> Spec:
    return Spec(name, "counter", about, labels)


def add(
    family: GaugeMetricFamily | CounterMetricFamily, value: float | None, *labels: str
) -> None:
    """Add a series, unless its value is unknown: None, NaN or infinite."""
    if value is not None and math.isfinite(value):
        family.add_metric(labels, value)


class LabelRows:
    """Label values of many nodes or processes: one column per label, one row for each."""

    def __init__(self, labels: Mapping[str, Sequence[str]]) -> None:
        self.labels = dict(labels)
        self._joined: dict[tuple[str, ...], ObjectArray] = {}

    def __len__(self) -> int:
        return len(next(iter(self.labels.values())))

    def joined(self, labels: tuple[str, ...]) -> ObjectArray:
        """Write some labels of every row, separated by commas: (n_rows,)."""
        if labels not in self._joined:
            values = zip(*(self.labels[label] for label in labels), strict=True)
            self._joined[labels] = _objects(_join_labels(labels, row) for row in values)
        return self._joined[labels]


@dataclass(frozen=True, slots=True)
class SeriesArray:
    """Series of some rows, with the same parts (cores, devices, ...) in each row.

    ``labels`` distinguish the parts, and ``parts`` hold their values. ``values`` (n_rows,
    n_parts) are formatted values, see `format_values`. ``present`` marks the series that exist;
    None means all.
    """

    rows: LabelRows
    labels: tuple[str, ...]
    parts: Sequence[tuple[str, ...]]
    values: ObjectArray
    present: NDArray[np.bool_] | None = None

    def lines(self, spec: Spec) -> Iterator[bytes]:
        """Yield the series as text, at most ``MAX_LINES`` or one row at a time."""
        stem = self._stem(spec)
        n_rows = max(1, MAX_LINES // max(1, len(self.parts)))
        for start in range(0, len(self.rows), n_rows):
            chunk = slice(start, start + n_rows)
            values = self.values[chunk]
            out = np.empty((*values.shape, len(stem) + 1), object)
            for i, texts in enumerate(stem):
                out[:, :, i] = texts[chunk] if texts.shape[0] > 1 else texts
            out[:, :, -1] = values
            kept = out if self.present is None else out[self.present[chunk]]
            if kept.size:
                yield b"".join(kept.ravel().tolist())

    def _stem(self, spec: Spec) -> list[ObjectArray]:
        """Write name and labels as texts by row (n_rows, 1) or by part (1, n_parts).

        Labels are sorted by name; neighbours that vary together are one text.
        """
        groups = [
            (is_part, tuple(labels))
            for is_part, labels in groupby(sorted(spec.labels), key=self.labels.__contains__)
        ]
        stem = []
        for i, (is_part, labels) in enumerate(groups):
            if is_part:
                places = [self.labels.index(label) for label in labels]
                parts = ([part[place] for place in places] for part in self.parts)
                texts = _objects(_join_labels(labels, values) for values in parts)[None, :]
            else:
                texts = self.rows.joined(labels)[:, None]
            before = f"{spec.name}{{".encode() if i == 0 else b","
            after = b"} " if i == len(groups) - 1 else b""
            stem.append(before + texts + after)
        return stem

    def samples(self, spec: Spec) -> Iterator[Sample]:
        columns = self.rows.labels
        for i in range(len(self.rows)):
            for j, part in enumerate(self.parts):
                if self.present is None or self.present[i, j]:
                    of_part = dict(zip(self.labels, part, strict=True))
                    labels = {
                        n: of_part[n] if n in of_part else columns[n][i] for n in spec.labels
                    }
                    yield Sample(spec.name, labels, float(self.values[i, j]))


class ArrayFamily(Metric):
    """A family whose series are computed each time they are read, so that none are held.

    ``prometheus_client`` can write it as any other family, through ``samples``; ``lines`` gives
    the same text faster.
    """

    def __init__(self, spec: Spec, arrays: Callable[[], Iterable[SeriesArray]]) -> None:
        super().__init__(spec.family_name, spec.help, spec.family_type)
        self.spec = spec
        self.arrays = arrays
        self.samples = _ArraySamples(self)  # type: ignore[assignment] # only ever iterated

    def lines(self, *, is_open_metrics: bool) -> Iterator[bytes]:
        """Yield header and series as text, many lines at a time; nothing without series."""
        lines = (line for array in self.arrays() for line in array.lines(self.spec))
        first = next(lines, None)
        if first is None:
            return
        name, about = self.spec.name, self.spec.help
        kind: str = "gauge" if self.spec.kind == "info" else self.spec.kind
        about = about.replace("\\", r"\\").replace("\n", r"\n")
        if is_open_metrics:
            name, kind = self.name, self.type
            about = about.replace('"', r"\"")
        yield f"# HELP {name} {about}\n# TYPE {name} {kind}\n".encode() + first
        yield from lines


@dataclass(frozen=True, slots=True)
class _ArraySamples:
    family: ArrayFamily

    def __iter__(self) -> Iterator[Sample]:
        for array in self.family.arrays():
            yield from array.samples(self.family.spec)


def stream_page(families: Iterable[Metric], *, is_open_metrics: bool = False) -> Iterator[bytes]:
    """Write families as a page, piece by piece; families without series are left out."""
    pending: list[bytes] = []
    size = 0
    for text in _texts(families, is_open_metrics=is_open_metrics):
        pending.append(text)
        size += len(text)
        if size >= PIECE_BYTES:
            yield b"".join(pending)
            pending, size = [], 0
    if pending:
        yield b"".join(pending)


def write_page(families: Iterable[Metric], *, is_open_metrics: bool = False) -> bytes:
    return b"".join(stream_page(families, is_open_metrics=is_open_metrics))


def _texts(families: Iterable[Metric], *, is_open_metrics: bool) -> Iterator[bytes]:
    encode = openmetrics.generate_latest if is_open_metrics else generate_latest
    for family in families:
        if isinstance(family, ArrayFamily):
            yield from family.lines(is_open_metrics=is_open_metrics)
        elif family.samples:
            page: bytes = encode(Collected([family]))
            yield page.removesuffix(END_OF_OPEN_METRICS)
    if is_open_metrics:
        yield END_OF_OPEN_METRICS


@dataclass(frozen=True, slots=True)
class Collected(Collector):
    """Families that were collected before, as a collector."""

    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def format_value(value: float) -> bytes:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text.encode() + b"\n"


def format_values(values: FloatArray) -> ObjectArray:
    """Write values as ends of lines, in their shape; each distinct value is written once."""
    flat = np.ravel(values)
    distinct, place = np.unique(flat, return_inverse=True)
    texts = _objects(map(format_value, distinct.tolist()))
    return np.asarray(texts[place]).reshape(np.shape(values))


def format_codes(codes: Codes, packing: str) -> ObjectArray:
    """Write the values of packed codes as ends of lines, in their shape.

    A rounded value is written with its four significant digits. There are so few codes that
    each is written once per process.
    """
    return format_values(codes) if packing == "exact" else np.asarray(_code_texts(packing)[codes])


def has_value(codes: Codes, packing: str) -> NDArray[np.bool_]:
    if packing == "exact":
        return np.isfinite(codes)
    return np.asarray(codes != (ABSENT_RATIO if packing == "ratio" else ABSENT_ROUNDED))


@cache
def _code_texts(packing: str) -> NDArray[Any]:
    if packing == "ratio":
        values: list[float] = [round(code / RATIO_STEPS, 4) for code in range(ABSENT_RATIO)]
        return _objects([*map(format_value, values), b"NaN\n"])
    every = decode(np.arange(1 << 16, dtype="<u2"), packing).tolist()
    return _objects(format_value(float(f"{value:.4g}")) for value in every)


def _join_labels(labels: Sequence[str], values: Sequence[str]) -> bytes:
    """Write labels; what is not valid Unicode is replaced, because it cannot be encoded."""
    pairs = []
    for label, value in zip(labels, values, strict=False):
        text = value if value.isascii() else value.encode("utf-8", "replace").decode()
        text = text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        pairs.append(f'{label}="{text}"')
    return ",".join(pairs).encode()


def _objects(texts: Iterable[bytes]) -> ObjectArray:
    objects = list(texts)
    array = np.empty(len(objects), object)
    array[:] = objects
    return array
