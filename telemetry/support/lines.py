"""A file's lines, never more than memory bears: any bytes, any length, up to a size."""

import hashlib
from collections.abc import Iterator
from typing import BinaryIO

from telemetry.support.errors import SupportError

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
    """Lines of one file, cut where they are too long; counts what it read on the way."""

    def __init__(self, file: BinaryIO, *, most_bytes: int = MOST_BYTES) -> None:
        self._file = file
        self._most = most_bytes
        self._hash = hashlib.sha256()
        self.n_bytes = 0
        self.n_lines = 0
        self.n_cut = 0

    @property
    def digest(self) -> str:
        """SHA-256 of all bytes read so far, in hexadecimal."""
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[str]:
        """Yield each line without its end; of one that is too long only the beginning."""
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
    """Refuse what is no text, with what to do instead."""
    marks = NOT_TEXT.items() if is_first else ()
    kind = next((words for mark, words in marks if line.startswith(mark)), "")
    if not kind and b"\0" in line:
        kind = BINARY
    if kind:
        raise SupportError(f"the file is {kind}")
