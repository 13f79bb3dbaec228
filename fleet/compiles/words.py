"""What changed in a cache key, and where a cache lies, in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from fleet.models import CompileEvent

# The compiler's own default, and other places that only one node sees.
LOCAL_PATHS = ("/var/tmp/", "/tmp/", "/dev/shm/", "/scratch/local", "/local")  # noqa: S108
SHARED_PATHS = ("s3://", "/fsx", "/efs", "/lustre", "/shared", "/mnt/")
UNKNOWN_KEY = "not known: nothing was told of an earlier compile"


def changes_in_words(change: Mapping[str, Any] | None) -> Sequence[str]:
    """Return a line for each part of the key that changed; none where nobody judged."""
    if change is None:
        return []
    return [_line(part) for part in change.get("parts", ())] or [UNKNOWN_KEY]


def _line(part: Mapping[str, str]) -> str:
    what, before, after = (part.get(name, "") for name in ("what", "before", "after"))
    tell = {
        "compiler": f"compiler: neuronx-cc {before} became {after}",
        "flags": _flags(before, after),
        "shape": f"shapes: {before} became {after}",
        "graph": "the graph itself: its shapes or its operations are new",
        "cache": f"the cache: {after} in place of {before}",
        "nothing": "nothing in its key: the cache has lost it, or this process does not see it",
    }
    return tell.get(what, what)


def _flags(before: str, after: str) -> str:
    if before and after:
        return f"flags: {before} became {after}"
    if after:
        return f"flags: {after} was added"
    if before:
        return f"flags: {before} was taken away"
    return "flags: another hash; nobody tells how they read"


def short(change: Mapping[str, Any] | None) -> str:
    """Return the parts that changed by name: ``flags, compiler``."""
    names = {"nothing": "same key", "graph": "new graph"}
    parts = (change or {}).get("parts", ())
    return ", ".join(names.get(part["what"], part["what"]) for part in parts) or "not known"


def since_in_words(event: CompileEvent) -> str:
    """Say what the compile is held against: found or compiled, and by which run."""
    change = event.change or {}
    did = {"hit": "found in the cache", "miss": "compiled"}.get(change.get("before", ""), "")
    by = f" by {change['run']}" if change.get("run") else ""
    return f"{did}{by}" if did else ""


def sharing(path: str) -> str:
    """Say whether a cache's path is one that several nodes see: shared, local or unknown.

    The path alone tells: ``s3://`` and the usual mounts of FSx, EFS and NFS are shared, the
    compiler's default ``/var/tmp/neuron-compile-cache`` is each node's own.
    """
    if path.startswith(SHARED_PATHS):
        return "shared"
    return "local" if path.startswith(LOCAL_PATHS) else "unknown"
