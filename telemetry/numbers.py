"""Figures as the ends of lines: written once each, however many series show them."""

from functools import cache
from typing import Any

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
