"""Compiles of the Neuron compiler, as its wrapper tells of them in the process that trains."""

import logging
import os
import re
import weakref
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Optional

from trnwatch.complaints import warn_once

# The wrapper logs by Python's logging, under the names that its lines carry between bars.
LOGGERS = ("NEURON_CC_WRAPPER", "NCC_WRAPPER", "NEURON_CACHE", "NEURON_PARALLEL_COMPILE")
MODULE = re.compile(r"MODULE_[0-9A-Za-z_]{1,60}(?:\+[0-9A-Za-z]{1,40})?", re.ASCII)
COMPILER = re.compile(r"neuronxcc-([0-9A-Za-z.+_-]{1,60})/", re.ASCII)
COMMAND = re.compile(r"neuronx?-cc compile\s+(.*)", re.ASCII)
CACHE = re.compile(r"Compile cache path: (\S{1,500})", re.ASCII)
CACHED_AT = re.compile(r"(?: at| from) (\S{1,500}?)/?(?:neuronxcc-|MODULE_)", re.ASCII)
PATHS = re.compile(r"\s?(?:--output[ =]\S+|\S*\.hlo_module\.pb|\S*\.neff)")
# They steer the cache, and are no part of its key.
CACHE_FLAGS = re.compile(
    r"--(?:cache_dir|log_level)[ =]\S+|--(?:no_cache|retry_failed_compilation)\b"
)
FACTS = ("compiler", "flags", "cache", "shape")
MAX_TEXT_CHARS = {"compiler": 60, "flags": 500, "cache": 500, "shape": 200}
MAX_OPEN = 1_000


def toolchain(env: Mapping[str, str]) -> dict[str, object]:
    """Return the compiler's flags and version as this process has them; empty where unknown."""
    flags = CACHE_FLAGS.sub("", env.get("NEURON_CC_FLAGS", ""))
    try:
        version = metadata.version("neuronx-cc")
    except Exception:
        version = ""
    return {"compiler_flags": " ".join(flags.split()), "compiler_version": version}


def compile_record(
    module: str, outcome: str, facts: Mapping[str, Any], *, now_s: float
) -> dict[str, Any]:
    """Return a compile as it is reported; raises ValueError for what is none."""
    if outcome not in ("hit", "miss", "fail"):
        raise ValueError(f"outcome: {outcome!r} is none of hit, miss, fail")
    if unknown := set(facts) - {"seconds", "at", "planned", *FACTS}:
        raise ValueError(f"{min(unknown)}: is nothing that a compile has")
    seconds: Optional[float] = facts.get("seconds")
    if outcome == "hit" or seconds is None or not 0 <= seconds <= 1e6:
        seconds = None
    at = facts.get("at")
    told = {
        name: " ".join(str(facts.get(name) or "").split())[: MAX_TEXT_CHARS[name]]
        for name in FACTS
    }
    return {
        "module": module[:120],
        "outcome": outcome,
        "at": round(now_s - (seconds or 0.0) if at is None else float(at), 6),
        "seconds": None if seconds is None else round(float(seconds), 6),
        "planned": True if facts.get("planned") else None,
        **{name: text or None for name, text in told.items()},
    }


class CompileLines:
    """Joins the wrapper's lines of one process: each compile's beginning with its end."""

    def __init__(self) -> None:
        self._begun: dict[str, dict[str, Any]] = {}
        self._cache = ""

    def read(self, text: str, at: float) -> list[dict[str, Any]]:
        """Read one line that was logged at a moment; return the compiles that it ends."""
        for words, told in (
            ("Using a cached neff", self._hit),
            ("Got a cached failed neff at", self._cached_failure),
            ("Call compiler with cmd", self._begin),
            ("Compilation Successfully Completed", self._done),
            ("Compiler status PASS", self._passed),
            ("Compiler status ", self._broken),
            ("Compilation failed", self._failed),
        ):
            if words in text:
                return told(_module_in(text), text, at)
        if path := CACHE.search(text):
            self._cache = path[1]
        return []

    def _hit(self, module: str, text: str, at: float) -> list[dict[str, Any]]:
        return [dict(self._facts(text), module=module, outcome="hit", at=at)]

    def _cached_failure(self, module: str, text: str, at: float) -> list[dict[str, Any]]:
        return [dict(self._facts(text), module=module, outcome="fail", at=at)]

    def _done(self, module: str, text: str, at: float) -> list[dict[str, Any]]:
        return self._end(module, "miss", at)

    def _failed(self, module: str, text: str, at: float) -> list[dict[str, Any]]:
        return self._end(module, "fail", at)

    def _passed(self, module: str, text: str, at: float) -> list[dict[str, Any]]:
        for name in self._compiling()[-1:]:
            self._begun[name]["passed_at"] = at
        return []

    def _broken(self, module: str, text: str, at: float) -> list[dict[str, Any]]:
        return [each for name in self._compiling()[-1:] for each in self._end(name, "fail", at)]

    def _compiling(self) -> list[str]:
        return [name for name, begun in self._begun.items() if "passed_at" not in begun]

    def _facts(self, text: str) -> dict[str, Any]:
        compiler, command = COMPILER.search(text), COMMAND.search(text)
        cached = CACHED_AT.search(text)
        return {
            "compiler": compiler[1] if compiler else "",
            "flags": PATHS.sub("", command[1]).strip() if command else "",
            "cache": cached[1].rstrip("/") if cached else self._cache,
        }

    def _begin(self, module: str, text: str, at: float) -> list[dict[str, Any]]:
        # One process compiles one graph after the other: what had passed is over.
        over = [name for name, begun in self._begun.items() if "passed_at" in begun]
        told = [each for name in over for each in self._end(name, "miss", at)]
        if len(self._begun) < MAX_OPEN:
            self._begun[module] = dict(self._facts(text), at=at)
        return told

    def _end(self, module: str, outcome: str, at: float) -> list[dict[str, Any]]:
        begun = self._begun.pop(module, None)
        if begun is None:
            return [{"module": module, "outcome": outcome, "at": at, "cache": self._cache}]
        took_s = begun.pop("passed_at", at) - begun["at"]
        return [dict(begun, module=module, outcome=outcome, seconds=max(0.0, took_s))]


def _module_in(text: str) -> str:
    found = MODULE.search(text)
    return found[0] if found else ""


class CompileLogHandler(logging.Handler):
    """Hands the wrapper's lines to a reporter; it goes when the reporter does."""

    def __init__(self, reporter: Any) -> None:
        super().__init__()
        self.reporter = weakref.ref(reporter)
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand on one line; nothing that goes wrong here may reach who logged it."""
        try:
            reporter = self.reporter()
            if reporter is not None and os.getpid() == self._pid:
                reporter.compile_line(record.getMessage(), at=record.created)
        except Exception as error:
            warn_once("a line of the compiler is not read: %s", error)


def attach_log_handler(reporter: Any) -> None:
    """Read what the compiler's wrapper logs in this process from now on, for one reporter."""
    heard: Optional[CompileLogHandler] = None
    for name in LOGGERS:
        log = logging.getLogger(name)
        for handler in list(log.handlers):
            if isinstance(handler, CompileLogHandler) and handler.reporter() in (None, reporter):
                log.removeHandler(handler)
        heard = heard or CompileLogHandler(reporter)
        log.addHandler(heard)
