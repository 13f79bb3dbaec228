"""Ask the catalogue by name; a name it doesn't hold is answered with those it does."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from telemetry.catalog.hardware import Instance, unknown
from telemetry.catalog.models import Model
from telemetry.catalog.read import Catalog, read_catalog
from telemetry.errors import FieldError


@cache
def catalog() -> Catalog:
    """Return the catalogue that comes with trnwatch, read once per process."""
    return read_catalog(Path(__file__).parent)


def instances() -> Mapping[str, Instance]:
    """Return every instance type by name."""
    return catalog().instances


def models() -> Mapping[str, Model]:
    """Return every model shape by name."""
    return catalog().models


def instance(name: str) -> Instance:
    """Return an instance type; FieldError if there is none of that name."""
    if name not in instances():
        raise unknown("instance", name, instances())
    return instances()[name]


def model(name: str) -> Model:
    """Return a model shape; FieldError if there is none of that name."""
    if name not in models():
        raise unknown("model", name, models())
    return models()[name]


def training_instance(name: str) -> Instance:
    """Return an instance type that can train; FieldError if it is made for inference only."""
    found = instance(name)
    if not found.can_train:
        able = ", ".join(
            n for n, i in instances().items() if i.can_train and i.chip.vendor == "AWS"
        )
        raise FieldError(
            "instance", f"{name!r} is made for inference only and can't train; use one of {able}"
        )
    return found
