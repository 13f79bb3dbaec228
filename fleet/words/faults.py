"""What docs/faults.md says of a kind of fault: what happens, and how it shows."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from django.conf import settings


@dataclass(frozen=True, slots=True)
class Explained:
    """A kind of fault in plain words: what it is, and by what it can be told."""

    what: str
    signature: str


@lru_cache(maxsize=1)
def _sections() -> dict[str, Explained]:
    text = (Path(settings.ROOT) / "docs" / "faults.md").read_text(encoding="utf-8")
    sections = {}
    for section in text.split("\n## ")[1:]:
        kind, _, body = section.partition("\n")
        paragraph = " ".join(body.strip().split("\n\n")[0].split())
        what, _, rest = paragraph.partition("**Signature:** ")
        sections[kind.strip()] = Explained(plain(what), plain(rest.partition(" **")[0]))
    return sections


def explained(kind: str) -> Explained:
    """Return what is written of a kind; empty words where nothing is."""
    return _sections().get(kind, Explained("", ""))


def plain(markdown: str) -> str:
    """Return text without the marks of code and emphasis."""
    return markdown.replace("`", "").replace("*", "").strip()
