"""Compiles of the Neuron compiler, read from its wrapper's log lines in the training process."""

import logging
import os
import re
import weakref
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Optional

from trnwatch.log import warn_once

# The wrapper logs under these names, which its lines also show between bars.
LOGGERS = ("NEURON_CC_WRAPPER", "NCC_WRAPPER", "NEURON_CACHE", "NEURON_PARALLEL_COMPILE")
MODULE = re.compile(r"MODULE_[0-9A-Za-z_]{1,60}(?:\+[0-9A-Za-z]{1,40})?", re.ASCII)
COMPILER = re.compile(r"neuronxcc-([0-9A-Za-z.+_-]{1,60})/", re.ASCII)
COMMAND = re.compile(r"neuronx?-cc compile\s+(.*)", re.ASCII)
CACHE = re.compile(r"Compile cache path: (\S{1,500})", re.ASCII)
CACHED_AT = re.compile(r"(?: at| from) (\S{1,500}?)/?(?:neuronxcc-|MODULE_)", re.ASCII)
PATHS = re.compile(r"\s?(?:--output[ =]\S+|\S*\.hlo_module\.pb|\S*\.neff)")
# These flags configure the cache and are not part of its key.
CACHE_FLAGS = re.compile(
    r"--(?:cache_dir|log_level)[ =]\S+|--(?:no_cache|retry_failed_compilation)\b"
)
# What the wrapper logs of a graph in the cache, and at the end of a compile.
CACHED = {"Using a cached neff": "hit", "Got a cached failed neff at": "fail"}
ENDED = {"Compilation Successfully Completed": "miss", "Compilation failed": "fail"}
FACTS = ("compiler", "flags", "cache", "shape")
MAX_TEXT_CHARS = {"compiler": 60, "flags": 500, "cache": 500, "shape": 200}
MAX_OPEN = 1_000


def toolchain(env: Mapping[str, str]) -> dict[str, object]:
    """Return the compiler's flags and version in this process; empty if unknown."""
    flags = CACHE_FLAGS.sub("", env.get("NEURON_CC_FLAGS", ""))
    try:
        version = metadata.version("neuronx-cc")
    except Exception:
        version = ""
    return {"compiler_flags": " ".join(flags.split()), "compiler_version": version}


def compile_record(
    module: str, outcome: str, facts: Mapping[str, Any], *, now_s: float
) -> dict[str, Any]:
    """Return a compile as reported to the server; raises ValueError for invalid facts."""
    if outcome not in ("hit", "miss", "fail"):
        raise ValueError(f"outcome: {outcome!r} is unknown. Give hit, miss or fail")
    if unknown := set(facts) - {"seconds", "at", "planned", *FACTS}:
        known = ", ".join(("seconds", "at", "planned", *FACTS))
        raise ValueError(f"{min(unknown)}: unknown. Give one of {known}")
    seconds: Optional[float] = facts.get("seconds")
    if outcome == "hit" or seconds is None or not 0 <= seconds <= 1e6:
        seconds = None
    at = facts.get("at")
    texts = {
        name: " ".join(str(facts.get(name) or "").split())[: MAX_TEXT_CHARS[name]]
        for name in FACTS
    }
    return {
        "module": module[:120],
        "outcome": outcome,
        "at": round(now_s - (seconds or 0.0) if at is None else float(at), 6),
        "seconds": None if seconds is None else round(float(seconds), 6),
        "planned": True if facts.get("planned") else None,
        **{name: text or None for name, text in texts.items()},
    }


def facts_of(text: str, *, cache: str) -> dict[str, str]:
    """Return what a line of the wrapper says of a compile; ``cache`` if it names no other."""
    compiler, command = COMPILER.search(text), COMMAND.search(text)
    cached = CACHED_AT.search(text)
    return {
        "compiler": compiler[1] if compiler else "",
        "flags": PATHS.sub("", command[1]).strip() if command else "",
        "cache": cached[1].rstrip("/") if cached else cache,
    }


class CompileLines:
    """Joins the wrapper's lines of one process: the start of each compile with its end."""

    def __init__(self) -> None:
        self._begun: dict[str, dict[str, Any]] = {}
        self._cache = ""

    def read(self, text: str, at: float) -> list[dict[str, Any]]:
        """Read one line, logged at Unix time ``at``; return the compiles that it completes."""
        match = MODULE.search(text)
        module = match[0] if match else ""
        for words, outcome in CACHED.items():
            if words in text:
                facts = facts_of(text, cache=self._cache)
                return [dict(facts, module=module, outcome=outcome, at=at)]
        if "Call compiler with cmd" in text:
            return self._begin(module, text, at)
        for words, outcome in ENDED.items():
            if words in text:
                return self._end(module, outcome, at)
        if "Compiler status " in text:
            # It names no module: it is that of the newest compile.
            newest = self._compiling()[-1:]
            if "Compiler status PASS" not in text:
                return [each for name in newest for each in self._end(name, "fail", at)]
            for name in newest:
                self._begun[name]["passed_at"] = at
        elif path := CACHE.search(text):
            self._cache = path[1]
        return []

    @property
    def is_compiling(self) -> bool:
        return bool(self._compiling())

    def _compiling(self) -> list[str]:
        return [name for name, begun in self._begun.items() if "passed_at" not in begun]

    def _begin(self, module: str, text: str, at: float) -> list[dict[str, Any]]:
        # One process compiles one graph at a time: those that passed have ended.
        over = [name for name, begun in self._begun.items() if "passed_at" in begun]
        ended = [each for name in over for each in self._end(name, "miss", at)]
        if len(self._begun) < MAX_OPEN:
            self._begun[module] = dict(facts_of(text, cache=self._cache), at=at)
        return ended

    def _end(self, module: str, outcome: str, at: float) -> list[dict[str, Any]]:
        begun = self._begun.pop(module, None)
        if begun is None:
            return [{"module": module, "outcome": outcome, "at": at, "cache": self._cache}]
        took_s = begun.pop("passed_at", at) - begun["at"]
        return [dict(begun, module=module, outcome=outcome, seconds=max(0.0, took_s))]


class CompileLogHandler(logging.Handler):
    """Passes the wrapper's log lines to a reporter, which it references weakly."""

    def __init__(self, reporter: Any) -> None:
        super().__init__()
        self.reporter = weakref.ref(reporter)
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on one line; errors are logged once and never raised to the caller."""
        try:
            reporter = self.reporter()
            if reporter is not None and os.getpid() == self._pid:
                reporter.compile_line(record.getMessage(), at=record.created)
        except Exception as error:
            warn_once("a line of the compiler is not read: %s", error)


def attach_log_handler(reporter: Any) -> None:
    """Read the compiler wrapper's log in this process, for one reporter."""
    added: Optional[CompileLogHandler] = None
    for name in LOGGERS:
        log = logging.getLogger(name)
        for handler in list(log.handlers):
            if isinstance(handler, CompileLogHandler) and handler.reporter() in (None, reporter):
                log.removeHandler(handler)
        added = added or CompileLogHandler(reporter)
        log.addHandler(added)
