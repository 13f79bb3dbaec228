"""A model described on the command line: its own shape, or other figures for a known one."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import msgspec

from telemetry.catalog import CatalogError, Model, models

MODEL_FLAGS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "params_b": (float, "parameters, in billions"),
    "layers": (int, "transformer layers"),
    "hidden": (int, "width of the hidden state"),
    "heads": (int, "attention heads"),
    "kv_heads": (int, "key and value heads (as many as heads)"),
    "ffn": (int, "width of the feed-forward block"),
    "vocab": (int, "vocabulary size"),
}
MOST = 100_000_000
OPTIONAL = {"kv_heads"}


def described_model(name: str, given: Mapping[str, Any]) -> Model | None:
    """Return the model that the flags describe, None where there are none.

    What isn't given comes from the catalogue if it knows the name; else CatalogError says
    which flags are missing.
    """
    if not given:
        return None
    _check(given)
    known = models().get(name)
    shape = msgspec.to_builtins(known) if known else {"kind": _kind(name)}
    lacking = [flag for flag in MODEL_FLAGS if flag not in given and flag not in OPTIONAL]
    if known is None and lacking:
        flags = ", ".join(f"--{flag.replace('_', '-')}" for flag in lacking)
        raise CatalogError("model", name, f"is not in the catalogue; describe it: {flags} missing")
    shape |= {flag: value for flag, value in given.items() if flag != "params_b"}
    if "params_b" in given:
        shape["params"] = given["params_b"] * 1e9
    shape.setdefault("kv_heads", shape["heads"])
    shape |= {"name": name, "source": "as given", "date": "as given"}
    found = msgspec.convert(shape, Model)
    _check_heads(found)
    return found


def _kind(name: str) -> str:
    """Guess what a model is from its name: decoder unless it says otherwise."""
    if "bert" in name.lower():
        return "encoder"
    return "vision" if "vit" in name.lower().split("-") else "decoder"


def _check(given: Mapping[str, Any]) -> None:
    for flag, value in given.items():
        if not isfinite(value) or not 0 < value <= MOST:
            raise CatalogError(flag, value, f"is out of range; take more than 0, up to {MOST:,}")


def _check_heads(found: Model) -> None:
    if found.hidden % found.heads:
        raise CatalogError("heads", found.heads, f"must divide hidden {found.hidden}")
    if found.heads % found.kv_heads:
        raise CatalogError("kv_heads", found.kv_heads, f"must divide heads {found.heads}")
