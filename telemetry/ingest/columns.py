"""Reports that are alike but for their numbers, as one line: a template, and columns of numbers.

What the line stands for is what its reports are one by one: ``expanded`` gives those. Where the
template holds nothing unusual, ``readings`` gives the same readings in a fraction of the time.
"""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct

from telemetry.blocks import FloatArray
from telemetry.ingest.beside_wire import AgentState
from telemetry.ingest.bounds import Sequence, StreamName, UnixSeconds
from telemetry.ingest.reading import Reading
from telemetry.ingest.recipe import Recipe
from telemetry.ingest.refusal import RefusedError, explain
from telemetry.ingest.templates import HOLE, recipe_of

# How such a line begins, to the letter.
BEGINS = b'{"columns":'
MAX_ROWS = 1000
# Whole numbers up to here are the same as 64-bit floats.
MOST_EXACT = 2.0**53
Rows = Meta(min_length=1, max_length=MAX_ROWS)


class Columns(Struct, gc=False):
    """Reports of one stream; ``template`` has U+007F where each number belongs.

    ``once`` has the first report's numbers, ``more`` those of the later ones that differ
    somewhere, report by report: their places are in ``varies``. Both are little-endian 64-bit
    floats in Base64. ``agent`` is how the sender fares.
    """

    stream: StreamName
    seq: Annotated[list[Sequence], Rows]
    at: Annotated[list[UnixSeconds], Rows]
    template: str
    once: str
    varies: list[Annotated[int, Meta(ge=0)]]
    more: str
    agent: AgentState | None = None


class ColumnsLine(Struct, gc=False):
    """One line."""

    columns: Columns


_LINE = msgspec.json.Decoder(ColumnsLine)


@dataclass(frozen=True, slots=True)
class Filled:
    """One report of a line, written out only when somebody wants it."""

    template: str
    numbers: FloatArray

    def __bytes__(self) -> bytes:
        exact = [int(n) if n.is_integer() else n for n in self.numbers.tolist()]
        words = msgspec.json.encode(exact)[1:-1].split(b",")
        parts = self.template.encode().split(HOLE.encode())
        return (
            b"".join([part for pair in zip(parts, words, strict=False) for part in pair])
            + (parts[-1])
        )


@dataclass(frozen=True, slots=True)
class Table:
    """A line that was read: what was sent, and its numbers (n_rows, n_holes)."""

    sent: Columns
    numbers: FloatArray

    def expanded(self) -> Iterator[bytes]:
        """Yield the reports one by one, each as it would have been sent alone."""
        last = len(self.numbers) - 1
        for row, (at_s, seq) in enumerate(zip(self.sent.at, self.sent.seq, strict=True)):
            head: dict[str, object] = {"at": at_s, "seq": seq, "stream": self.sent.stream}
            if row == last and self.sent.agent is not None:
                head["agent"] = self.sent.agent
            text = bytes(Filled(self.sent.template, self.numbers[row]))
            yield msgspec.json.encode(head)[:-1] + b"," + text[1:]

    def readings(self) -> list[Reading] | None:
        """Return a reading for each report; None where they must be read one by one."""
        recipe = recipe_of(self.sent.template)
        if recipe is None or not recipe.fits(self.numbers):
            return None
        return self._read(recipe)

    def _read(self, recipe: Recipe) -> list[Reading]:
        values, periods_s, executed = recipe.made(self.numbers)
        sent, last = self.sent, len(self.numbers) - 1
        agent = {} if sent.agent is None else {"agent": msgspec.to_builtins(sent.agent)}
        return [
            Reading(
                recipe.identity,
                recipe.shape,
                periods_s[row],
                {name: array[row : row + 1] for name, array in values.items()},
                sent.at[row],
                sent.seq[row],
                {tag: counts[row] for tag, counts in executed.items()},
                Filled(sent.template, self.numbers[row]),
                sent.stream,
                recipe.n_efa,
                agent if row == last else {},
            )
            for row in range(last + 1)
        ]


def read_columns(line: bytes) -> Table:
    """Read a line of many reports; raises RefusedError, naming the field, if it is none."""
    try:
        sent = _LINE.decode(line).columns
    except msgspec.MsgspecError as error:
        raise explain(error, line, ColumnsLine) from error
    except UnicodeDecodeError as error:
        raise RefusedError("", "is not UTF-8") from error
    n_rows, n_holes = len(sent.seq), sent.template.count(HOLE)
    if len(sent.at) != n_rows:
        raise RefusedError("columns.at", f"has {len(sent.at)} moments for {n_rows} numbers in seq")
    if not sent.template.startswith("{") or "\n" in sent.template:
        raise RefusedError("columns.template", "is no JSON object on one line")
    if sent.varies and max(sent.varies) >= n_holes:
        reason = f"names hole {max(sent.varies)}; the template has {n_holes}"
        raise RefusedError("columns.varies", reason)
    once = _floats("columns.once", sent.once, n_holes)
    more = _floats("columns.more", sent.more, (n_rows - 1) * len(sent.varies))
    numbers = np.repeat(once[None, :], n_rows, axis=0)
    numbers[1:, sent.varies] = more.reshape(n_rows - 1, len(sent.varies))
    return Table(sent, numbers)


def _floats(field: str, text: str, n_wanted: int) -> FloatArray:
    """Return numbers that were sent as text."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedError(field, "is no Base64") from error
    if len(data) != 8 * n_wanted:
        raise RefusedError(field, f"has {len(data):,} bytes for {n_wanted:,} numbers of 8 bytes")
    found = np.frombuffer(data, "<f8")
    if not (np.abs(found) <= MOST_EXACT).all():
        raise RefusedError(field, "has a number that is none, or more than 2^53")
    return found
