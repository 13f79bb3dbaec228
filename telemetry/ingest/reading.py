"""One reading of a node: which machine, what it has, which seconds it covers, and its values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import SupportsBytes

from telemetry.blocks import FloatArray


@dataclass(frozen=True, slots=True)
class Shape:
    """How many devices a node has, and cores as its runtime counts them."""

    n_devices: int
    n_cores: int


@dataclass(frozen=True, slots=True)
class Identity:
    """Which machine a report speaks of; empty where it does not say."""

    instance_id: str = ""
    instance_name: str = ""
    instance_type: str = ""
    zone: str = ""

    def completed_by(self, known: "Identity | None") -> "Identity":
        """Take what is not said from what is known."""
        if known is None or self == known:
            return self
        return Identity(
            self.instance_id or known.instance_id,
            self.instance_name or known.instance_name,
            self.instance_type or known.instance_type,
            self.zone or known.zone,
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """One report: ``values[name]`` is (1, n_parts) as a Block's; it covers ``period_s``.

    ``at_s`` is when it was made by the node's own clock, None where the report does not say.
    ``executed`` counts what each process did in the period; ``line`` is the report as it came,
    or what writes it as it would have come, and empty where the line had none. ``seq`` only
    rises within a ``stream``. ``n_efa`` is 0 where no EFA device is told of; ``kept`` is what was
    said beside the report.
    """

    identity: Identity
    shape: Shape
    period_s: float
    values: Mapping[str, FloatArray]
    at_s: float | None = None
    seq: int | None = None
    executed: Mapping[str, list[float]] = field(default_factory=dict)
    line: bytes | SupportsBytes = b""
    stream: str | None = None
    n_efa: int = 0
    kept: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_numbered(self) -> bool:
        """Whether it can be told from every other of its sender, whenever it comes."""
        return self.stream is not None and self.seq is not None
