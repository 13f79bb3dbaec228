"""Operators of a model: their names, and what a list or a report says of them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

ATEN, HLO = "aten", "hlo"
CUSTOM_CALL = "custom-call"
DIALECTS = frozenset({"stablehlo", "mhlo", "chlo"})
NAME = re.compile(r"[A-Za-z_][\w.:/<>-]{0,199}\Z", re.ASCII)
# What Python's own operators are called in PyTorch, where the names differ.
OPERATORS = {
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "invert": "bitwise_not",
}
STRUCTURE = frozenset(
    {
        "aten::getitem",
        "hlo::parameter",
        "hlo::constant",
        "hlo::tuple",
        "hlo::get-tuple-element",
        "hlo::call",
        "hlo::fusion",
        "hlo::return",
        "xla::device_data",
    }
)


def operator_name(text: str) -> str:
    """Return the name of an operator as written; empty where it is none.

    Overloads are left out: ``aten::add.Tensor``, ``torch.ops.aten.add.Tensor``, ``aten.add`` and
    ``add`` are one. A name with a hyphen is an opcode of HLO, as are those of its dialects.

    >>> operator_name("torch.ops.aten.add.Tensor"), operator_name("stablehlo.dot_general")
    ('aten::add', 'hlo::dot-general')
    """
    text = text.replace("\\", "")
    if not NAME.match(text):
        return ""
    space, colons, rest = text.partition("::")
    if colons:
        name = rest.partition(".")[0]
        return _joined(space.lower(), name)
    parts = [part for part in text.split(".") if part]
    if parts[:2] == ["torch", "ops"]:
        return _joined(*parts[2:4]) if len(parts) > 3 else ""
    if parts[0] in DIALECTS:
        return hlo_name(parts[1]) if len(parts) == 2 else ""
    if parts[0] in {"operator", "_operator"}:
        return _joined(ATEN, OPERATORS.get(parts[-1], parts[-1]))
    return _of_dots(parts)


def _of_dots(parts: list[str]) -> str:
    """Name a dotted path: torch.nn.functional.relu, aten.add.Tensor, add.Tensor."""
    if parts[0] in {"torch", "torch_xla", "math"}:
        return _joined(ATEN, parts[-1]) if len(parts) > 1 else ""
    if len(parts) == 1 and "-" in parts[0]:
        return hlo_name(parts[0])
    if len(parts) > 2 or parts[0] in {ATEN, "prims", "prim"}:
        return _joined(*parts[:2]) if len(parts) > 1 else ""
    return _joined(ATEN, parts[0])


def _joined(space: str, name: str) -> str:
    return f"{space}::{name}" if re.fullmatch(r"[\w-]+", name) else ""


def hlo_name(opcode: str) -> str:
    return f"{HLO}::{opcode.replace('_', '-')}"


def is_structure(name: str) -> bool:
    """Whether a node only connects the graph: inputs, constants, tuples, calls."""
    return name in STRUCTURE or name.startswith("prim::")


LONGEST_QUOTE = 60


class SupportError(ValueError):
    """A file that cannot be read as operators: says the line, where there is one, and the remedy.

    ``line`` counts from 1; 0 means the whole file.
    """

    def __init__(self, message: str, *, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line


def quoted(text: str) -> str:
    shown = "".join(char if char.isprintable() else "\u00b7" for char in text.strip())
    cut = shown if len(shown) <= LONGEST_QUOTE else f"{shown[:LONGEST_QUOTE]}\u2026"
    return f"\u201c{cut}\u201d"


MOST_OPERATORS = 10_000


class OperatorFileKind(StrEnum):
    """The form of a checked file; graphs are of checks by earlier versions."""

    FX = "fx"
    HLO = "hlo"
    STABLEHLO = "stablehlo"
    LIST = "list"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class OperatorUse:
    name: str
    written: str
    n: int = 1


@dataclass(slots=True)
class Operator:
    name: str
    written: str
    line: int
    n: int = 0


@dataclass(frozen=True, slots=True)
class CompilerReport:
    """What the compiler said: uses that pass and uses that fail, by operator.

    ``failures`` says of each operator that fails where in the script, and what was tried.
    """

    torch_neuronx: str
    neuronx_cc: str
    passed: Mapping[str, int]
    failed: Mapping[str, int]
    failures: Mapping[str, tuple[str, ...]]

    def name_of(self, name: str) -> str:
        """Return the report's name of an operator, in place or not; empty without one."""
        same = (name, f"{name}_", name.removesuffix("_"))
        return next((each for each in same if each in self.passed or each in self.failed), "")


@dataclass(slots=True)
class OperatorList:
    """All operators of one file, in the order of their first use.

    Inputs, constants and the like are left out. ``n_cut`` counts lines too long to be read to
    their end.
    """

    form: OperatorFileKind
    operators: dict[str, Operator] = field(default_factory=dict)
    report: CompilerReport | None = None
    n_lines: int = 0
    n_cut: int = 0
    digest: str = ""

    def add(self, use: OperatorUse, line: int) -> None:
        if is_structure(use.name):
            return
        operator = self.operators.get(use.name)
        if operator is None:
            if len(self.operators) >= MOST_OPERATORS:
                raise SupportError(
                    f"more than {MOST_OPERATORS:,} different operators; give one model", line=line
                )
            operator = self.operators[use.name] = Operator(use.name, use.written, line)
        operator.n += use.n

    def __iter__(self) -> Iterator[Operator]:
        return iter(self.operators.values())
