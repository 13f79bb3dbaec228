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
