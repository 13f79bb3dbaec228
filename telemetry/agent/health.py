"""How the agent itself is doing, as it tells the server beside what it reports."""

from __future__ import annotations

import threading
from typing import Any

from telemetry.agent import VERSION


class Health:
    """Counts since the agent began; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {"n_dropped": 0, "n_refused": 0, "n_skipped": 0}
        self._problems: dict[str, str] = {}

    def add(self, name: str, n: int = 1) -> None:
        """Count something that went wrong."""
        with self._lock:
            self._counts[name] += n

    def set(self, name: str, n: int) -> None:
        """Set a count that somebody else keeps."""
        with self._lock:
            self._counts[name] = n

    def problem(self, part: str, text: str) -> None:
        """Say what is wrong with a part of the agent; empty: nothing is, any more."""
        with self._lock:
            if text:
                self._problems[part] = text[:200]
            else:
                self._problems.pop(part, None)

    def said(self, *, n_waiting: int) -> dict[str, Any]:
        """Return what the server is told."""
        with self._lock:
            problem = "; ".join(self._problems.values())[:200]
            said = {"version": VERSION, "n_waiting": n_waiting, **self._counts}
            return {**said, "problem": problem} if problem else said
