"""Compilations and the parts of their cache keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Final, Literal

HIT, MISS, FAIL = "hit", "miss", "fail"
# Aliases of one flag in neuronx-cc.
SAME_FLAG: Final = {
    "--optlevel": "-O",
    "-lnc": "--logical-nc-config",
    "--lnc": "--logical-nc-config",
}
What = Literal["compiler", "flags", "graph", "shape", "cache", "nothing"]


@dataclass(frozen=True, slots=True)
class Compile:
    """One process that asked for one compiled graph: found in the cache, compiled, or failed.

    ``module`` is MODULE_<hash of the graph>+<hash of the flags>; ``at_s`` Unix seconds, NaN if
    unknown; ``shape`` the input shapes, ``is_planned`` whether it was announced, as reported by
    the job.
    """

    module: str
    outcome: str
    at_s: float = nan
    seconds: float = nan
    rank: int | None = None
    process: str = ""
    compiler: str = ""
    flags: str = ""
    cache: str = ""
    shape: str = ""
    is_planned: bool = False

    @property
    def graph(self) -> str:
        return graph_of(self.module)

    @property
    def flags_hash(self) -> str:
        """Hash of the compiler flags; empty where not logged."""
        return self.module.partition("+")[2]


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A changed part of a cache key, before and after; empty where unknown."""

    what: What
    before: str = ""
    after: str = ""


def graph_of(module: str) -> str:
    """Hash of the operations in a module name."""
    return module.removeprefix("MODULE_").partition("+")[0]


def key_changes(before: Compile, after: Compile) -> tuple[KeyChange, ...]:
    """Compare the cache keys of two compilations.

    A graph is stored at ``<cache>/neuronxcc-<version>/MODULE_<graph>+<flags>``: the key is
    the compiler's version, the hash of the graph's operations (with shapes) and the hash of the
    flags. A part that is unknown on either side counts as equal. If the keys are equal, the cache
    is another one (``cache``), or has lost the graph (``nothing``).

    References
    ----------
    AWS Neuron SDK, compile-cache documentation (2026-08).

    >>> was = Compile("MODULE_1+a", MISS, flags="-O1 --model-type=transformer")
    >>> now = Compile("MODULE_1+b", MISS, flags="--model-type transformer --optlevel=2")
    >>> key_changes(was, now)
    (KeyChange(what='flags', before='-O1', after='-O2'),)
    """
    changes: list[KeyChange] = []
    if before.compiler and after.compiler and before.compiler != after.compiler:
        changes.append(KeyChange("compiler", before.compiler, after.compiler))
    hashes = before.flags_hash, after.flags_hash
    if not (all(hashes) and hashes[0] == hashes[1]):
        was, now = flags_of(before.flags), flags_of(after.flags)
        if was and now and set(was) != set(now):
            gone = " ".join(flag for flag in was if flag not in now)
            new = " ".join(flag for flag in now if flag not in was)
            changes.append(KeyChange("flags", gone, new))
        elif all(hashes):
            changes.append(KeyChange("flags"))
    if before.graph and after.graph and before.graph != after.graph:
        shapes = before.shape, after.shape
        is_known = all(shapes) and shapes[0] != shapes[1]
        changes.append(KeyChange("shape", *shapes) if is_known else KeyChange("graph"))
    if changes:
        return tuple(changes)
    if before.cache and after.cache and before.cache != after.cache:
        return (KeyChange("cache", before.cache, after.cache),)
    return (KeyChange("nothing"),)


def flags_of(text: str) -> Sequence[str]:
    """Normalize compiler flags, without duplicates."""
    flags: list[str] = []
    for word in text.split():
        if word.startswith("-") or not flags:
            flags.append(word)
        else:
            flags[-1] += ("" if flags[-1].endswith("=") else "=") + word
    parts = [flag.partition("=") for flag in flags]
    named = [(SAME_FLAG.get(name, name), value) for name, _, value in parts]
    spelt = (name + (f"={value}" if value and name != "-O" else value) for name, value in named)
    return list(dict.fromkeys(spelt))
