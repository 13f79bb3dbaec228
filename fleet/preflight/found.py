"""What a preflight found, as it is kept: read by pages, commands, the API and run starts."""

import math
from collections.abc import Mapping

import msgspec

from fleet.models import Preflight
from telemetry.preflight.collective import SLOWER_BY
from telemetry.preflight.judging import Judged
from telemetry.preflight.trouble import Trouble, Verdict


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of one preflight; figures that nobody knows are null."""

    nodes: Mapping[str, Verdict]
    troubles: tuple[Trouble, ...] = ()
    chosen: tuple[str, ...] = ()
    n_wanted: int = 0
    usual: Mapping[str, float | None] = {}
    slowdown: float | None = None

    def of(self, node: str) -> list[Trouble]:
        """Return what is held against a node, alone or with another."""
        return [each for each in self.troubles if node in {each.node, each.peer}]

    @property
    def own(self) -> list[Trouble]:
        """What nodes have by themselves."""
        return [each for each in self.troubles if not each.is_of_pair]

    @property
    def pairs(self) -> list[Trouble]:
        """What two nodes have together."""
        return [each for each in self.troubles if each.is_of_pair]

    @property
    def is_slow(self) -> bool:
        """Whether the collective over the chosen nodes took too long."""
        return self.slowdown is not None and self.slowdown > SLOWER_BY


def found_of(judged: Judged) -> Found:
    """Write a judgement as it is kept."""
    return Found(
        nodes=judged.nodes,
        troubles=tuple(judged.troubles),
        chosen=judged.chosen,
        n_wanted=judged.n_wanted,
        usual={name: _known(value) for name, value in judged.usual.items()},
        slowdown=_known(judged.slowdown),
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def kept(found: Found) -> dict[str, object]:
    """Return what a JSON field keeps."""
    return dict(msgspec.to_builtins(found))


def read(preflight: Preflight) -> Found | None:
    """Return what a preflight found; None while it is under way."""
    if not preflight.is_over or not preflight.found:
        return None
    return msgspec.convert(preflight.found, Found)


def verdict_of(found: Found, *, take: int | None) -> Verdict:
    """Return what is said of the group.

    It fails where fewer can come than are wanted, and is held where some must stay although all
    were asked for, or where the collective over those that come is too slow.
    """
    if not found.chosen or len(found.chosen) < (take or 0):
        return Verdict.FAIL
    some_stay = take is None and len(found.chosen) < len(found.nodes)
    return Verdict.HOLD if some_stay or found.is_slow else Verdict.PASS
