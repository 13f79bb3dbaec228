"""A node as the API tells it."""

from datetime import UTC, datetime
from typing import Self

from ninja import Field

from fleet.api.v1.fields import Told
from fleet.api.v1.paging import Links
from fleet.summaries import NodeNow


class NodeFigures(Told):
    """A node by its newest report; null where it does not say, or is silent."""

    utilization_mean: float | None = Field(
        description="Share of the last second that its cores computed, 0 to 1, mean of cores.",
        examples=[0.93],
    )
    utilization_min: float | None = Field(description="The same of the idlest core, 0 to 1.")
    utilization_max: float | None = Field(description="The same of the busiest core, 0 to 1.")
    hbm_bytes_per_s: float | None = Field(
        description="HBM bytes read and written per second, all devices."
    )
    device_memory_used_bytes: float | None = Field(description="HBM bytes in use, all devices.")
    efa_latency_max_s: float | None = Field(
        description="Probe latency in seconds, slowest EFA device."
    )
    ecc_uncorrected: int | None = Field(
        description="Memory errors not corrected, as the node counts."
    )


class NodeOut(Told):
    """One machine that reports."""

    name: str = Field(description="Unique name, also in addresses.", examples=["llama-03"])
    instance_type: str = Field(description="What it is.", examples=["trn1.32xlarge"])
    instance_id: str = Field(description="Its id at AWS; empty where unknown.")
    zone: str = Field(description="Availability zone; empty where unknown.")
    source: str = Field(
        description="Who speaks for it: simulated, neuron-monitor or step-reports.",
        examples=["neuron-monitor"],
    )
    run: str | None = Field(description="Name of the run it works for.", examples=["llama"])
    rank: int = Field(description="Its place within the run.", examples=[3])
    n_cores: int = Field(description="NeuronCores, as the runtime counts them.", examples=[32])
    n_devices: int = Field(description="Accelerators.", examples=[16])
    n_efa: int = Field(description="EFA devices.", examples=[8])
    first_seen_at: datetime = Field(description="When it was first heard of, UTC.")
    last_seen_at: datetime | None = Field(
        description="Its newest report, UTC; null where there was none in a week."
    )
    state: str = Field(
        description="up; silent: it ought to report; released: its run is over.",
        examples=["up"],
    )
    now: NodeFigures = Field(description="Its newest report.")
    url: str = Field(description="Path of its page.", examples=["/nodes/llama-03/"])

    @classmethod
    def of(cls, now: NodeNow) -> Self:
        """Tell a node; ask for it with its run."""
        node = now.node
        seen_s = now.last_seen_s
        return cls(
            **{name: getattr(node, name) for name in PLAIN},
            run=node.run.name if node.run else None,
            last_seen_at=None if seen_s is None else datetime.fromtimestamp(seen_s, UTC),
            state=state_of(now),
            now=NodeFigures(**{name: getattr(now, name) for name in NodeFigures.model_fields}),
            url=node.get_absolute_url(),
        )


PLAIN = (
    "name",
    "instance_type",
    "instance_id",
    "zone",
    "source",
    "rank",
    "n_cores",
    "n_devices",
    "n_efa",
    "first_seen_at",
)


def state_of(now: NodeNow) -> str:
    """Return the word for whether a node reports."""
    if now.is_up:
        return "up"
    return "silent" if now.is_silent else "released"


class NodePage(Links):
    """A page of nodes."""

    items: list[NodeOut] = Field(description="The nodes of this page.")
    sorted_by: str = Field(default="name", description="By name, as code points are ordered.")
