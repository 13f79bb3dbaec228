"""A list of operators, or the compiler's report, read from beginning to end."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO

from telemetry.checks.operators import (
    MOST_OPERATORS,
    CompilerReport,
    Operator,
    OperatorFileKind,
    OperatorList,
    OperatorUse,
    SupportError,
    hlo_name,
    operator_name,
    quoted,
)

# A shape: f32[4,8]{1,0:T(8,128)}; token[]; a tuple begins with a parenthesis.
SHAPE = re.compile(r"[a-z]\w{0,30}\[[^\]\s]{0,300}\](?:\{[^}\s]{0,300}\})?\s{1,8}", re.ASCII)
PARENTHESIS = re.compile(r"[()]")
OPCODE = re.compile(r"\s{0,8}([a-z][\w:-]{0,120})\(", re.ASCII)


def bare_opcode(line: str) -> str:
    """Return the opcode after a shape, as the analyzer writes instructions; empty without."""
    end = depth = 0
    if line.startswith("("):
        for parenthesis in PARENTHESIS.finditer(line):
            depth += 1 if parenthesis[0] == "(" else -1
            if depth == 0:
                end = parenthesis.end()
                break
    elif shape := SHAPE.match(line):
        end = shape.end()
    opcode = OPCODE.match(line, end) if end else None
    return opcode[1] if opcode else ""


NAME = r"([A-Za-z_][\w.:\\-]{0,200}?)"
COUNT = r"(\d{1,9})"
FRAME = re.compile(r"[+=|-]{3,}\Z")
AFTER = re.compile(rf"{NAME}(?:\s{{0,8}}[\s,;:=\u00d7]\s{{0,8}}{COUNT})?\Z")
BEFORE = re.compile(rf"{COUNT}\s{{0,8}}[\s,;\u00d7x*]\s{{0,8}}{NAME}\Z")
REMEDY = (
    "write one operator per line, like aten::add, with its count behind it if you have one; "
    "docs/support-check.md shows how to list those of a graph"
)


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
    if match := AFTER.match(text):
        written, count = match[1], match[2]
    elif match := BEFORE.match(text):
        written, count = match[2], match[1]
    else:
        return None
    name = operator_name(written)
    n = int(count) if count else 1
    return OperatorUse(name, written, n=n) if name and n else None


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
        for operator in OPERATOR.findall(line):
            lines.setdefault(operator_name(operator), number)
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
            yield from ((_opcode(entry, field), 1) for entry in entries)
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
    b"PK": "a zip archive, such as a saved .pt2; write its operators to a file of text",
    b"\x1f\x8b": "gzipped; unpack it first",
    b"\xff\xfe": UTF_16,
    b"\xfe\xff": UTF_16,
}
BINARY = "not text, such as a protobuf of HLO (.pb); write its operators to a file of text"


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
            raise SupportError(f"the file is larger than {size}; give the operators of one layer")
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


def read_operators(file: BinaryIO, *, most_bytes: int = MOST_BYTES) -> OperatorList:
    """Read the operators of a list or a report; memory grows with operators.

    Parameters
    ----------
    file : bytes of UTF-8 text, read once
    most_bytes : bytes
        A larger file is refused.

    Raises SupportError where the file is no text, too large, neither a list nor a report, or
    holds no operator.
    """
    lines = Lines(file, most_bytes=most_bytes)
    rest = iter(lines)
    first = next((line for line in rest if line.strip()), "")
    if not first:
        raise SupportError("the file is empty; write the list again")
    # Empty lines before it count.
    if first.lstrip().startswith("{"):
        reading = _report(lines, ["\n" * (lines.n_lines - 1) + first], rest)
    else:
        reading = OperatorList(OperatorFileKind.LIST)
        for number, line in enumerate(chain([first], rest), start=lines.n_lines):
            for use in plain_uses(line, number):
                reading.add(use, number)
    if not reading.operators:
        raise SupportError(
            f"no operator in {lines.n_lines:,} lines, read as {reading.form}; the first is "
            f"{quoted(first)}; docs/support-check.md shows each form"
        )
    reading.n_lines, reading.n_cut, reading.digest = lines.n_lines, lines.n_cut, lines.digest
    return reading


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
