"""Score alerts by the ground truth: precision, recall, location, cause, time to detect."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fleet.alerts.evidence import Evidence
from fleet.models import Alert
from fleet.simulation.ground_truth import FaultTruth
from telemetry.simulate.faults import FAULTS
from telemetry.units import DAY_S

# An alert may come a little after the fault is over; a crash also costs the restart.
GRACE_S = 60.0
RESTART_S = 180.0


@dataclass(slots=True)
class Firing:
    """One alert from firing to resolved; seconds count from the start of the play."""

    rule: str
    cause: str
    severity: str
    run: str | None
    node: str | None
    device: int | None
    onset_s: float
    fired_s: float
    resolved_s: float | None
    score: float
    victims: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    # When it first named a node.
    located_s: float | None = None

    @property
    def accused_runs(self) -> tuple[str, ...]:
        return self.runs or (() if self.run is None else (self.run,))

    @property
    def accused(self) -> tuple[str, ...]:
        return self.nodes or (() if self.node is None else (self.node,))


def firing_of(alert: Alert, *, epoch_s: float, fired_s: float) -> Firing:
    # The row has the first onset, the evidence the last.
    onset_s = Evidence(alert.evidence).number("onset_s") or 0.0
    return Firing(
        rule=alert.rule,
        cause=alert.cause,
        severity=alert.severity,
        run=alert.run.name if alert.run else None,
        node=alert.node.name if alert.node else None,
        device=alert.device,
        onset_s=max(alert.onset_at.timestamp(), onset_s) - epoch_s,
        fired_s=fired_s,
        resolved_s=None,
        score=alert.score,
        victims=tuple(alert.victims),
        nodes=_several(alert),
        runs=tuple(str(name) for name in alert.evidence.get("runs") or ()),
    )


def _several(alert: Alert) -> tuple[str, ...]:
    return () if alert.node is not None else tuple(alert.nodes)


@dataclass(frozen=True, slots=True)
class Matches:
    """Which alert matches which fault, by position in their lists."""

    noticed: dict[int, int]
    repeats: dict[int, int]
    false: tuple[int, ...]


def match(truths: Sequence[FaultTruth], firings: Sequence[Firing]) -> Matches:
    """Match alerts with faults, one to one, the best fitting first.

    An alert that accuses only nodes that the fault does not affect is not about it. An unmatched
    alert repeats a fault it could have detected; without any it is false.
    """
    pairs = [
        (_fit(truth, firing), -firing.fired_s, -i, -j)
        for i, truth in enumerate(truths)
        for j, firing in enumerate(firings)
        if overlaps(truth, firing) and not _is_elsewhere(truth, firing)
    ]
    noticed: dict[int, int] = {}
    taken: dict[int, int] = {}
    for _, _, i, j in sorted(pairs, reverse=True):
        if -i not in noticed and -j not in taken:
            noticed[-i] = -j
            taken[-j] = -i
    repeats: dict[int, int] = {}
    for _, _, i, j in sorted(pairs, reverse=True):
        if -j not in taken and -j not in repeats:
            repeats[-j] = -i
    false = [j for j in range(len(firings)) if j not in taken and j not in repeats]
    return Matches(noticed, repeats, tuple(false))


def overlaps(truth: FaultTruth, firing: Firing) -> bool:
    """Whether an alert about the fault's run fired during the fault's effect or soon after."""
    is_about = not firing.accused_runs or bool(set(truth.runs).intersection(firing.accused_runs))
    return is_about and truth.start_s <= firing.fired_s <= grace_until_s(truth)


def _is_elsewhere(truth: FaultTruth, firing: Firing) -> bool:
    return bool(truth.nodes and firing.accused) and set(truth.nodes).isdisjoint(firing.accused)


def grace_until_s(truth: FaultTruth) -> float:
    """Latest time of an alert about a fault."""
    until_s = max(truth.end_s, truth.felt_until_s) + GRACE_S
    return until_s + (RESTART_S if truth.fault.kind == "node_crash" else 0.0)


def is_cause_right(truth: FaultTruth, firing: Firing) -> bool:
    """Whether the alert names the fault's kind, or its class if the inputs show no more."""
    return firing.cause in truth.causes


def is_place_right(truth: FaultTruth, firing: Firing) -> bool:
    """Whether the alert names the affected node, or none where the whole run is affected.

    Of several affected nodes at least half must be named, and no other. A part of the node that
    is named must be the right one; it need not be named.
    """
    accused = set(firing.accused)
    if not truth.nodes or FAULTS[truth.fault.kind].of_many:
        return not accused
    if len(truth.nodes) > 1:
        return accused <= set(truth.nodes) and 2 * len(accused) >= len(truth.nodes)
    return accused == set(truth.nodes) and firing.device in {None, _part(truth)}


