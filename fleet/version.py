"""The version: the newest one in CHANGELOG.md."""

import re
from pathlib import Path

_CHANGELOG = Path(__file__).resolve().parent.parent / "CHANGELOG.md"


def newest(changelog: str) -> str:
    """Return the number in the first heading of a version.

    >>> newest("# Changes" + chr(10) + "## 1.2.3 (2026-03-02)")
    '1.2.3'
    """
    match = re.search(r"^## (\d+\.\d+\.\d+)", changelog, flags=re.MULTILINE)
    if match is None:
        msg = "CHANGELOG.md: no heading like `## 1.2.3`."
        raise ValueError(msg)
    return match[1]


VERSION = newest(_CHANGELOG.read_text())
