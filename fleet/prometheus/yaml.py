"""Just enough YAML to write rule files that people like to read: maps, lists, texts, numbers."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

Value = str | int | float | Mapping[str, "Value"] | Sequence["Value"]
# What needs no quotes: plain words and durations, nothing that YAML would read as something else.
PLAIN = re.compile(r"[A-Za-z_][\w:./-]*|\d+(?:ms|s|m|h|d)")
KEYWORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def written(value: Value) -> str:
    """Write a value as a YAML document."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Value) -> Iterator[str]:
    """Yield the lines of a map or a list, from the left margin."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _after(f"{key}:", each)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            first, *rest = _lines(each)
            yield f"- {first}"
            yield from (f"  {line}" if line else "" for line in rest)
    else:
        yield _scalar(value)


def _after(key: str, value: Value) -> Iterator[str]:
    """Yield a key and its value: short ones on the same line."""
    if isinstance(value, str) and "\n" in value:
        yield f"{key} |-"
        yield from (f"  {line}" if line else "" for line in value.strip("\n").split("\n"))
    elif isinstance(value, str | int | float):
        yield f"{key} {_scalar(value)}"
    else:
        yield key
        yield from (f"  {line}" if line else "" for line in _lines(value))


def _scalar(value: str | float) -> str:
    """Write a text, quoted as JSON where YAML might misread it, or a number."""
    if not isinstance(value, str):
        return json.dumps(value)
    if PLAIN.fullmatch(value) and value.lower() not in KEYWORDS:
        return value
    if '"' in value and "'" not in value and value.isprintable():
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False)
