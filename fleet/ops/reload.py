"""Notice changed source files, so that `make up` can restart programs during development."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

FOLDERS = ("fleet", "telemetry")
# All of these are read when a program starts. Templates and style sheets are read for each page.
SUFFIXES = frozenset({".py", ".toml", ".lua"})
POLL_S = 0.5


def modified_ns(root: Path) -> dict[Path, int]:
    """Map each source file, by its path below ``root``, to when it was last written."""
    times = {}
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.suffix in SUFFIXES:
                try:
                    times[path.relative_to(root)] = path.stat().st_mtime_ns
                except FileNotFoundError:
                    # Editors replace a file while saving it.
                    continue
    return times


async def changed_files(root: Path, *, poll_s: float = POLL_S) -> AsyncIterator[list[Path]]:
    """Yield the files that were written, added or removed since the last time; never ends."""
    before = await asyncio.to_thread(modified_ns, root)
    while True:
        await asyncio.sleep(poll_s)
        now = await asyncio.to_thread(modified_ns, root)
        if changed := sorted(dict(before.items() ^ now.items())):
            before = now
            yield changed
