"""From a broken share to its cause: who waits least, and what on that machine stands out."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from telemetry.detect.finding import UNKNOWN
from telemetry.detect.peers import median
from telemetry.detect.share import own_s
from telemetry.detect.vitals import Vitals
from telemetry.steps import StepBatch


@dataclass(frozen=True, slots=True)
class Suspect:
    """A cause that the figures speak for, and the machine, if any, that they speak against."""

    cause: str = UNKNOWN
    node: str | None = None
    device: int | None = None
    figures: dict[str, Any] = field(default_factory=dict)


def localise(vitals: Vitals, steps: StepBatch, onset: int) -> Suspect:
    """Name the cause of a share above its limit, from row ``onset`` of ``steps`` on."""
    after = steps[onset:]
    wait = float(after.wait_ratio.mean())
    transfer = float(after.transfer_ratio.mean())
    if wait <= transfer:
        return Suspect()
    own = median(own_s(after).T)
    worst = int(np.nanargmax(own))
    return Suspect(node=vitals.node_of(steps.workers[worst]))
