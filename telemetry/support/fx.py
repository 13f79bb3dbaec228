"""Graphs of PyTorch: torch.export and FX, as code, as nodes or as a table; TorchScript too."""

import re
from collections.abc import Iterator

from telemetry.support.dtypes import doubtful_types
from telemetry.support.names import ATEN, MODULE, operator_name
from telemetry.support.records import Use

MARKS = re.compile(
    r"torch\.ops\.|call_(?:function|method|module)\b|class GraphModule\b|ExportedProgram:"
    r"|\bgraph\(|= ?aten::",
    re.ASCII,
)
TORCH_OPS = re.compile(r"(?<![\w.])torch\.ops(?:\.\w{1,200}){2,3}", re.ASCII)
NODE = re.compile(r"call_(function|method|module)\[target=([^\]]{1,400})\]", re.ASCII)
ROW = re.compile(
    r"\s{0,8}call_(function|method|module)\s{1,200}\S{1,300}\s{1,200}(<[^>]{1,300}>|\S{1,300})",
    re.ASCII,
)
SCRIPT = re.compile(r"(?<![\w:.])(\w{1,60}::\w{1,200}(?:\.\w{1,60})?)\(", re.ASCII)
CODE = re.compile(
    r"(?<![=\w])= ?(torch(?:\.\w{1,100}){1,6}|self(?:\.\w{1,100}){1,20})\(", re.ASCII
)
OVERLOAD = re.compile(r"op='(\w{1,60}\.\w{1,200})'", re.ASCII)
BUILT_IN = re.compile(r"<(?:built-in )?(?:function|method) (\w{1,200})", re.ASCII)


def uses(line: str) -> Iterator[Use]:
    """Yield the operators that one line of a graph calls; none where it calls none."""
    text = line.partition("#")[0]
    if not text.strip():
        return
    types = doubtful_types(text)
    for written, name in _written(text):
        yield Use(name, written, types)


def _written(text: str) -> Iterator[tuple[str, str]]:
    """Yield each operator as written, and its name."""
    calls = TORCH_OPS.findall(text)
    if calls:
        yield from ((call, operator_name(call)) for call in calls)
    elif node := NODE.search(text) or ROW.match(text):
        yield node[2], _target(node[1], node[2])
    elif scripted := SCRIPT.findall(text):
        yield from ((call, operator_name(call)) for call in scripted)
    else:
        for call in CODE.findall(text):
            kind = "module" if call.startswith("self.") else "function"
            yield call, _target(kind, call.removeprefix("self."))


def _target(kind: str, target: str) -> str:
    """Name what a node calls; a module or a stranger keeps a name of its own, to be unknown."""
    if kind == "module":
        return f"{MODULE}::{target}"
    if kind == "method":
        return f"{ATEN}::{target}"
    if overload := OVERLOAD.search(target):
        return operator_name(overload[1])
    if built_in := BUILT_IN.match(target):
        return operator_name(f"operator.{built_in[1]}")
    return operator_name(target) or f"{MODULE}::{target}"
