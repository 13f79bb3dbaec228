"""A file of operators read from beginning to end: what it is, then every operator in it."""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import BinaryIO

from telemetry.support import fx, hlo, plain, stablehlo
from telemetry.support.errors import SupportError, quoted
from telemetry.support.lines import MIB, MOST_BYTES, Lines
from telemetry.support.records import Form, Reading, Use
from telemetry.support.report import read_report

MOST_REPORT_BYTES = 16 * MIB
# A graph shows what it is within so many lines; HLO dumps begin with one, exports with a few.
HEAD_LINES = 500
USES: dict[Form, Callable[[str], Iterator[Use]]] = {
    Form.FX: fx.uses,
    Form.HLO: hlo.uses,
    Form.STABLEHLO: stablehlo.uses,
}


def read_operators(file: BinaryIO, *, most_bytes: int = MOST_BYTES) -> Reading:
    """Read the operators of a graph, a list or a report; memory grows with operators.

    Parameters
    ----------
    file : bytes of UTF-8 text, read once
    most_bytes : bytes
        A larger file is refused.

    Raises
    ------
    SupportError
        Where the file is no text, too large, of no known form, or holds no operator.
    """
    lines = Lines(file, most_bytes=most_bytes)
    rest = iter(lines)
    head = list(islice(rest, HEAD_LINES))
    if not any(line.strip() for line in head):
        raise SupportError("the file is empty; write the graph or the list anew")
    if next(line for line in head if line.strip()).lstrip().startswith("{"):
        reading = _report(lines, head, rest)
    else:
        reading = _graph(form_of(head), chain(head, rest))
    if not reading.operators:
        first = next(line for line in head if line.strip())
        raise SupportError(
            f"no operator in {lines.n_lines:,} lines, read as {reading.form}; the first is "
            f"{quoted(first)}; docs/support-check.md shows each form"
        )
    reading.n_lines, reading.n_cut, reading.digest = lines.n_lines, lines.n_cut, lines.digest
    return reading


def form_of(head: list[str]) -> Form:
    """Return what the first lines are: a graph, unless each could be an entry of a list."""
    for line in head:
        if plain.use_of(plain.bare(line)):
            continue
        if line.startswith(hlo.MODULE_LINE) or hlo.opcode_of(line):
            return Form.HLO
        if stablehlo.MARKS.search(line):
            return Form.STABLEHLO
        if fx.MARKS.search(line):
            return Form.FX
    return Form.LIST


def _graph(form: Form, lines: Iterator[str]) -> Reading:
    reading = Reading(form)
    for number, line in enumerate(lines, start=1):
        found = plain.uses(line, number) if form is Form.LIST else USES[form](line)
        for use in found:
            reading.add(use, number)
    return reading


def _report(lines: Lines, head: list[str], rest: Iterator[str]) -> Reading:
    """Read a report whole: it is small, or it is none."""
    if lines.n_cut:
        raise SupportError("a line is too long for a report; give it as the analyzer wrote it")
    text, size = list(head), sum(map(len, head))
    for line in rest:
        size += len(line)
        if size > MOST_REPORT_BYTES:
            raise SupportError(f"a report larger than {MOST_REPORT_BYTES // MIB} MiB is none")
        text.append(line)
    return read_report("\n".join(text))
