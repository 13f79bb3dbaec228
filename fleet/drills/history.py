"""Drills in the live fleet: what was put into its runs, and what became of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.db.models import Q

from fleet.drills.firings import Firing, firing_of
from fleet.drills.matching import grace_until_s, is_cause_right, is_place_right, match
from fleet.drills.preview import previewed
from fleet.drills.scoring import Tally, tally
from fleet.drills.truth import Truth
from fleet.models import Alert, AlertEvent, InjectedFault
from fleet.simulated.plans import fault_of
from telemetry.simulate.plan import RunSpec

# An alert that comes a little late may be about either of two faults this close.
BESIDE = timedelta(minutes=10)
BEGINNINGS = (AlertEvent.Kind.FIRED, AlertEvent.Kind.REFIRED)


@dataclass(frozen=True, slots=True)
class Told:
    """One fault in a live run, the alert that noticed it, and the others it set off."""

    fault: InjectedFault
    truth: Truth
    firing: Firing | None
    alert: Alert | None
    n_repeats: int
    now_s: float

    @property
    def delay_s(self) -> float | None:
        """How long it went unnoticed."""
        return None if self.firing is None else self.firing.fired_s - self.truth.start_s

    @property
    def is_cause_right(self) -> bool:
        """Whether the alert names the kind of fault."""
        return self.firing is not None and is_cause_right(self.truth, self.firing)

    @property
    def is_place_right(self) -> bool:
        """Whether the alert names the node, and no wrong part of it."""
        return self.firing is not None and is_place_right(self.truth, self.firing)

    @property
    def cause_named(self) -> str:
        """How the cause was named: right or wrong."""
        return "right" if self.is_cause_right else "wrong"

    @property
    def place_named(self) -> str:
        """How the place was named: right or wrong."""
        return "right" if self.is_place_right else "wrong"

    @property
    def outcome(self) -> str:
        """One word: planned, waiting, noticed, missed, or faint where nothing need be noticed."""
        if self.firing is not None:
            return "noticed"
        if self.now_s < self.truth.start_s:
            return "planned"
        if self.now_s <= grace_until_s(self.truth):
            return "waiting"
        return "missed" if self.truth.counts else "faint"


def told(faults: Iterable[InjectedFault], *, now: datetime) -> list[Told]:
    """Hold faults against the alerts of their runs; ask for them with run and node."""
    faults, now_s = list(faults), now.timestamp()
    truths = [live_truth(fault) for fault in faults]
    pairs = burned(truths, {fault.run_id for fault in faults}, now=now)
    found = match(truths, [firing for firing, _ in pairs])
    repeats = list(found.repeats.values())
    drills = []
    for i, fault in enumerate(faults):
        firing, alert = pairs[found.noticed[i]] if i in found.noticed else (None, None)
        drills.append(Told(fault, truths[i], firing, alert, repeats.count(i), now_s))
    return drills


def told_one(fault: InjectedFault, *, now: datetime) -> Told:
    """Hold one fault against the alerts of its run, beside the faults it shared the time with."""
    beside = InjectedFault.objects.filter(
        run=fault.run, starts_at__lt=fault.ends_at + BESIDE, ends_at__gt=fault.starts_at - BESIDE
    )
    drills = told(beside.select_related("run", "node"), now=now)
    return next(drill for drill in drills if drill.fault.pk == fault.pk)


def live_truth(injected: InjectedFault) -> Truth:
    """Return the truth of a fault in the live fleet, in Unix seconds."""
    starts_s, ends_s = injected.starts_at.timestamp(), injected.ends_at.timestamp()
    fault = msgspec.structs.replace(fault_of(injected, epoch_s=int(starts_s)), start_s=0.0)
    truth = previewed(RunSpec(**injected.run.plan), fault)
    later_s = truth.felt_until_s - truth.end_s
    return replace(
        truth,
        fault=fault,
        start_s=starts_s,
        end_s=ends_s,
        felt_until_s=ends_s + max(0.0, later_s),
    )


def burned(
    truths: Sequence[Truth], runs: set[int], *, now: datetime
) -> list[tuple[Firing, Alert]]:
    """Return every firing that may be about these faults, with its alert."""
    if not truths:
        return []
    since = datetime.fromtimestamp(min(truth.start_s for truth in truths), UTC)
    until = datetime.fromtimestamp(max(grace_until_s(truth) for truth in truths), UTC)
    beginnings = AlertEvent.objects.filter(
        Q(alert__run__in=runs) | Q(alert__run=None, alert__node=None),
        kind__in=BEGINNINGS,
        at__gte=since - timedelta(seconds=1),
        at__lte=min(now, until),
    )
    events = beginnings.select_related("alert__run", "alert__node").order_by("at", "pk")
    return [(_firing(event), event.alert) for event in events]


def _firing(event: AlertEvent) -> Firing:
    alert = event.alert
    firing = firing_of(alert, epoch_s=0.0, fired_s=event.at.timestamp())
    firing.resolved_s = alert.resolved_at.timestamp() if alert.resolved_at else None
    return firing


def score_of(drills: Sequence[Told]) -> Tally:
    """Count how the faults that are over were noticed; what else fired is not looked at."""
    over = [drill for drill in drills if drill.outcome in {"noticed", "missed", "faint"}]
    noticed = [drill.firing for drill in over if drill.firing is not None]
    return tally([drill.truth for drill in over], noticed, duration_s=0.0)


def by_kind(drills: Sequence[Told]) -> list[tuple[str, dict[str, Any]]]:
    """Return the score of every kind of fault that was drilled, the most drilled first."""
    kinds: dict[str, list[Told]] = {}
    for drill in drills:
        kinds.setdefault(drill.fault.kind, []).append(drill)
    often = sorted(kinds, key=lambda kind: -len(kinds[kind]))
    return [(kind, score_of(kinds[kind]).score()) for kind in often]
