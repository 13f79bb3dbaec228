"""Why a line was not taken: its number, the field, and what is wrong with it."""

import contextlib
import re
from dataclasses import dataclass
from typing import Any

import msgspec

AT = re.compile(r"^(?P<reason>.*?)(?: - at `(?P<key>key` in `)?(?P<path>\$[^`]*)`)?$", re.DOTALL)
STEP = re.compile(r"\.[^.\[]+|\[[^\]]*\]")
ANY_KEY = "..."


@dataclass(frozen=True, slots=True)
class Refusal:
    """One line that was not taken; ``field`` is empty where the whole line is at fault."""

    line: int
    field: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"line {self.line}: {where}{self.reason}"


class RefusedError(ValueError):
    """A report that is not taken, for the reason it carries."""

    def __init__(self, field: str, reason: str) -> None:
        """Name the field and what is wrong with it."""
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason

    def at(self, line: int) -> Refusal:
        """Say which line it was."""
        return Refusal(line, self.field, self.reason)


def explain(error: msgspec.MsgspecError, line: bytes, kind: type) -> RefusedError:
    """Turn a decoder's complaint into the field it is about and the reason."""
    found = AT.match(str(error))
    if found is None or found["path"] is None:
        return RefusedError("", str(error))
    steps = [_step(word) for word in STEP.findall(found["path"])]
    if ANY_KEY in steps:
        # The line may be damaged elsewhere too: then the field goes without the key.
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
            steps = _named(steps, msgspec.json.decode(line), kind)
    if found["key"]:
        steps.append("<key>")
    return RefusedError(".".join(str(step)[:40] for step in steps), found["reason"])


def _step(word: str) -> str | int:
    """Read one step of a path: a name, a place in a list, or any key."""
    inside = word.removeprefix(".").removeprefix("[").removesuffix("]")
    return int(inside) if inside.isdecimal() else inside


def _named(steps: list[str | int], document: Any, kind: type) -> list[str | int]:
    """Replace each "any key" of a path by the key that the document fails by."""
    named: list[str | int] = []
    here = document
    for step in steps:
        key = _culprit(here, document, kind) if step == ANY_KEY else step
        named.append(key)
        here = here[key]
    return named


def _culprit(mapping: dict[str, Any], document: Any, kind: type) -> str:
    """Halve a mapping in place until one key is left that the whole document fails by."""
    everything = dict(mapping)
    keys = list(everything)
    while len(keys) > 1:
        half = keys[: len(keys) // 2]
        mapping.clear()
        mapping.update({key: everything[key] for key in half})
        keys = half if _fails(document, kind) else keys[len(half) :]
    mapping.clear()
    mapping.update({key: everything[key] for key in keys})
    return keys[0]


def _fails(document: Any, kind: type) -> bool:
    """Whether a document is not of the kind."""
    try:
        msgspec.json.decode(msgspec.json.encode(document), type=kind)
    except msgspec.ValidationError:
        return True
    return False
