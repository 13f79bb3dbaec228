"""StableHLO and its kin (MHLO, CHLO), as MLIR prints them."""

import re
from collections.abc import Iterator

from telemetry.support.dtypes import doubtful_types
from telemetry.support.names import CUSTOM_CALL, hlo_name
from telemetry.support.records import Use

# Attributes (#stablehlo.…, mhlo.num_partitions = 1) and types (!stablehlo.…) are no operators.
OPERATION = re.compile(
    r"(?<![\w.#!])((?:stablehlo|mhlo|chlo)\.(\w{1,100}))(?![\w.]|\s?=)", re.ASCII
)
TARGET = re.compile(
    r'custom_call @"?([\w$.-]{1,200})|call_target_name = "([^"]{1,200})"', re.ASCII
)
MARKS = re.compile(r'(?<![\w.#!])"?(?:stablehlo|mhlo|chlo)\.\w', re.ASCII)


def uses(line: str) -> Iterator[Use]:
    """Yield the operators of one line; a reduction names its inner operator on the same line."""
    text = line.partition("//")[0]
    types = doubtful_types(text)
    for written, name in OPERATION.findall(text):
        target = TARGET.search(text) if name == "custom_call" else None
        called = f"{CUSTOM_CALL}::{target[1] or target[2]}" if target else hlo_name(name)
        yield Use(called, written, types)
