"""Score alerts by the ground truth: precision, recall, location, cause, time to detect."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fleet.models import Alert
from fleet.simulation.ground_truth import FaultTruth, truths_of
from fleet.simulation.playback import Firing, play_scenario
from telemetry.detect.causes import UNKNOWN
from telemetry.simulate.faults import FAULTS
from telemetry.simulate.scenario import Scenario

# An alert may come a little after the fault is over; a crash also costs the restart.
GRACE_S = 60.0
RESTART_S = 180.0
# Kinds that slow several machines equally: naming one of them is not required.
OF_MANY = ("seq_imbalance", "stage_imbalance")
# Kinds whose effect is over before the fault is: one compilation, checkpoints that come rarely.
PASSES = ("recompile", "checkpoint_slow")


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
    if not truth.nodes or truth.fault.kind in OF_MANY:
        return not accused
    if len(truth.nodes) > 1:
        return accused <= set(truth.nodes) and 2 * len(accused) >= len(truth.nodes)
    return accused == set(truth.nodes) and firing.device in {None, _part(truth)}


def accuses_wrongly(firing: Firing, truths: Iterable[FaultTruth]) -> bool:
    """Whether an alert accuses a node that none of the faults it may be about affects."""
    hit = {name for truth in truths if overlaps(truth, firing) for name in truth.nodes}
    return bool(set(firing.accused) - hit)


def misleads(truth: FaultTruth, firing: Firing, truths: Iterable[FaultTruth]) -> bool:
    """Whether an alert about a fault names a wrong cause, or a healthy node."""
    is_named = firing.cause == UNKNOWN or is_cause_right(truth, firing)
    return not is_named or accuses_wrongly(firing, truths)


def _part(truth: FaultTruth) -> int:
    return truth.fault.device or 0


def _fit(truth: FaultTruth, firing: Firing) -> int:
    is_node = set(firing.accused) == set(truth.nodes)
    return 2 * is_node + 2 * is_cause_right(truth, firing) + is_place_right(truth, firing)


DAY_S = 86_400.0
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


def total(tallies: Iterable[Tally]) -> Tally:
    everything = Tally()
    for each in tallies:
        for name in Tally.__dataclass_fields__:
            setattr(everything, name, getattr(everything, name) + getattr(each, name))
    return everything


def time_limit_s(truth: FaultTruth) -> float:
    """Fifteen seconds or two steps, whichever is longer."""
    return max(IN_TIME_S, IN_TIME_STEPS * (truth.step_s or 0.0))


def is_kept(truth: FaultTruth, firing: Firing) -> bool | None:
    """Whether an alert stayed open while its fault lasted; None for what slows only its start."""
    if truth.fault.kind in PASSES:
        return None
    return firing.resolved_s is None or firing.resolved_s >= truth.end_s


def is_in_time(truth: FaultTruth, firing: Firing) -> bool:
    return firing.fired_s - truth.start_s <= time_limit_s(truth)


def ratio(part: float, whole: float) -> float | None:
    """Return part over whole; None if the whole is 0."""
    return part / whole if whole else None


def percentile(values: Sequence[float], q: float) -> float | None:
    """Percentile; None without values."""
    return float(np.percentile(values, q)) if values else None


SCORE_LABELS = {
    "precision": "of the alerts were the first about a fault",
    "recall": "of the faults that count were detected",
    "localisation": "of those detected, with the correct location",
    "cause": "of those detected, with the correct cause",
    "in_time": "of those detected, within 15 s or two steps",
}


@dataclass(frozen=True, slots=True)
class DrillReport:
    scenario: Scenario
    seed: int
    truths: tuple[FaultTruth, ...]
    firings: tuple[Firing, ...]
    matches: Matches

    @property
    def score(self) -> dict[str, Any]:
        duration_s = self.scenario.duration_s
        return tally(
            self.truths, self.firings, duration_s=duration_s, matches=self.matches
        ).score()

    def as_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario.name,
            "seed": self.seed,
            "duration_s": self.scenario.duration_s,
            "tier": self.scenario.inputs.tier,
            "faults": [fault_json(truth) for truth in self.truths],
            "alerts": [alert_json(firing) for firing in self.firings],
            "score": self.score,
        }


def drill(scenario: Scenario, *, seed: int | None = None) -> DrillReport:
    """Play a scenario, and match its alerts with its faults."""
    played = play_scenario(scenario, seed=seed)
    truths = tuple(truths_of(scenario, played.plans))
    used = scenario.seed if seed is None else seed
    return DrillReport(scenario, used, truths, played.firings, match(truths, played.firings))


def fault_json(truth: FaultTruth) -> dict[str, Any]:
    fault, kind = truth.fault, FAULTS[truth.fault.kind]
    return {
        "kind": fault.kind,
        "node": fault.node,
        "run": truth.run,
        "device": fault.device,
        "start_s": rounded(truth.start_s),
        "end_s": rounded(truth.end_s),
        "magnitude": None if kind.magnitude_unit is None else fault.magnitude,
        "step_slowdown_ratio": rounded(truth.step_slowdown_ratio),
    }


def alert_json(firing: Firing) -> dict[str, Any]:
    return {
        "rule": firing.rule,
        "cause": firing.cause,
        "node": firing.node,
        "nodes": list(firing.accused) or None,
        "run": firing.run,
        "runs": list(firing.accused_runs) or None,
        "device": firing.device,
        "onset_s": rounded(firing.onset_s),
        "fired_s": rounded(firing.fired_s),
        "located_s": rounded(firing.located_s),
        "resolved_s": rounded(firing.resolved_s),
        "severity": firing.severity,
        "score": rounded(firing.score),
        "victims": list(firing.victims),
    }


def rounded(value: float | None) -> float | None:
    """Round to a millisecond, the resolution of all clocks here."""
    return None if value is None else round(value, 3)


def lines(report: DrillReport) -> Iterator[str]:
    scenario, score = report.scenario, report.score
    played = f"{scenario.duration_s:,.0f} s, seed {report.seed}, tier {scenario.inputs.tier}"
    yield f"{scenario.name}: {played}"
    yield f"\nFaults: {len(report.truths)}"
    yield from _table([_fault_row(report, i) for i in range(len(report.truths))])
    yield f"\nAlerts: {len(report.firings)}"
    yield from _table([_alert_row(report, j) for j in range(len(report.firings))])
    yield "\nScore"
    rows = [(name, _share(score[name]), text) for name, text in SCORE_LABELS.items()]
    delay = score["time_to_detect_s"]
    rows.append(("time to detect", _seconds(delay["p50"]), f"p90 {_seconds(delay['p90'])}"))
    pages = f"{score['false_pages']} of them pages, {score['false_pages_per_day']:.2g} per day"
    rows.append(("false alerts", str(score["false_alerts"]), pages))
    yield from _table(rows)


def _fault_row(report: DrillReport, i: int) -> tuple[str, ...]:
    truth = report.truths[i]
    cost = truth.step_slowdown_ratio
    ratio = "no step completed" if cost is None else f"steps x {cost:.3f}"
    noticed = report.matches.noticed.get(i)
    if noticed is None:
        verdict = "MISSED" if truth.counts else "not detected, need not be"
    else:
        delay_s = report.firings[noticed].fired_s - truth.start_s
        verdict = f"detected after {delay_s:,.0f} s"
    at = f"{truth.start_s:,.0f}-{truth.end_s:,.0f} s"
    return (
        truth.fault.kind,
        _place(", ".join(truth.nodes[:3] or truth.runs), truth.fault.device),
        at,
        ratio,
        verdict,
    )


def _alert_row(report: DrillReport, j: int) -> tuple[str, ...]:
    firing = report.firings[j]
    over = "still open" if firing.resolved_s is None else f"over {firing.resolved_s:,.0f} s"
    verdict = "FALSE" if j in report.matches.false else ""
    if j in report.matches.repeats:
        verdict = "again"
    return (
        firing.rule,
        firing.cause,
        _place(", ".join(firing.accused[:3] or firing.accused_runs) or "fleet", firing.device),
        f"fired {firing.fired_s:,.0f} s",
        over,
        verdict,
    )


def _place(name: str, device: int | None) -> str:
    return name if device is None else f"{name}/{device}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} s"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()
