"""What is read: an operator of a graph, and all of them with what else the file tells."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from telemetry.support.errors import SupportError
from telemetry.support.names import is_structure

MOST_OPERATORS = 10_000


class Form(StrEnum):
    """What a file of operators may be."""

    FX = "fx"
    HLO = "hlo"
    STABLEHLO = "stablehlo"
    LIST = "list"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class Use:
    """One use of an operator: its name, as it was written, and the doubtful types it has."""

    name: str
    written: str
    types: frozenset[str] = frozenset()
    n: int = 1


@dataclass(slots=True)
class Operator:
    """An operator: how often it is used, on which line first, and with which doubtful types."""

    name: str
    written: str
    line: int
    n: int = 0
    types: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Report:
    """What the compiler said: uses that pass and uses that fail, by operator.

    ``failures`` says of each operator that fails where in the script, and what was tried.
    """

    torch_neuronx: str
    neuronx_cc: str
    passed: Mapping[str, int]
    failed: Mapping[str, int]
    failures: Mapping[str, tuple[str, ...]]

    def name_of(self, name: str) -> str:
        """Return what the report calls an operator, in place or not; empty where it is silent."""
        same = (name, f"{name}_", name.removesuffix("_"))
        return next((each for each in same if each in self.passed or each in self.failed), "")


@dataclass(slots=True)
class Reading:
    """All operators of one file, in the order of their first use.

    ``n_structure`` counts inputs, constants and the like; ``n_cut`` lines too long to be read to
    their end.
    """

    form: Form
    operators: dict[str, Operator] = field(default_factory=dict)
    report: Report | None = None
    n_lines: int = 0
    n_structure: int = 0
    n_cut: int = 0
    digest: str = ""

    def add(self, use: Use, line: int) -> None:
        """Count one use."""
        if is_structure(use.name):
            self.n_structure += use.n
            return
        operator = self.operators.get(use.name)
        if operator is None:
            if len(self.operators) >= MOST_OPERATORS:
                raise SupportError(
                    f"more than {MOST_OPERATORS:,} different operators; give one graph", line=line
                )
            operator = self.operators[use.name] = Operator(use.name, use.written, line)
        operator.n += use.n
        operator.types |= use.types

    def __iter__(self) -> Iterator[Operator]:
        """Yield the operators."""
        return iter(self.operators.values())
