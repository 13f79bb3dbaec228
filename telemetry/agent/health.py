"""How the agent itself is doing, as it tells the server beside what it reports."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from typing import Any

from telemetry.agent import VERSION

# A trouble that lasts, or comes and goes, is logged no more often than this.
AGAIN_S = 600.0


class Health:
    """Counts since the agent began; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {"n_dropped": 0, "n_refused": 0, "n_skipped": 0}
        self._problems: dict[str, str] = {}
        self._logged_s: dict[str, float] = {}
        self._is_open: set[str] = set()

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
            news = self._news(part, text)
        if news:
            with suppress(OSError, ValueError):
                sys.stderr.write(f"trnwatch-agent: {news}\n")
                sys.stderr.flush()

    def _news(self, part: str, text: str) -> str:
        """Return what the log is to say: that a trouble began, goes on, or is over."""
        if not text:
            was_said = part in self._is_open
            self._is_open.discard(part)
            return f"{part}: well again" if was_said else ""
        now_s = time.monotonic()
        if now_s - self._logged_s.get(part, -AGAIN_S) < AGAIN_S:
            return ""
        self._logged_s[part] = now_s
        self._is_open.add(part)
        return text[:200]

    def said(self, *, n_waiting: int) -> dict[str, Any]:
        """Return what the server is told."""
        with self._lock:
            problem = "; ".join(self._problems.values())[:200]
            said = {"version": VERSION, "n_waiting": n_waiting, **self._counts}
            return {**said, "problem": problem} if problem else said
