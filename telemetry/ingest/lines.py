"""Reading lines in bounded groups, refusing lines, and naming the field a decoder refused."""

import contextlib
import os
import re
import select
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec

from telemetry.ingest.schemas import MAX_LINE_BYTES

# Lines that follow each other within this time belong to one group.
QUIET_S = 0.05
CHUNK_BYTES = 1 << 20
MAX_GROUP_BYTES = 2 * MAX_LINE_BYTES
# To find the invalid key, a line is decoded dozens of times; of larger ones it is not named.
MAX_EXPLAINED_BYTES = 65_536
# Refusals that are listed in a response; the rest are counted.
MAX_REFUSALS = 100

DECODER_MESSAGE = re.compile(
    r"^(?P<reason>.*?)(?: - at `(?P<key>key` in `)?(?P<path>\$[^`]*)`)?$", re.DOTALL
)
PATH_STEP = re.compile(r"\.[^.\[]+|\[[^\]]*\]")
ANY_KEY = "..."

# JSON over several lines, as jq prints it: only its first and its last line are not indented.
DOCUMENT = re.compile(rb"^\{[ \t\r]*\n(?:[ \t][^\n]*\n)*+\}", re.MULTILINE)
OPEN_DOCUMENT = re.compile(rb"^\{[ \t\r]*\n(?:[ \t][^\n]*\n)*+\Z", re.MULTILINE)
FRAGMENT = "is not a JSON object on one line. `jq -c .` writes one report per line"
# Lines of other JSON are refused for the same reason: the first ones are enough.
MAX_FRAGMENTS = 3

# A line as a terminal shows it.
MAX_PIECE_CHARS = 16_384
COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
UNPRINTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff]")
# Control characters as rsyslog (SageMaker), `cat -v` and programs that escape lines write them.
WRITTEN_OUT = (
    ("#015", "\r"), ("#033", "\x1b"), ("#011", "\t"), ("^M", "\r"), ("^[[", "\x1b["),
    ("\\033[", "\x1b["), ("\\x1b[", "\x1b["), ("\\u001b[", "\x1b["), ("\\015", "\r"),
)  # fmt: skip


def join_documents(data: bytes) -> bytes:
    """Put each JSON object that is printed over several lines on its first line.

    Empty lines follow it, so that the numbers of later lines stay.
    """
    # A single line, as agents send it, is not searched: that would cost more than to decode it.
    if data.find(b"\n") in {-1, len(data) - 1}:
        return data
    if b"{\n" not in data and b"{\r\n" not in data:
        return data
    return DOCUMENT.sub(
        lambda found: found[0].replace(b"\n", b" ") + b"\n" * found[0].count(b"\n"), data
    )


def split_whole(data: bytes) -> tuple[bytes, bytes]:
    """Split after the last whole line; an object whose end is missing belongs to the rest."""
    end = data.rfind(b"\n") + 1
    if data[:1] == b"{" or b"\n{" in data:
        match = OPEN_DOCUMENT.search(data, 0, end)
        end = match.start() if match else end
    return join_documents(data[:end]), data[end:]


def read_groups(file: BinaryIO, *, most: int = 500) -> Iterator[list[bytes]]:
    """Yield a file's lines, ``most`` at a time; a line that is too long is cut."""
    group: list[bytes] = []
    size, is_open, is_joined = 0, False, False
    while line := file.readline(MAX_LINE_BYTES + 1):
        group.append(line)
        size += len(line)
        is_open = line.rstrip() == b"{" if line[:1] not in b" \t" else is_open
        is_joined = is_joined or is_open
        while not line.endswith(b"\n") and len(line) > MAX_LINE_BYTES:
            line = file.readline(MAX_LINE_BYTES + 1)
        if (len(group) >= most and not is_open) or size > MAX_GROUP_BYTES:
            yield _joined(group) if is_joined else group
            group, size, is_open, is_joined = [], 0, False, False
    if group:
        yield _joined(group) if is_joined else group


def _joined(group: list[bytes]) -> list[bytes]:
    return join_documents(b"".join(group)).removesuffix(b"\n").split(b"\n")


def read_together(descriptor: int) -> Iterator[list[bytes]]:
    """Yield lines from a pipe in groups; a group ends with a pause of ``QUIET_S``."""
    rest, is_open, skips = b"", True, False
    while is_open:
        read, is_open = _read_until_quiet(descriptor, rest)
        if skips:
            # The rest of a line that was too long and was cut.
            _, newline, read = read.partition(b"\n")
            skips = not newline
        whole, rest = split_whole(read) if is_open else (join_documents(read), b"")
        if len(rest) > MAX_LINE_BYTES:
            whole, rest, skips = whole + rest, b"", True
        if whole:
            yield whole.removesuffix(b"\n").split(b"\n")


