"""Look up catalogue entries by name; read them from TOML.

An entry without a source, or with a wrong type, is refused.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from telemetry.catalog.hardware import Chip, Instance, Price, Source, unknown
from telemetry.catalog.models import Model
from telemetry.errors import FieldError

Table = dict[str, Any]
T = TypeVar("T")
UNSOURCED = frozenset({"vendor", "chip", "can_train"})


class Catalog(msgspec.Struct, frozen=True):
    chips: Mapping[str, Chip]
    instances: Mapping[str, Instance]
    models: Mapping[str, Model]


@cache
def catalog() -> Catalog:
    return read_catalog(Path(__file__).parent)


def instances() -> Mapping[str, Instance]:
    return catalog().instances


def models() -> Mapping[str, Model]:
    return catalog().models


def instance(name: str) -> Instance:
    if name not in instances():
        raise unknown("instance", name, instances())
    return instances()[name]


def model(name: str) -> Model:
    if name not in models():
        raise unknown("model", name, models())
    return models()[name]


def training_instance(name: str) -> Instance:
    """Return an instance type; FieldError if it is for inference only."""
    found = instance(name)
    if not found.can_train:
        able = ", ".join(
            n for n, i in instances().items() if i.can_train and i.chip.vendor == "AWS"
        )
        raise FieldError(
            "instance", f"{name!r} is made for inference only and can't train; use one of {able}"
        )
    return found


def read_catalog(folder: Path) -> Catalog:
    """Read the four files of a catalogue; FieldError where they are inconsistent."""
    sources = {
        name: _typed(Source, entry, f"sources.toml {name}")
        for name, entry in _table(folder / "sources.toml").items()
    }
    chips = {
        name: _chip(name, entry, sources) for name, entry in _table(folder / "chips.toml").items()
    }
    instances = {
        name: _instance(name, entry, chips, sources)
        for name, entry in _table(folder / "instances.toml").items()
    }
    models = {
        name: _typed(Model, {"name": name, **entry}, f"models.toml {name}")
        for name, entry in _table(folder / "models.toml").items()
    }
    return Catalog(chips, instances, models)


def _table(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise FieldError(path.name, f"the file can't be read as TOML: {error}") from error


def _chip(name: str, entry: Table, sources: Mapping[str, Source]) -> Chip:
    where = f"chips.toml {name}"
    entry = dict(entry)
    peaks, peak_sources = _figures(entry.pop("peak_flops", {}), sources, f"{where}.peak_flops")
    values, of = _figures(entry, sources, where)
    of |= {f"peak_flops.{precision}": source for precision, source in peak_sources.items()}
    return _typed(Chip, {"name": name, **values, "peak_flops": peaks, "sources": of}, where)


def _instance(
    name: str, entry: Table, chips: Mapping[str, Chip], sources: Mapping[str, Source]
) -> Instance:
    where = f"instances.toml {name}"
    entry = dict(entry)
    prices = tuple(
        _typed(Price, {**price, "source": _source(price, sources, f"{where}.prices")}, where)
        for price in entry.pop("prices", [])
    )
    values, of = _figures(entry, sources, where)
    chip = str(values.get("chip"))
    if chip not in chips:
        raise unknown(f"{where}.chip", chip, chips)
    values |= {"name": name, "chip": chips[chip], "prices": prices, "sources": of}
    return _typed(Instance, values, where)


def _figures(
    entry: Table, sources: Mapping[str, Source], where: str
) -> tuple[Table, dict[str, Source]]:
    """Split ``{ value, source }`` entries into the values and their sources."""
    values = {key: entry[key] for key in entry if key in UNSOURCED}
    of = {}
    for key, figure in entry.items():
        if key in UNSOURCED:
            continue
        if not isinstance(figure, dict) or figure.keys() != {"value", "source"}:
            raise FieldError(f"{where}.{key}", f"{figure!r} must be {{ value = …, source = … }}")
        values[key] = figure["value"]
        of[key] = _source(figure, sources, f"{where}.{key}")
    return values, of


def _source(figure: Table, sources: Mapping[str, Source], where: str) -> Source:
    name = str(figure.get("source"))
    if name not in sources:
        raise unknown(f"{where}.source", name, sources)
    return sources[name]


def _typed(kind: type[T], values: Table, where: str) -> T:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise FieldError(where, f"{values.get('name', 'entry')!r} is wrong: {error}") from error