def accuses_wrongly(firing: Firing, truths: Iterable[FaultTruth]) -> bool:
    """Whether an alert accuses a node that none of the faults it may be about affects."""
    hit = {name for truth in truths if overlaps(truth, firing) for name in truth.nodes}
    return bool(set(firing.accused) - hit)


def _part(truth: FaultTruth) -> int:
    return truth.fault.device or 0


def _fit(truth: FaultTruth, firing: Firing) -> int:
    is_node = set(firing.accused) == set(truth.nodes)
    return 2 * is_node + 2 * is_cause_right(truth, firing) + is_place_right(truth, firing)


# Detected in time: within this, or two of the steps as the fault makes them.
IN_TIME_S = 15.0
IN_TIME_STEPS = 2.0


@dataclass(slots=True)
class Tally:
    """Counts that can be added up over scenarios; ``delays_s`` are times to detect."""

    duration_s: float = 0.0
    n_faults: int = 0
    n_countable: int = 0
    n_alerts: int = 0
    n_noticed: int = 0
    n_placed: int = 0
    n_single: int = 0
    n_single_placed: int = 0
    n_wrong_node: int = 0
    n_named: int = 0
    n_in_time: int = 0
    n_repeats: int = 0
    n_false: int = 0
    n_false_pages: int = 0
    delays_s: list[float] = field(default_factory=list)

    def score(self) -> dict[str, Any]:
        """Compute counts and ratios; a ratio of nothing is None."""
        return {
            "n_faults": self.n_faults,
            "n_countable": self.n_countable,
            "n_alerts": self.n_alerts,
            "n_noticed": self.n_noticed,
            "n_missed": self.n_countable - self.n_noticed,
            "n_repeats": self.n_repeats,
            "precision": ratio(self.n_alerts - self.n_false - self.n_repeats, self.n_alerts),
            "recall": ratio(self.n_noticed, self.n_countable),
            "localisation": ratio(self.n_placed, self.n_noticed),
            "localisation_single": ratio(self.n_single_placed, self.n_single),
            "wrong_node": ratio(self.n_wrong_node, self.n_alerts),
            "cause": ratio(self.n_named, self.n_noticed),
            "in_time": ratio(self.n_in_time, self.n_noticed),
            "time_to_detect_s": {
                "p50": percentile(self.delays_s, 50),
                "p90": percentile(self.delays_s, 90),
            },
            "false_alerts": self.n_false,
            "false_pages": self.n_false_pages,
            "false_pages_per_day": ratio(self.n_false_pages, self.duration_s / DAY_S),
        }


def tally(
    truths: Sequence[FaultTruth],
    firings: Sequence[Firing],
    *,
    duration_s: float,
    matches: Matches | None = None,
) -> Tally:
    """Count the results of one play; faults that need not be found count only if found."""
    matches = matches or match(truths, firings)
    noticed = [(truths[i], firings[j]) for i, j in matches.noticed.items() if truths[i].counts]
    false = [firings[j] for j in matches.false]
    single = [pair for pair in noticed if len(pair[0].nodes) == 1]
    return Tally(
        duration_s=duration_s,
        n_faults=len(truths),
        n_countable=sum(truth.counts for truth in truths),
        n_alerts=len(firings),
        n_noticed=len(noticed),
        n_placed=sum(is_place_right(*pair) for pair in noticed),
        n_single=len(single),
        n_single_placed=sum(is_place_right(*pair) for pair in single),
        n_wrong_node=sum(accuses_wrongly(firing, truths) for firing in firings),
        n_named=sum(is_cause_right(*pair) for pair in noticed),
        n_in_time=sum(is_in_time(*pair) for pair in noticed),
        n_repeats=len(matches.repeats),
        n_false=len(false),
        n_false_pages=sum(firing.severity == Alert.Severity.PAGE for firing in false),
        delays_s=[firing.fired_s - truth.start_s for truth, firing in noticed],
    )


def time_limit_s(truth: FaultTruth) -> float:
    """Fifteen seconds or two steps, whichever is longer."""
    return max(IN_TIME_S, IN_TIME_STEPS * (truth.step_s or 0.0))


def is_in_time(truth: FaultTruth, firing: Firing) -> bool:
    return firing.fired_s - truth.start_s <= time_limit_s(truth)


def ratio(part: float, whole: float) -> float | None:
    """Return part over whole; None if the whole is 0."""
    return part / whole if whole else None


def percentile(values: Sequence[float], q: float) -> float | None:
    """Percentile; None without values."""
    return float(np.percentile(values, q)) if values else None
