"""A file of operators read from beginning to end: what it is, then every operator in it."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, BinaryIO

from telemetry.checks.operators import (
    ATEN,
    CUSTOM_CALL,
    MODULE,
    MOST_OPERATORS,
    CompilerReport,
    Operator,
    OperatorFileKind,
    OperatorList,
    OperatorUse,
    SupportError,
    doubtful_types,
    hlo_name,
    operator_name,
    quoted,
)

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


def uses(line: str) -> Iterator[OperatorUse]:
    """Yield the operators that one line of a graph calls."""
    text = line.partition("#")[0]
    if not text.strip():
        return
    if calls := TORCH_OPS.findall(text):
        written = [(call, operator_name(call)) for call in calls]
    elif node := NODE.search(text) or ROW.match(text):
        written = [(node[2], _target(node[1], node[2]))]
    elif scripted := SCRIPT.findall(text):
        written = [(call, operator_name(call)) for call in scripted]
    else:
        written = [
            (call, _target("module", call.removeprefix("self.")))
            if call.startswith("self.")
            else (call, _target("function", call))
            for call in CODE.findall(text)
        ]
    types = doubtful_types(text)
    for call, name in written:
        yield OperatorUse(name, call, types)


def _target(kind: str, target: str) -> str:
    """Name what a node calls; modules and unknown targets keep a name of their own."""
    if kind == "module":
        return f"{MODULE}::{target}"
    if kind == "method":
        return f"{ATEN}::{target}"
    if overload := OVERLOAD.search(target):
        return operator_name(overload[1])
    if built_in := BUILT_IN.match(target):
        return operator_name(f"operator.{built_in[1]}")
    return operator_name(target) or f"{MODULE}::{target}"


MODULE_LINE = "HloModule "
HEAD = re.compile(r"\s{0,80}(?:ROOT\s{1,8})?%?[\w.-]{1,300}\s{0,8}=\s{0,8}", re.ASCII)
# A shape: f32[4,8]{1,0:T(8,128)}; token[]; a tuple begins with a parenthesis.
SHAPE = re.compile(r"[a-z]\w{0,30}\[[^\]\s]{0,300}\](?:\{[^}\s]{0,300}\})?\s{1,8}", re.ASCII)
PARENTHESIS = re.compile(r"[()]")
OPCODE = re.compile(r"\s{0,8}([a-z][\w:-]{0,120})\(", re.ASCII)
TARGET = re.compile(r'custom_call_target="([^"]{1,200})"')


def hlo_uses(line: str) -> Iterator[OperatorUse]:
    if (opcode := opcode_of(line)) and not opcode.endswith("-done"):
        name = _named(opcode.removesuffix("-start"), line)
        yield OperatorUse(name, opcode, doubtful_types(line))


def opcode_of(line: str) -> str:
    head = HEAD.match(line)
    return bare_opcode(line, head.end()) if head else ""


def bare_opcode(line: str, start: int = 0) -> str:
    """Return the opcode after a shape, as the analyzer writes instructions; empty without."""
    end = depth = 0
    if line.startswith("(", start):
        for found in PARENTHESIS.finditer(line, start):
            depth += 1 if found[0] == "(" else -1
            if depth == 0:
                end = found.end()
                break
    elif shape := SHAPE.match(line, start):
        end = shape.end()
    opcode = OPCODE.match(line, end) if end else None
    return opcode[1] if opcode else ""


def _named(opcode: str, line: str) -> str:
    if "::" in opcode:
        return operator_name(opcode) or hlo_name(opcode)
    target = TARGET.search(line) if opcode == CUSTOM_CALL else None
    return f"{CUSTOM_CALL}::{target[1]}" if target else hlo_name(opcode)


NAME = r"([A-Za-z_][\w.:\\-]{0,200}?)"
COUNT = r"(\d{1,9})"
FRAME = re.compile(r"[+=|-]{3,}\Z")
AFTER = re.compile(rf"{NAME}(?:\s{{0,8}}[\s,;:=\u00d7]\s{{0,8}}{COUNT})?\Z")
BEFORE = re.compile(rf"{COUNT}\s{{0,8}}[\s,;\u00d7x*]\s{{0,8}}{NAME}\Z")
REMEDY = "write one operator per line, like aten::add, with its count behind it if you have one"


def plain_uses(line: str, number: int) -> Iterator[OperatorUse]:
    """Yield the operator of one line; a comment, a rule or an empty line has none.

    Raises SupportError where a line is none of these: a list is short enough to be mended.
    """
    text = bare(line)
    if text:
        use = use_of(text)
        if use is None:
            raise SupportError(f"{quoted(text)} is no operator; {REMEDY}", line=number)
        yield use


def bare(line: str) -> str:
    """Strip comment, bullet, table frame and quotes."""
    text = line.partition("#")[0].strip()
    if FRAME.match(text):
        return ""
    text = text.strip("|").strip()
    return text.removeprefix("- ").removeprefix("* ").strip().rstrip(",;").strip("\"'`").strip()


def use_of(text: str) -> OperatorUse | None:
    if found := AFTER.match(text):
        written, count = found[1], found[2]
    elif found := BEFORE.match(text):
        written, count = found[2], found[1]
    else:
        return None
    name = operator_name(written)
    n = int(count) if count else 1
    return OperatorUse(name, written, n=n) if name and n else None


# Attributes (#stablehlo.…, mhlo.num_partitions = 1) and types (!stablehlo.…) are no operators.
OPERATION = re.compile(
    r"(?<![\w.#!])((?:stablehlo|mhlo|chlo)\.(\w{1,100}))(?![\w.]|\s?=)", re.ASCII
)
STABLEHLO_TARGET = re.compile(
    r'custom_call @"?([\w$.-]{1,200})|call_target_name = "([^"]{1,200})"', re.ASCII
)
STABLEHLO_MARKS = re.compile(r'(?<![\w.#!])"?(?:stablehlo|mhlo|chlo)\.\w', re.ASCII)


def stablehlo_uses(line: str) -> Iterator[OperatorUse]:
    """Yield the operators of one line; a reduction has its inner operator on the same line."""
    text = line.partition("//")[0]
    types = doubtful_types(text)
    for written, name in OPERATION.findall(text):
        target = STABLEHLO_TARGET.search(text) if name == "custom_call" else None
        called = f"{CUSTOM_CALL}::{target[1] or target[2]}" if target else hlo_name(name)
        yield OperatorUse(called, written, types)


SUPPORTED, UNSUPPORTED = "supported_operators", "unsupported_operators"
REPORT_REMEDY = "give the analyzer's unchanged result.json"
OPERATOR = re.compile(r'"([A-Za-z_]\w{0,60}::\w{1,200})[".]', re.ASCII)
MOST_COUNT = 10**9
MOST_WHERE, LONGEST_WHERE, LONGEST_VERSION = 5, 200, 60


def read_report(text: str) -> OperatorList:
    """Read a report: its operators, how often, where in the file, and the reasons.

    Raises SupportError where it is no JSON, or not of this form; says the line or the field.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise SupportError(f"no JSON: {error.msg}; {REPORT_REMEDY}", line=error.lineno) from error
    except (RecursionError, ValueError) as error:
        raise SupportError(
            f"no report: it is nested or counts beyond reason; {REPORT_REMEDY}"
        ) from error
    if not isinstance(document, dict):
        raise SupportError(f"it is no object of JSON; {REPORT_REMEDY}")
    if not {SUPPORTED, UNSUPPORTED} & document.keys():
        raise SupportError(f"it has neither {SUPPORTED} nor {UNSUPPORTED}; {REPORT_REMEDY}")
    passed, failed = Counter[str](), Counter[str]()
    for name, n in _passed(document.get(SUPPORTED) or {}):
        passed[name] += n
    where: dict[str, list[str]] = {}
    for field, kind, entries in _by_kind(document.get(UNSUPPORTED) or [], UNSUPPORTED):
        if not isinstance(entries, list):
            raise SupportError(f"{field} is no list; {REPORT_REMEDY}")
        for entry in entries:
            if not isinstance(entry, dict):
                raise SupportError(f"{field} holds {quoted(str(entry))}; {REPORT_REMEDY}")
            name, reason = _failure(entry, kind, field)
            failed[name] += 1
            where.setdefault(name, []).append(reason)
    total = passed + failed
    if len(total) > MOST_OPERATORS:
        raise SupportError(f"it has more than {MOST_OPERATORS:,} operators; {REPORT_REMEDY}")
    report = CompilerReport(
        torch_neuronx=_version(document, "torch_neuronx_version"),
        neuronx_cc=_version(document, "neuronx_cc_version"),
        passed=dict(passed),
        failed=dict(failed),
        failures={
            name: tuple(dict.fromkeys(filter(None, reasons)))[:MOST_WHERE]
            for name, reasons in where.items()
        },
    )
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        for found in OPERATOR.findall(line):
            lines.setdefault(operator_name(found), number)
    # PyTorch's operators; the HLO instructions below them are only reasons.
    names = [name for name in total if not name.startswith("hlo::")] or list(total)
    operators = {
        name: Operator(name, name, lines.get(name, 1), total[name])
        for name in sorted(names, key=lambda name: (lines.get(name, 1), name))
    }
    return OperatorList(OperatorFileKind.REPORT, operators, report)


