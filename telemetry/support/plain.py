"""A plain list: one operator per line, if need be with how often it is used."""

import re
from collections.abc import Iterator

from telemetry.support.errors import SupportError, quoted
from telemetry.support.names import operator_name
from telemetry.support.records import Use

NAME = r"([A-Za-z_][\w.:\\-]{0,200}?)"
COUNT = r"(\d{1,9})"
FRAME = re.compile(r"[+=|-]{3,}\Z")
AFTER = re.compile(rf"{NAME}(?:\s{{0,8}}[\s,;:=\u00d7]\s{{0,8}}{COUNT})?\Z")
BEFORE = re.compile(rf"{COUNT}\s{{0,8}}[\s,;\u00d7x*]\s{{0,8}}{NAME}\Z")
REMEDY = "write one operator per line, like aten::add, with its count behind it if you have one"


def uses(line: str, number: int) -> Iterator[Use]:
    """Yield the operator of one line; a comment, a rule or an empty line has none.

    Raises
    ------
    SupportError
        Where a line is none of these: a list is short enough to be mended.
    """
    text = bare(line)
    if text:
        use = use_of(text)
        if use is None:
            raise SupportError(f"{quoted(text)} is no operator; {REMEDY}", line=number)
        yield use


def bare(line: str) -> str:
    """Return a line without comment, bullet, table frame and quotes."""
    text = line.partition("#")[0].strip()
    if FRAME.match(text):
        return ""
    text = text.strip("|").strip()
    return text.removeprefix("- ").removeprefix("* ").strip().rstrip(",;").strip("\"'`").strip()


def use_of(text: str) -> Use | None:
    """Read one entry; None where it is none."""
    if found := AFTER.match(text):
        written, count = found[1], found[2]
    elif found := BEFORE.match(text):
        written, count = found[2], found[1]
    else:
        return None
    name = operator_name(written)
    n = int(count) if count else 1
    return Use(name, written, n=n) if name and n else None
