"""HLO text: one instruction per line, its type, then its opcode; torch_xla's own IR alike."""

import re
from collections.abc import Iterator

from telemetry.support.dtypes import doubtful_types
from telemetry.support.names import CUSTOM_CALL, hlo_name, operator_name
from telemetry.support.records import Use

MODULE_LINE = "HloModule "
HEAD = re.compile(r"\s{0,80}(?:ROOT\s{1,8})?%?[\w.-]{1,300}\s{0,8}=\s{0,8}", re.ASCII)
# A shape: f32[4,8]{1,0:T(8,128)}; token[]; a tuple begins with a parenthesis.
SHAPE = re.compile(r"[a-z]\w{0,30}\[[^\]\s]{0,300}\](?:\{[^}\s]{0,300}\})?\s{1,8}", re.ASCII)
PARENTHESIS = re.compile(r"[()]")
OPCODE = re.compile(r"\s{0,8}([a-z][\w:-]{0,120})\(", re.ASCII)
TARGET = re.compile(r'custom_call_target="([^"]{1,200})"')


def uses(line: str) -> Iterator[Use]:
    """Yield the operator of one instruction; none where the line is none."""
    if (opcode := opcode_of(line)) and not opcode.endswith("-done"):
        name = _named(opcode.removesuffix("-start"), line)
        yield Use(name, opcode, doubtful_types(line))


def opcode_of(line: str) -> str:
    """Return the opcode of an instruction, empty where a line is none."""
    head = HEAD.match(line)
    return bare_opcode(line, head.end()) if head else ""


def bare_opcode(line: str, start: int = 0) -> str:
    """Return the opcode that follows a shape, as the analyzer writes instructions."""
    end = _end_of_type(line, start)
    found = OPCODE.match(line, end) if end else None
    return found[1] if found else ""


def _end_of_type(line: str, start: int) -> int:
    """Return where a type ends; 0 where there is none."""
    if not line.startswith("(", start):
        shape = SHAPE.match(line, start)
        return shape.end() if shape else 0
    depth = 0
    for found in PARENTHESIS.finditer(line, start):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.end()
    return 0


def _named(opcode: str, line: str) -> str:
    if "::" in opcode:
        return operator_name(opcode) or hlo_name(opcode)
    target = TARGET.search(line) if opcode == CUSTOM_CALL else None
    return f"{CUSTOM_CALL}::{target[1]}" if target else hlo_name(opcode)
