"""What is published of operators: a list, other names, and what the compiler's pages refuse."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from telemetry.catalog import Source

FILE = Path(__file__).parent / "operators.toml"


class Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names that one source gives."""

    source: str
    names: frozenset[str]


class Pairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names with what one source says of each."""

    source: str
    names: Mapping[str, str]


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that operators are judged by where no report of the compiler is at hand.

    ``listed`` are the operators on the published list; ``aliases`` and ``lowerings`` lead to one
    of them; ``refused`` and ``refused_types`` lead to the code of the compiler's error.
    """

    sources: Mapping[str, Source]
    listed: Names
    aliases: Pairs
    lowerings: Pairs
    refused: Pairs
    refused_types: Pairs
    targets: Names

    def listed_as(self, name: str) -> str:
        """Return the listed operator that a name stands for, empty where there is none."""
        same = (name, f"{name}_", name.removesuffix("_"), self.aliases.names.get(name, ""))
        return next((each for each in same if each in self.listed.names), "")

    @property
    def list_date(self) -> str:
        """When the list was last changed (year and month)."""
        return self.sources[self.listed.source].date


@cache
def published() -> Published:
    """Return what comes with trnwatch, read once per process."""
    return msgspec.convert(tomllib.loads(FILE.read_text(encoding="utf-8")), Published)
