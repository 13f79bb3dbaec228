"""What evidence says: quantities that have shifted, and effects on all quantities since then."""

from collections.abc import Mapping
from dataclasses import dataclass

from telemetry.blocks import FloatArray


@dataclass(frozen=True, slots=True)
class Shift:
    """A quantity of the run, a node or a part that is above its alarm level.

    ``node`` is the row of the run's nodes, ``part`` the number on that node; None for the run, or
    for the node as a whole. ``size`` is a share of the usual step, or relative for hardware.
    """

    quantity: str
    node: int | None
    part: int | None
    onset_s: float
    size: float
    nats: float
    level_nats: float
    # Long values come again after so long; None for a shift that lasts.
    every_s: float | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """How far a quantity is from its reference since a moment, and the standard error of it.

    All are (), (n_nodes,) or (n_nodes, n_parts); NaN where it is not measured. ``usual_error`` is
    the standard error if it scatters as it did before that moment; None: no other one is known.
    """

    size: FloatArray
    error: FloatArray
    usual_error: FloatArray | None = None


Effects = Mapping[str, Effect]
