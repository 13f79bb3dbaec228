"""What the API tells of preflights."""

from datetime import datetime
from typing import Literal, Self

from ninja import Field

from fleet.api.v1.fields import Told
from fleet.api.v1.paging import Links
from fleet.models import Preflight
from fleet.preflight.found import Found, read
from fleet.preflight.words import reasons, sentences

State = Literal["pass", "hold", "fail"]


class PreflightOut(Told):
    """A preflight; what is found is null until it is over."""

    id: int = Field(description="Number of the preflight.", examples=[12])
    asked_by: str = Field(description="Who asked for it.", examples=["ada"])
    asked_at: datetime = Field(description="When, UTC.")
    finished_at: datetime | None = Field(description="When it was over, UTC.")
    run: str | None = Field(description="The run whose nodes were asked for.", examples=["llama"])
    instance_type: str = Field(description="Type of all nodes.", examples=["trn2.48xlarge"])
    n_nodes: int = Field(description="How many nodes are probed.", examples=[16])
    wanted: int | None = Field(description="How many are wanted; null: all that can come.")
    source: str = Field(description="simulated, or files that probes printed.")
    progress_ratio: float = Field(description="How far it has come, 0 to 1.", examples=[1.0])
    verdict: State | None = Field(description="What is said of the group.", examples=["pass"])
    words: str | None = Field(description="The verdict in sentences.")
    take: list[str] | None = Field(description="The nodes to take.", examples=[["llama-03"]])

    @classmethod
    def told(cls, preflight: Preflight, found: Found | None) -> dict[str, object]:
        """Return what all shapes of a preflight tell."""
        return {
            "id": preflight.pk,
            "asked_by": preflight.asked_by,
            "asked_at": preflight.asked_at,
            "finished_at": preflight.finished_at,
            "run": preflight.run.name if preflight.run else None,
            "instance_type": preflight.instance_type,
            "n_nodes": len(preflight.names),
            "wanted": preflight.take,
            "source": preflight.source,
            "progress_ratio": 1.0 if preflight.is_over else preflight.progress_ratio,
            "verdict": preflight.verdict or None,
            "words": " ".join(sentences(preflight, found)) if found else None,
            "take": list(found.chosen) if found else None,
        }

    @classmethod
    def of(cls, preflight: Preflight) -> Self:
        """Tell a preflight."""
        return cls.model_validate(cls.told(preflight, read(preflight)))


class PreflightPage(Links):
    """Some preflights."""

    items: list[PreflightOut] = Field(description="Preflights, the last asked for first.")


class PreflightNodeOut(Told):
    """What is said of one node."""

    node: str = Field(description="Its name.", examples=["llama-03"])
    verdict: State = Field(description="Take it, look at it first, or leave it.")
    take: bool = Field(description="Whether it is among those to take.")
    reasons: list[str] = Field(description="What is held against it, in words.")


class PreflightTrouble(Told):
    """One thing that is wrong; of a pair, ``peer`` is the other node."""

    kind: str = Field(description="What it is.", examples=["efa_latency"])
    node: str = Field(description="On which node.", examples=["llama-03"])
    peer: str | None = Field(description="Together with which.")
    device: int | None = Field(description="On which EFA device, from 0.")
    metric: str = Field(description="Which figure shows it; empty: none.")
    value: float | None = Field(description="The figure here, in the unit its name ends with.")
    usual: float | None = Field(description="The figure elsewhere.")


class PreflightDetail(PreflightOut):
    """A preflight with every node and everything that is wrong."""

    nodes: list[PreflightNodeOut] | None = Field(description="Every node, in order.")
    troubles: list[PreflightTrouble] | None = Field(description="What is wrong.")
    collective_slowdown_ratio: float | None = Field(
        description="Time of the collective over the nodes to take, over the expected."
    )

    @classmethod
    def of(cls, preflight: Preflight) -> Self:
        """Tell a preflight in full."""
        found = read(preflight)
        return cls.model_validate(
            cls.told(preflight, found)
            | {
                "nodes": found and [_node(found, name) for name in found.nodes],
                "troubles": found
                and [
                    {name: getattr(each, name) for name in PreflightTrouble.model_fields}
                    for each in found.troubles
                ],
                "collective_slowdown_ratio": found.slowdown if found else None,
            }
        )


def _node(found: Found, name: str) -> dict[str, object]:
    return {
        "node": name,
        "verdict": found.nodes[name].value,
        "take": name in found.chosen,
        "reasons": reasons(found, name),
    }