def _by_kind(section: Any, field: str) -> Iterator[tuple[str, str, Any]]:
    """Yield field, kind and entries of a section; older reports have no kinds."""
    if isinstance(section, dict) and section.keys() <= {"aten", "xla"}:
        for kind, entries in section.items():
            yield f"{field}.{kind}", kind, entries
    else:
        yield field, "aten", section


def _passed(section: Any) -> Iterator[tuple[str, int]]:
    for field, kind, entries in _by_kind(section, SUPPORTED):
        if kind == "xla" and isinstance(entries, list):
            yield from ((_opcode(each, field), 1) for each in entries)
        elif isinstance(entries, dict):
            yield from (
                (_name(each, field), _count(n, f"{field}.{each}")) for each, n in entries.items()
            )
        elif entries:
            raise SupportError(f"{field} holds no operators with their counts; {REPORT_REMEDY}")


def _failure(entry: dict[str, Any], kind: str, field: str) -> tuple[str, str]:
    """Return what failed, and where in the script or the compiler."""
    if kind == "xla":
        instruction = str(entry.get("hlo_instruction", ""))
        return _opcode(instruction, field), instruction[:LONGEST_WHERE]
    call = str(entry.get("call") or "").strip().splitlines()
    reason = (str(entry.get("failureAt") or "").strip(), call[0].strip() if call else "")
    return _name(entry.get("kind"), field), ", ".join(filter(None, reason))[:LONGEST_WHERE]


