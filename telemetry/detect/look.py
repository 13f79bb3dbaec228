"""A look at one possible cause: the figure it would show in, and how far that stands out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from telemetry.detect.finding import UNKNOWN


@dataclass(frozen=True, slots=True)
class Look:
    """What looking for one cause has shown.

    ``strength`` is evidence over threshold: 1 is just enough to believe it, less rules it out.
    ``value`` is the most conspicuous part's figure in ``unit``, beside the ``peers_median`` of
    ``n_peers`` others. ``node`` and ``device`` are the machine and the part (core, accelerator or
    EFA device, by cause); None where no single one is to blame. ``is_only_part``: the machine has
    no other such part, the peers are those of other machines.
    """

    cause: str
    strength: float
    metric: str
    value: float
    peers_median: float
    n_peers: int
    unit: str
    node: str | None = None
    device: int | None = None
    is_only_part: bool = False

    @property
    def stands_out(self) -> bool:
        """Whether the evidence suffices."""
        return self.strength >= 1.0

    def figure(self) -> dict[str, Any]:
        """Return the figure as plain JSON: what is not finite is None."""
        return {
            "metric": self.metric,
            "value": number(self.value),
            "peers_median": number(self.peers_median),
            "n_peers": self.n_peers,
            "unit": self.unit,
        }


def number(value: float) -> float | None:
    """Return a float that JSON can hold, or None."""
    return float(value) if np.isfinite(value) else None


def ruled_out_figures(looks: Iterable[Look]) -> dict[str, dict[str, Any]]:
    """Return the figures of causes that do not hold; that the cause is unknown is no cause."""
    return {look.cause: look.figure() for look in looks if look.cause != UNKNOWN}


def strongest(looks: list[Look]) -> Look | None:
    """Return the look that stands out most; None where none does.

    Of several at the same part of the same machine the first in the list explains the others:
    put the most special cause first.
    """
    convincing = [look for look in looks if look.stands_out]
    if not convincing:
        return None
    most = max(convincing, key=lambda look: look.strength)
    return next(e for e in convincing if (e.node, e.device) == (most.node, most.device))
