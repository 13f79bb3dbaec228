"""Chips, instance types, prices and model shapes, each figure with its source."""

from telemetry.catalog.hardware import Chip, Instance, Price, Source
from telemetry.catalog.lookup import (
    instance,
    instances,
    model,
    models,
    training_instance,
)
from telemetry.catalog.models import Model

__all__ = [
    "Chip",
    "Instance",
    "Model",
    "Price",
    "Source",
    "instance",
    "instances",
    "model",
    "models",
    "training_instance",
]
