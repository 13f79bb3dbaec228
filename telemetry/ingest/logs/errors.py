"""Errors that end a job, by the patterns of errors.toml."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from math import nan
from pathlib import Path

from telemetry.ingest.logs.records import LogLine

# In the order of causes: the later ones follow from the earlier ones.
CLASSES = ("device", "memory", "program", "network", "collective", "stopped")
MAX_TEXT_CHARS = 300


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """A block of errors.toml."""

    name: str
    kind: str
    has: tuple[str, ...]
    pattern: re.Pattern[str]
    meaning: str
    source: str


PATTERNS = tuple(
    ErrorPattern(
        name=block["name"],
        kind=block["class"],
        has=tuple(block["has"]),
        pattern=re.compile(block["pattern"], re.ASCII),
        meaning=block["meaning"],
        source=block["source"],
    )
    for block in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))[
        "error"
    ]
)
MARKS = tuple(text for each in PATTERNS for text in each.has)
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


def error_of(entry: LogLine, *, file: str = "") -> LoggedError | None:
    """Return the error that a line reports; None if it reports none that is known."""
    if not ANY_MARK.search(entry.text):
        return None
    for each in PATTERNS:
        if not any(map(entry.text.__contains__, each.has)):
            continue
        if found := each.pattern.search(entry.text):
            groups = {name: text for name, text in found.groupdict().items() if text}
            seq = f" {groups['seq']}" if "seq" in groups else ""
            return LoggedError(
                name=groups.get("name", each.name),
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
    return None


def ended_by(errors: Iterable[LoggedError]) -> LoggedError | None:
    """Return the error of the earliest cause, and of these the first; None without errors."""
    return min(errors, key=lambda error: CLASSES.index(error.kind), default=None)
