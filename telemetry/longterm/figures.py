"""What only this moment can tell (runs, alerts, counts), kept until it is delivered."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import zstandard as zstd

from telemetry.blocks import FloatArray
from telemetry.families import Told
from telemetry.longterm.batches import Chunk
from telemetry.longterm.wire import series
from telemetry.store.connection import Connection
from telemetry.store.packing import digest

# By Unix second; the first process to tell of one is believed, so that a repeated task changes
# nothing. Seconds that the hot tier has let go of are let go of here.
FIGURES = "long-term:figures"
# Whose figures they are: kept once, named by content, for as long as a second refers to it.
NAMES = b"long-term:names:"
MS = 1000


class _Names(msgspec.Struct, array_like=True):
    """The series of a family: its name, the names of its labels, their values."""

    name: str
    labels: tuple[str, ...]
    series: list[tuple[str, ...]]


class _Figures(msgspec.Struct, array_like=True):
    """A family at one second: the digest of its names, and a 64-bit float for each series."""

    names: bytes
    values: bytes


def keep_figures(hot: Connection, second: int, families: Iterable[Told], *, keep_s: int) -> None:
    """Keep families as they stand at a second, and forget those of long ago."""
    names, figures = {}, []
    for family in families:
        samples = list(family.samples())
        told = _Names(family.spec.name, family.spec.labels, [each.labels for each in samples])
        encoded = msgspec.msgpack.encode(told)
        values = np.array([float(each.value) for each in samples], "<f8")
        names[key := digest(encoded)] = encoded
        figures.append(_Figures(key, values.tobytes()))
    _keep_names(hot, names, keep_s=2 * keep_s)
    hot.ask("HSETNX", FIGURES, second, zstd.compress(msgspec.msgpack.encode(figures), 3))
    old = [field for field in hot.ask("HKEYS", FIGURES) if int(field) < second - keep_s]
    if old:
        hot.ask("HDEL", FIGURES, *old)


def _keep_names(hot: Connection, names: dict[bytes, bytes], *, keep_s: int) -> None:
    """Write down names that are new, and let the others last longer."""
    known = hot.ask_all(("EXPIRE", NAMES + key, keep_s) for key in names)
    for (key, encoded), is_there in zip(names.items(), known, strict=True):
        if not is_there:
            hot.ask("SET", NAMES + key, zstd.compress(encoded, 3), "EX", keep_s)


class FigureReader:
    """Reads figures back, and remembers the names of the latest second."""

    def __init__(self, hot: Connection) -> None:
        self._hot = hot
        self._heads: dict[bytes, Sequence[bytes]] = {}

    def seconds(self, *, start: int, end: int) -> Iterator[Iterable[Chunk]]:
        """Yield what was kept from start up to end, second by second."""
        kept = sorted(int(field) for field in self._hot.ask("HKEYS", FIGURES))
        for second in kept:
            if start <= second < end and (packed := self._hot.ask("HGET", FIGURES, second)):
                yield self._chunks(second, packed)

    def _chunks(self, second: int, packed: bytes) -> Iterator[Chunk]:
        told = msgspec.msgpack.decode(zstd.decompress(packed), type=list[_Figures])
        self._learn({each.names for each in told})
        for each in told:
            values: FloatArray = np.frombuffer(each.values, "<f8")[:, None]
            if heads := self._heads.get(each.names):
                yield Chunk(heads, values, np.array([[second * MS]]))

    def _learn(self, wanted: set[bytes]) -> None:
        """Keep the names that are wanted now, and those only."""
        self._heads = {key: heads for key, heads in self._heads.items() if key in wanted}
        for key in wanted - self._heads.keys():
            if packed := self._hot.ask("GET", NAMES + key):
                told = msgspec.msgpack.decode(zstd.decompress(packed), type=_Names)
                self._heads[key] = [
                    series(told.name, tuple(zip(told.labels, values, strict=True)))
                    for values in told.series
                ]
