"""The drills of a run: the faults that people put into it, and how far each has got."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fleet.models import InjectedFault, Run
from fleet.words.causes import part_name
from fleet.words.wording import figure
from telemetry.simulate.kinds import FAULTS

LOOKED_AT = 10
RECENT = 3


@dataclass(frozen=True, slots=True)
class Drill:
    """One fault, in words, and how far it has got."""

    fault: InjectedFault
    title: str
    part: str
    strength: str
    progress_ratio: float
    left_s: float

    @property
    def is_running(self) -> bool:
        """Whether it is in there still, or about to be."""
        return self.left_s > 0

    @property
    def has_begun(self) -> bool:
        """Whether it is in there already."""
        return self.progress_ratio > 0


def drills_of(run: Run, *, now: datetime) -> Sequence[Drill]:
    """Return the faults people put into a run: those at work, and the last few before."""
    faults = run.injected_faults.exclude(injected_by="").select_related("node")[:LOOKED_AT]
    drills = [drill_of(fault, now=now) for fault in faults]
    over = [drill for drill in drills if not drill.is_running]
    return [*(drill for drill in drills if drill.is_running), *over[:RECENT]]


def drill_of(fault: InjectedFault, *, now: datetime) -> Drill:
    """Put an injected fault in words."""
    kind = FAULTS.get(fault.kind)
    lasts_s = (fault.ends_at - fault.starts_at).total_seconds()
    gone_s = (now - fault.starts_at).total_seconds()
    unit = kind.magnitude_unit if kind else None
    return Drill(
        fault,
        title=kind.title if kind else fault.kind.replace("_", " "),
        part=part_name(fault.kind) or "device",
        strength=figure(fault.magnitude, unit) if unit else "",
        progress_ratio=min(1.0, max(0.0, gone_s / lasts_s)),
        left_s=max(0.0, lasts_s - max(0.0, gone_s)),
    )
