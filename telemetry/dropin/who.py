"""Which machine a node is to AWS' exporters: the labels on everything they show of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from telemetry import catalog
from telemetry.dropin.neuron_names import BASE, TAG
from telemetry.slabs import Rows


@dataclass(frozen=True, slots=True)
class Who:
    """A node as its exporters would name it, in the order of BASE.

    ``runtime_tag`` names the one process that a simulated node runs: its run. A real node's
    last report names its processes, and says better than we know what else it is.
    """

    instance_name: str
    instance_id: str
    instance_type: str
    availability_zone: str = ""
    region: str = ""
    subnet_id: str = ""
    runtime_tag: str = ""
    is_simulated: bool = True

    @property
    def base(self) -> tuple[str, ...]:
        """The values of the labels on everything."""
        return tuple(getattr(self, label) for label in BASE)

    @property
    def machine(self) -> catalog.Instance | None:
        """What the catalogue knows of the instance type, None where it is none of AWS' chips."""
        found = catalog.instances().get(self.instance_type)
        return found if found and found.chip.vendor == "AWS" else None


def region_of(zone: str) -> str:
    """Return the region of an availability zone.

    >>> region_of("us-east-2b")
    'us-east-2'
    """
    return zone.rstrip("abcdefghijklmnopqrstuvwxyz") if zone[-1:].isalpha() else zone


def rows_of(nodes: Iterable[tuple[tuple[str, ...], str]]) -> Rows:
    """Return rows of base labels and runtime tag."""
    columns = list(zip(*((*base, tag) for base, tag in nodes), strict=True))
    labels: Mapping[str, tuple[str, ...]] = dict(zip((*BASE, TAG), columns, strict=True))
    return Rows(labels)
