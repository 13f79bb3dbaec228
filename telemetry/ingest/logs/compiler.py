"""What the Neuron compiler's wrapper logs: graphs found in the cache, compiled, or failed."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from telemetry.compiles import FAIL, HIT, MISS, Compile
from telemetry.ingest.logs.records import HardwareError, LogLine

NAME = "compile cache"
PROCESS = re.compile(r"\s{0,8}(\d{1,10})\s{1,8}[A-Z]{3,10}\s{1,4}\|\|", re.ASCII)
TAG = re.compile(r"\|\|N\w{2,30}\|\|", re.ASCII)
MODULE = re.compile(r"MODULE_[0-9A-Za-z_]{1,60}(?:\+[0-9A-Za-z]{1,40})?", re.ASCII)
COMPILER = re.compile(r"neuronxcc-([0-9A-Za-z.+_-]{1,60})/", re.ASCII)
COMMAND = re.compile(r"neuronx?-cc compile\s+(.*)", re.ASCII)
CACHE = re.compile(r"Compile cache path: (\S{1,500})", re.ASCII)
CACHED_AT = re.compile(r"(?: at| from) (\S{1,500}?)/?(?:neuronxcc-|MODULE_)", re.ASCII)
PATHS = re.compile(r"\s?(?:--output[ =]\S+|\S*\.hlo_module\.pb|\S*\.neff)")
MAX_FLAGS_CHARS = 500
MAX_OPEN = 10_000

KERNEL_NAME = "hardware errors"
ERROR = re.compile(r"NEURON_HW_ERR=([A-Z][A-Z0-9_]{2,59})\b", re.ASCII)
FIELD = re.compile(r"\b([a-z][a-z-]{1,20})=([^\s=]{1,100})", re.ASCII)
SYSLOG_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,99}) kernel:", re.ASCII)


@dataclass(slots=True)
class _Begun:
    """A compile whose end has not been seen yet."""

    event: Compile
    passed: bool = False


class Compiler:
    """Reader that joins the beginning and the end of each compile, process by process.

    ``Compiler status PASS`` names neither module nor process: it ends the newest compile of its
    source, unless a line that does name the module follows. Time is told only between lines
    that have it.
    """

    def __init__(self) -> None:
        self._begun: dict[tuple[str, str, str], _Begun] = {}
        self._cache: dict[str, str] = {}
        self._by_words: dict[str, Callable[[LogLine, str], list[Compile]]] = {
            "Got a cached failed neff at": self._fail,
            "Using a cached neff": self._hit,
            "Call compiler with cmd": self._begin,
            "Compilation Successfully Completed": self._done,
            "Compilation failed": self._failed,
            "Compiler status ": self._status,
        }

    def read(self, entry: LogLine) -> list[Compile] | None:
        """Read one line: the compiles that it ends, None where it says nothing known."""
        found = PROCESS.match(entry.text)
        process = found[1] if found else ""
        words = next((words for words in self._by_words if words in entry.text), None)
        if words is not None:
            return self._by_words[words](entry, process)
        if (path := CACHE.search(entry.text)) and len(self._cache) < MAX_OPEN:
            self._cache[entry.source] = path[1]
        return [] if TAG.search(entry.text) else None

    def _hit(self, entry: LogLine, process: str) -> list[Compile]:
        return [self._event(entry, process, HIT)]

    def _fail(self, entry: LogLine, process: str) -> list[Compile]:
        return [self._event(entry, process, FAIL)]

    def _done(self, entry: LogLine, process: str) -> list[Compile]:
        return self._end(entry, process, MISS)

    def _failed(self, entry: LogLine, process: str) -> list[Compile]:
        return self._end(entry, process, FAIL)

    def rest(self) -> Iterator[Compile]:
        """Return the compiles that the log does not see the end of."""
        for begun in self._begun.values():
            yield begun.event
        self._begun.clear()

    def _begin(self, entry: LogLine, process: str) -> list[Compile]:
        event = self._event(entry, process, MISS)
        over = self._begun.pop((entry.source, process, event.module), None)
        self._begun[entry.source, process, event.module] = _Begun(event)
        ended = [over.event] if over else []
        # One process that compiles one graph after the other has finished the one before.
        for key, begun in list(self._begun.items())[:-1]:
            if begun.passed and key[:2] == (entry.source, process):
                ended.append(self._begun.pop(key).event)
        if len(self._begun) > MAX_OPEN:
            ended.append(self._begun.pop(next(iter(self._begun))).event)
        return ended

    def _end(self, entry: LogLine, process: str, outcome: str) -> list[Compile]:
        module = _module(entry.text)
        begun = self._begun.pop((entry.source, process, module), None)
        if begun is None:
            return [self._event(entry, process, outcome)]
        took_s = entry.at_s - begun.event.at_s
        return [replace(begun.event, outcome=outcome, seconds=took_s if took_s >= 0 else math.nan)]

    def _status(self, entry: LogLine, _process: str) -> list[Compile]:
        mine = [key for key in self._begun if key[0] == entry.source]
        waiting = [key for key in mine if not self._begun[key].passed]
        if not waiting:
            return []
        if "Compiler status PASS" in entry.text:
            self._begun[waiting[-1]].passed = True
            return []
        failed = self._begun.pop(waiting[-1]).event
        took_s = entry.at_s - failed.at_s
        return [replace(failed, outcome=FAIL, seconds=took_s if took_s >= 0 else math.nan)]

    def _event(self, entry: LogLine, process: str, outcome: str) -> Compile:
        text = entry.text
        compiler, command = COMPILER.search(text), COMMAND.search(text)
        cached = CACHED_AT.search(text)
        return Compile(
            module=_module(text),
            outcome=outcome,
            at_s=entry.at_s,
            rank=entry.rank,
            process=f"{entry.source}:{process}",
            compiler=compiler[1] if compiler else "",
            flags=PATHS.sub("", command[1]).strip()[:MAX_FLAGS_CHARS] if command else "",
            cache=cached[1].rstrip("/") if cached else self._cache.get(entry.source, ""),
        )


def _module(text: str) -> str:
    found = MODULE.search(text)
    return found[0].removesuffix(".hlo") if found else ""


def read_kernel(entry: LogLine) -> HardwareError | None:
    """Read one line; None where it names no error."""
    error = ERROR.search(entry.text)
    if error is None:
        return None
    fields: dict[str, str] = dict(FIELD.findall(entry.text, error.end()))
    host = SYSLOG_HOST.match(entry.text)
    return HardwareError(
        kind=error[1],
        at_s=entry.at_s,
        node=fields.get("hostname") or (str(host[1]) if host else ""),
        instance=fields.get("instance-id", ""),
        device=_index(fields.get("nd-id")),
        core=_index(fields.get("nc-id")),
        serial=fields.get("serial-num", ""),
        action=fields.get("action", ""),
    )


def _index(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 6 else None
