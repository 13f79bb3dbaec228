"""A small file of sysfs that is read over and over without being opened again."""

from __future__ import annotations

import os
from pathlib import Path

MOST_BYTES = 4096


class Opened:
    """One file, opened when it is first read, and again after it could not be."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._descriptor = -1

    def read(self) -> bytes | None:
        """Return what the file says now; None where it cannot be read."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._descriptor, MOST_BYTES, 0)
        except OSError:
            self.close()
            return None

    def integer(self) -> int | None:
        """Return the number that the file holds; None where there is none, or a negative one."""
        text = self.read()
        try:
            value = -1 if text is None else int(text)
        except ValueError:
            return None
        return value if value >= 0 else None

    def text(self) -> str | None:
        """Return the file's text without its last newline."""
        data = self.read()
        return None if data is None else data.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