def _read_until_quiet(descriptor: int, rest: bytes) -> tuple[bytes, bool]:
    """Read until there is a line and then a pause; also return whether the pipe is open."""
    pieces, size, has_line = [rest], len(rest), False
    # Unlike select, it takes any descriptor of a process with more than a thousand open files.
    pipe = select.poll()
    pipe.register(descriptor, select.POLLIN)
    while size <= MAX_GROUP_BYTES:
        if not pipe.poll(1000 * QUIET_S if has_line else None):
            break
        piece = os.read(descriptor, CHUNK_BYTES)
        if not piece:
            return b"".join(pieces), False
        pieces.append(piece)
        size += len(piece)
        has_line = has_line or b"\n" in piece
    return b"".join(pieces), True


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused line; ``field`` is empty if the line as a whole is invalid."""

    line: int
    field: str
    reason: str

    @property
    def problem(self) -> str:
        """What is wrong; the number of its line means nothing later."""
        return f"{self.field}: {self.reason}" if self.field else self.reason

    def __str__(self) -> str:
        return f"line {self.line}: {self.problem}"


@dataclass(slots=True, kw_only=True)
class Refusals:
    """The refused lines of a request; only the first ``MAX_REFUSALS`` are listed."""

    n_refused: int = 0
    refused: list[Refusal] = field(default_factory=list)

    def refuse(self, refusal: Refusal) -> None:
        self.n_refused += 1
        self._list(refusal)

    def absorb_refused(self, later: "Refusals") -> None:
        self.n_refused += later.n_refused
        for refusal in later.refused:
            self._list(refusal)

    def _list(self, refusal: Refusal) -> None:
        is_fragment = refusal.reason == FRAGMENT
        n_before = sum(each.reason == FRAGMENT for each in self.refused) if is_fragment else 0
        if len(self.refused) < MAX_REFUSALS and n_before < MAX_FRAGMENTS:
            self.refused.append(refusal)


class RefusedError(ValueError):
    """A report is refused, with field and reason."""

    def __init__(self, field: str, reason: str) -> None:
        """``reason`` continues the field's name: "is not Base64"."""
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason

    def at(self, line: int) -> Refusal:
        return Refusal(line, self.field, self.reason)


def explain(error: msgspec.MsgspecError, line: bytes, kind: type) -> RefusedError:
    """Turn a decoder's error into a refusal that names the field."""
    match = DECODER_MESSAGE.match(str(error))
    if match is None or match["path"] is None:
        is_object = line.strip()[:1] == b"{" and line.strip()[-1:] == b"}"
        return RefusedError("", str(error) if is_object else FRAGMENT)
    steps = [_step(word) for word in PATH_STEP.findall(match["path"])]
    if ANY_KEY in steps and len(line) <= MAX_EXPLAINED_BYTES:
        # The line may have other errors, too: then the field is named without its key.
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
            steps = _with_keys(steps, msgspec.json.decode(line), kind)
    if match["key"]:
        steps.append("<key>")
    return RefusedError(".".join(str(step)[:40] for step in steps), match["reason"])


def _step(word: str) -> str | int:
    """Parse one step of a path: a name, an index, or "any key"."""
    inside = word.removeprefix(".").removeprefix("[").removesuffix("]")
    return int(inside) if inside.isdecimal() else inside


def _with_keys(steps: list[str | int], document: Any, kind: type) -> list[str | int]:
    """Replace each "any key" of a path by the invalid key."""
    named: list[str | int] = []
    here = document
    for step in steps:
        key = _failing_key(here, document, kind) if step == ANY_KEY else step
        named.append(key)
        here = here[key]
    return named


def _failing_key(mapping: dict[str, Any], document: Any, kind: type) -> str:
    """Find the invalid key by bisection, halving the mapping in place."""
    everything = dict(mapping)
    keys = list(everything)
    while len(keys) > 1:
        half = keys[: len(keys) // 2]
        mapping.clear()
        mapping.update({key: everything[key] for key in half})
        try:
            msgspec.json.decode(msgspec.json.encode(document), type=kind)
        except msgspec.ValidationError:
            keys = half
        else:
            keys = keys[len(half) :]
    mapping.clear()
    mapping.update({key: everything[key] for key in keys})
    return keys[0]


def pieces_of(line: bytes | str) -> Iterator[str]:
    """Yield the states of a line in turn; a carriage return starts a new one."""
    text = line if isinstance(line, str) else line.decode("utf-8", "replace")
    for written, meant in WRITTEN_OUT:
        if written in text:
            text = text.replace(written, meant)
    for piece in UNPRINTED.sub("", COLOURS.sub("", text)).rstrip("\n").split("\r"):
        if piece.strip():
            yield piece[:MAX_PIECE_CHARS]
