"""Reports that are alike but for their numbers, as one line: a template, and columns of numbers.

A server reads such a line many times quicker than the reports themselves; docs/real-nodes.md
describes it. Whatever does not fit is sent as it is.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from telemetry.agent.frames import Frame

# Stands in a template where a number was; a report that has this character is sent as it is.
HOLE = b"\x7f"
# A number that measures: what counts or names the machine's parts belongs to the template.
NUMBER = re.compile(
    rb'(?<=":)(?<!index":)(?<!"pid":)(?<!"port":)(?<!"core":)(?<!"device":)(?<!_count":)'
    rb"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?=[,}])"
)
ESCAPED = re.compile(rb"\\.")
# Whole numbers up to here are the same as 64-bit floats.
MOST_EXACT = 2.0**53
MOST_ROWS = 30
GUNZIP = 16 + zlib.MAX_WBITS


@dataclass(frozen=True)
class Row:
    """One report: its template, and the numbers that fill it."""

    template: bytes
    numbers: array[float]


@dataclass(frozen=True)
class Run:
    """Frames that go together: as they are, or as columns where there is a row for each."""

    frames: list[Frame]
    rows: list[Row]

    @property
    def is_columns(self) -> bool:
        """Whether they go as columns; for a single one it is not worth it."""
        return len(self.rows) > 1


def runs(frames: Sequence[Frame]) -> Iterator[Run]:
    """Split frames, in order, into runs of one template, and of those that have none."""
    run = Run([], [])
    for frame in frames:
        row = _row(frame)
        template = run.rows[0].template if run.rows else None
        is_other = (row.template if row else None) != template
        if run.frames and (is_other or len(run.frames) == MOST_ROWS):
            yield run
            run = Run([], [])
        run.frames.append(frame)
        run.rows.extend([row] if row else [])
    if run.frames:
        yield run


def columns(
    rows: Sequence[Row],
    *,
    stream: str,
    seq: Sequence[int],
    at_s: Sequence[float],
    health: Mapping[str, Any],
) -> bytes:
    """Return reports of one template as one line; of numbers that stay the first is enough."""
    table = [*zip(*(row.numbers for row in rows))]
    varies = [i for i, column in enumerate(table) if column.count(column[0]) < len(column)]
    more = array("d", (row.numbers[i] for row in rows[1:] for i in varies))
    said = {
        "stream": stream,
        "seq": seq,
        "at": [round(moment_s, 6) for moment_s in at_s],
        "template": rows[0].template.decode(),
        "once": _text(rows[0].numbers),
        "varies": varies,
        "more": _text(more),
        "agent": health,
    }
    return (
        json.dumps({"columns": said}, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    )


def _row(frame: Frame) -> Row | None:
    """Take a report apart; None where its numbers cannot be told from its text."""
    text = b"{" + zlib.decompress(frame.tail, GUNZIP).rstrip()
    parts = NUMBER.split(text)
    if len(parts) < 3 or HOLE in text:
        return None
    numbers = array("d", map(float, parts[1::2]))
    if max(numbers) > MOST_EXACT or min(numbers) < -MOST_EXACT:
        return None
    template = HOLE.join(parts[::2])
    return Row(template, numbers) if _is_sound(template) else None


_sound: set[bytes] = set()


def _is_sound(template: bytes) -> bool:
    """Whether a template is text, with no hole inside a string: between holes quotes pair up."""
    if template in _sound:
        return True
    try:
        template.decode()
    except UnicodeDecodeError:
        return False
    if any(ESCAPED.sub(b"", part).count(b'"') % 2 for part in template.split(HOLE)):
        return False
    if len(_sound) > 8:
        _sound.clear()
    _sound.add(template)
    return True


def _text(numbers: array[float]) -> str:
    """Return numbers as text: little-endian 64-bit floats in Base64."""
    if sys.byteorder == "big":
        numbers = array("d", numbers)
        numbers.byteswap()
    return base64.b64encode(numbers).decode()
