"""The record of an alert: what was seen of it first, at worst and last."""

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Self

from fleet.models import Alert
from telemetry.detect import RULES, Finding

# What an evaluation measured of the damage. The other evidence is about the cause and its place.
MEASURED = frozenset(
    {
        *("kind", "share_ratio", "wait_ratio", "transfer_ratio", "limit_ratio", "step"),
        *("step_s", "baseline_step_s", "phase_s", "baseline_phase_s"),
        *("share_scatter_ratio", "step_scatter_s", "n_errors"),
        *("healthy_steps", "steps_to_resolve", "every_s"),
    }
)
# Step times that differ by less are the same: healthy steps vary by this ratio.
STEP_NOISE_RATIO = 0.02
# As often as the cost of an alert is measured.
LATEST_EVERY_S = 10.0
ORDER = {"page": 1, "warn": 0}


@dataclass(frozen=True, slots=True)
class Observation:
    """What one evaluation saw of a problem; ``merit`` is the figure by which its rule compares.

    ``peak`` is what was worst under the same rule, in the latest of an alert that was worse under
    another one.
    """

    at_s: float
    onset_s: float
    rule: str
    subject: str
    severity: str
    cause: str
    node: str | None
    device: int | None
    merit: float
    score: float
    figures: Mapping[str, Any]
    peak: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, finding: Finding, subject: str, *, now: datetime) -> Self:
        evidence, at_s = finding.evidence, now.timestamp()
        return cls(
            at_s=at_s,
            onset_s=min(at_s, finding.onset_s),
            rule=finding.rule,
            subject=subject,
            severity=finding.severity,
            cause=finding.cause,
            node=finding.node,
            device=finding.device,
            merit=RULES[finding.rule].merit_of(evidence, lasted_s=at_s - finding.onset_s),
            score=finding.score,
            figures={k: v for k, v in evidence.items() if k in MEASURED or k == "culprit"},
        )

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self | None:
        """Read one as an alert stores it; None without one."""
        known = {field.name: stored[field.name] for field in fields(cls) if field.name in stored}
        return cls(**known) if stored else None

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.at_s, UTC)

    @property
    def lasted(self) -> timedelta:
        return timedelta(seconds=self.at_s - self.onset_s)

    @property
    def slowdown(self) -> float:
        """By how much steps take longer; infinite where none ends, 1 where nothing is known."""
        if RULES[self.rule].merit == "duration":
            return inf
        step_s, usual_s = (self.figures.get(key) for key in ("step_s", "baseline_step_s"))
        return max(1.0, step_s / usual_s) if step_s and usual_s else 1.0

    def is_worse_than(self, other: Self, *, of_rule: str = "") -> bool:
        """Compare by the figure of the rule; rules among each other by urgency, then by steps.

        Of rules under which steps took as long, the one ``of_rule`` is worse.
        """
        if self.rule == other.rule:
            return (self.merit, self.score) > (other.merit, other.score)
        if self.severity != other.severity:
            return ORDER[self.severity] > ORDER[other.severity]
        if self.slowdown > other.slowdown * (1 + STEP_NOISE_RATIO):
            return True
        is_as_slow = self.slowdown * (1 + STEP_NOISE_RATIO) >= other.slowdown > 1
        return is_as_slow and self.rule == of_rule


def begun(finding: Finding, subject: str, *, now: datetime) -> dict[str, Any]:
    """Return the fields of a new alert's record."""
    seen = Observation.of(finding, subject, now=now).json()
    return {"first": seen, "worst": seen, "latest": seen}


def continued(
    alert: Alert, finding: Finding, subject: str, *, now: datetime, is_new: bool = False
) -> dict[str, Any]:
    """Return the fields of an alert's record that an evaluation changes; often none.

    What is latest is written every few seconds, and at once where it ``is_new`` or other steps
    recover.
    """
    seen = Observation.of(finding, subject, now=now)
    worst, latest = Observation.read(alert.worst), Observation.read(alert.latest)
    to: dict[str, Any] = {}
    if worst is None or seen.is_worse_than(worst, of_rule=alert.rule):
        to["worst"] = seen.json()
    elif seen.rule != worst.rule:
        was = peak_of(latest) if latest and latest.rule == seen.rule else None
        peak = seen if was is None or seen.is_worse_than(was) else was
        seen = replace(seen, peak=peak.json())
    is_due = (
        is_new
        or latest is None
        or "worst" in to
        or seen.rule != latest.rule
        or seen.figures.get("healthy_steps") != latest.figures.get("healthy_steps")
        or (seen.peak is not None and seen.peak != latest.peak)
        or seen.at_s - latest.at_s >= LATEST_EVERY_S
    )
    return to | ({"latest": seen.json()} if is_due else {})


def peak_of(latest: Observation) -> Observation:
    return Observation.read(latest.peak or {}) or latest


@dataclass(frozen=True, slots=True)
class RecordedAlert:
    """An alert as its record describes it: the damage at worst, with the cause that is known now.

    An open alert under another rule than at its worst is described by what was worst under its
    present rule; then ``peak`` is how it was at worst. ``shown`` is what describes it. Alerts
    without a record have no observations.
    """

    alert: Alert
    worst: Observation | None = None
    latest: Observation | None = None
    shown: Observation | None = None
    peak: Alert | None = None


def recorded(alert: Alert) -> RecordedAlert:
    worst, latest = Observation.read(alert.worst), Observation.read(alert.latest)
    if worst is None:
        return RecordedAlert(alert)
    if not alert.is_open or latest is None or latest.rule == worst.rule:
        return RecordedAlert(_as_seen(alert, worst), worst, latest, shown=worst)
    peak, shown = _as_seen(alert, worst), peak_of(latest)
    # That time is over.
    peak.resolved_at = worst.at
    return RecordedAlert(_as_seen(alert, shown), worst, latest, shown=shown, peak=peak)


def _as_seen(alert: Alert, seen: Observation) -> Alert:
    """Return a copy of an alert with the damage of an observation. Never save it."""
    copied = copy.copy(alert)
    cause_of_alert = (alert.cause, alert.node.name if alert.node else None, alert.device)
    figures = dict(seen.figures)
    if (seen.cause, seen.node, seen.device) != cause_of_alert:
        # Its figure is of a cause that was replaced.
        figures.pop("culprit", None)
    of_cause = {key: value for key, value in alert.evidence.items() if key not in MEASURED}
    copied.evidence = of_cause | figures
    copied.rule, copied.subject = seen.rule, seen.subject
    return copied