def _name(given: Any, field: str) -> str:
    name = operator_name(given) if isinstance(given, str) else ""
    if not name:
        raise SupportError(f"{field} holds {quoted(str(given))}, no operator; {REPORT_REMEDY}")
    return name


def _opcode(given: Any, field: str) -> str:
    opcode = bare_opcode(given) if isinstance(given, str) else ""
    if not opcode:
        raise SupportError(
            f"{field} holds {quoted(str(given))}, no HLO instruction; {REPORT_REMEDY}"
        )
    return hlo_name(opcode)


def _count(given: Any, field: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 < given <= MOST_COUNT:
        raise SupportError(f"{field} is {quoted(str(given))}, no count; {REPORT_REMEDY}")
    return given


def _version(document: dict[str, Any], field: str) -> str:
    given = document.get(field)
    text = given if isinstance(given, str) else ""
    return "".join(char for char in text if char.isprintable())[:LONGEST_VERSION]


MIB = 1 << 20
MOST_BYTES = 512 * MIB
LONGEST_LINE_BYTES = 65_536
UTF_16 = "UTF-16, as some shells write it; save it as UTF-8 first"
# What people give instead of text, by its first bytes, and what to do then.
NOT_TEXT = {
    b"PK": "a zip archive, such as a saved .pt2; write print(exported_program) to a file of text",
    b"\x1f\x8b": "gzipped; unpack it first",
    b"\xff\xfe": UTF_16,
    b"\xfe\xff": UTF_16,
}
BINARY = "not text, such as a protobuf of HLO (.pb); write the graph's text to a file"


class Lines:
    """The lines of a file, cut where they are too long, with counts."""

    def __init__(self, file: BinaryIO, *, most_bytes: int = MOST_BYTES) -> None:
        self._file = file
        self._most = most_bytes
        self._hash = hashlib.sha256()
        self.n_bytes = 0
        self.n_lines = 0
        self.n_cut = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[str]:
        """Yield each line without its end, cut to LONGEST_LINE_BYTES."""
        while piece := self._piece():
            self.n_lines += 1
            check_text(piece, is_first=self.n_lines == 1)
            yield piece.decode("utf-8", "replace").lstrip("\ufeff").rstrip("\r\n")
            if not piece.endswith(b"\n") and len(piece) == LONGEST_LINE_BYTES:
                self.n_cut += 1
                while piece and not piece.endswith(b"\n"):
                    piece = self._piece()

    def _piece(self) -> bytes:
        piece = self._file.readline(LONGEST_LINE_BYTES)
        self.n_bytes += len(piece)
        if self.n_bytes > self._most:
            size = f"{self._most / MIB:,.4g} MiB"
            raise SupportError(f"the file is larger than {size}; give the graph of one layer")
        self._hash.update(piece)
        return piece


def check_text(line: bytes, *, is_first: bool) -> None:
    """Refuse binary files, with what to do instead."""
    marks = NOT_TEXT.items() if is_first else ()
    kind = next((words for mark, words in marks if line.startswith(mark)), "")
    if not kind and b"\0" in line:
        kind = BINARY
    if kind:
        raise SupportError(f"the file is {kind}")


MOST_REPORT_BYTES = 16 * MIB
# A graph shows what it is within so many lines; HLO dumps begin with one, exports with a few.
HEAD_LINES = 500
USES: dict[OperatorFileKind, Callable[[str], Iterator[OperatorUse]]] = {
    OperatorFileKind.FX: uses,
    OperatorFileKind.HLO: hlo_uses,
    OperatorFileKind.STABLEHLO: stablehlo_uses,
}


def read_operators(file: BinaryIO, *, most_bytes: int = MOST_BYTES) -> OperatorList:
    """Read the operators of a graph, a list or a report; memory grows with operators.

    Parameters
    ----------
    file : bytes of UTF-8 text, read once
    most_bytes : bytes
        A larger file is refused.

    Raises SupportError where the file is no text, too large, of no known form, or holds no
    operator.
    """
    lines = Lines(file, most_bytes=most_bytes)
    rest = iter(lines)
    head = list(islice(rest, HEAD_LINES))
    if not any(line.strip() for line in head):
        raise SupportError("the file is empty; write the graph or the list again")
    if next(line for line in head if line.strip()).lstrip().startswith("{"):
        reading = _report(lines, head, rest)
    else:
        form = form_of(head)
        reading = OperatorList(form)
        for number, line in enumerate(chain(head, rest), start=1):
            is_list = form is OperatorFileKind.LIST
            for use in plain_uses(line, number) if is_list else USES[form](line):
                reading.add(use, number)
    if not reading.operators:
        first = next(line for line in head if line.strip())
        raise SupportError(
            f"no operator in {lines.n_lines:,} lines, read as {reading.form}; the first is "
            f"{quoted(first)}; docs/support-check.md shows each form"
        )
    reading.n_lines, reading.n_cut, reading.digest = lines.n_lines, lines.n_cut, lines.digest
    return reading


def form_of(head: list[str]) -> OperatorFileKind:
    """Recognise the form by the first lines; a list if each could be an entry of one."""
    for line in head:
        if use_of(bare(line)):
            continue
        if line.startswith(MODULE_LINE) or opcode_of(line):
            return OperatorFileKind.HLO
        if STABLEHLO_MARKS.search(line):
            return OperatorFileKind.STABLEHLO
        if MARKS.search(line):
            return OperatorFileKind.FX
    return OperatorFileKind.LIST


def _report(lines: Lines, head: list[str], rest: Iterator[str]) -> OperatorList:
    if lines.n_cut:
        raise SupportError("a line is too long for a report; give it as the analyzer wrote it")
    text, size = list(head), sum(map(len, head))
    for line in rest:
        size += len(line)
        if size > MOST_REPORT_BYTES:
            raise SupportError(f"a report larger than {MOST_REPORT_BYTES // MIB} MiB is none")
        text.append(line)
    return read_report("\n".join(text))
