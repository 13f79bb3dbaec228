"""Lines of a file as they can be read: any bytes, any length, coloured or rewritten in place."""

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

GZIP = b"\x1f\x8b"
# Progress bars rewrite one line for hours; a line longer than this is read in part.
LONGEST_LINE_BYTES = 1 << 20
LONGEST_PIECE = 16_384
COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
UNPRINTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def opened(path: Path) -> BinaryIO:
    """Open a log for reading, gzipped or not, by its first bytes rather than its name."""
    with path.open("rb") as file:
        is_gzipped = file.read(2) == GZIP
    return cast("BinaryIO", gzip.open(path)) if is_gzipped else path.open("rb")


def lines_of(file: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
    """Yield number, bytes and whether it is whole, line by line; of a huge one the beginning.

    A compressed file that breaks off ends where it does: what was read counts.
    """
    number = 0
    try:
        while line := file.readline(LONGEST_LINE_BYTES):
            number += 1
            is_whole = line.endswith(b"\n") or len(line) < LONGEST_LINE_BYTES
            yield number, line, is_whole
            while not line.endswith(b"\n") and len(line) == LONGEST_LINE_BYTES:
                line = file.readline(LONGEST_LINE_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        yield number + 1, b"", False


def pieces_of(line: bytes) -> Iterator[str]:
    """Yield what a line showed, one after the other: a carriage return begins anew."""
    text = UNPRINTED.sub("", COLOURS.sub("", line.decode("utf-8", "replace")))
    for piece in text.rstrip("\n").split("\r"):
        if piece.strip():
            yield piece[:LONGEST_PIECE]
