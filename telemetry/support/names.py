"""One name for an operator, however a graph writes it: ``aten::add``, ``hlo::dot-general``."""

import re

ATEN, HLO = "aten", "hlo"
MODULE, CUSTOM_CALL = "module", "custom-call"
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

    Examples
    --------
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
    """Name what stands between dots: torch.nn.functional.relu, aten.add.Tensor, add.Tensor."""
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
    """Name an opcode of HLO, written with hyphens or, in StableHLO, with underscores."""
    return f"{HLO}::{opcode.replace('_', '-')}"


def is_structure(name: str) -> bool:
    """Whether a node only holds the graph together: inputs, constants, tuples, calls."""
    return name in STRUCTURE or name.startswith("prim::")
