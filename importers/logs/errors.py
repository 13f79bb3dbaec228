"""Errors that end a job, by the patterns of errors.toml."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from math import nan
from pathlib import Path

from importers.logs.records import LogLine

# In the order of causes: the later ones follow from the earlier ones.
CLASSES = ("device", "memory", "program", "network", "collective", "stopped", "process")
MAX_TEXT_CHARS = 300


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    name: str
    kind: str
    has: tuple[str, ...]
    pattern: re.Pattern[str]
    meaning: str
    source: str
    after: str = ""
    unless: str = ""


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PATTERNS = tuple(
    ErrorPattern(
        name=block["name"],
        kind=block["class"],
        has=tuple(block["has"]),
        pattern=re.compile(block["pattern"], re.ASCII),
        meaning=block["meaning"],
        source=block["source"],
        after=block.get("after", ""),
        unless=block.get("unless", ""),
    )
    for block in TABLE["error"]
)
STATUS_NAMES: dict[str, str] = TABLE["nrt_status"]
STATUS = re.compile(r"\bnrt_\w{3,40}(?::| failed:?)? ?status[= ](\d{1,4})\b", re.ASCII)
# What an error comes after, and what says that it is none.
BEFORE = tuple(text for each in PATTERNS for text in (each.after, each.unless) if text)
MARKS = (*(text for each in PATTERNS for text in each.has), *BEFORE, "nrt_")
MAX_SOURCES = 10_000
ANY_MARK = re.compile("|".join(map(re.escape, MARKS)))


@dataclass(frozen=True, slots=True)
class LoggedError:
    """An error that a line reports; empty, None or NaN where the line does not say it.

    ``device`` is a number, or the address of a GPU on its bus; ``at_s`` is in Unix seconds.
    """

    name: str
    kind: str
    meaning: str
    number: int
    text: str
    file: str = ""
    at_s: float = nan
    rank: int | None = None
    device: str = ""
    core: int | None = None
    node: str = ""
    detail: str = ""

    @property
    def where(self) -> str:
        """Name the place, as far as it is known: trn-03 device 4 core 1, rank 7."""
        place = " ".join(
            text
            for text in (
                self.node,
                f"device {self.device}" if self.device else "",
                "" if self.core is None else f"core {self.core}",
            )
            if text
        )
        return ", ".join(
            text for text in (place, "" if self.rank is None else f"rank {self.rank}") if text
        )


class ErrorReader:
    """Reads the errors that lines report; knows what the sources printed since the last step."""

    def __init__(self) -> None:
        self._newest: dict[str, str] = {}

    def forget(self) -> None:
        """Begin again: a step was trained."""
        self._newest.clear()

    def read(self, entry: LogLine, *, file: str = "") -> LoggedError | None:
        """Return the error that a line reports; None if it reports none that is known."""
        text = entry.text
        if not ANY_MARK.search(text):
            return None
        if (status := STATUS.search(text)) and (name := STATUS_NAMES.get(status[1])):
            text = f"{text} {name}"
        self._note(entry)
        for each in PATTERNS:
            if each.after and self._newest.get(entry.source) != each.after:
                continue
            if any(map(text.__contains__, each.has)) and (match := each.pattern.search(text)):
                return _error(each, match, entry, file)
        return None

    def _note(self, entry: LogLine) -> None:
        newest = next((text for text in BEFORE if text in entry.text), "")
        before = self._newest.get(entry.source, "")
        if newest and (before or len(self._newest) < MAX_SOURCES):
            is_ignored = any(each.unless == before and each.after == newest for each in PATTERNS)
            self._newest[entry.source] = "-" if is_ignored else newest


def _error(each: ErrorPattern, found: re.Match[str], entry: LogLine, file: str) -> LoggedError:
    groups = {name: text for name, text in found.groupdict().items() if text}
    number = f" {groups['number']}" if "number" in groups else ""
    seq = f" {groups['seq']}" if "seq" in groups else ""
    return LoggedError(
        name=groups.get("name", each.name) + number,
        kind=each.kind,
        meaning=each.meaning,
        number=entry.number,
        text=" ".join(entry.text.split())[:MAX_TEXT_CHARS],
        file=file,
        at_s=entry.at_s,
        rank=int(groups["rank"]) if "rank" in groups else entry.rank,
        device=groups.get("device", ""),
        core=int(groups["core"]) if "core" in groups else None,
        node=groups.get("node", entry.host),
        detail=groups.get("detail", "") + seq,
    )


def ended_by(errors: Iterable[LoggedError]) -> LoggedError | None:
    """Return the error of the earliest cause, and of these the first; None without errors."""
    return min(errors, key=lambda error: CLASSES.index(error.kind), default=None)
