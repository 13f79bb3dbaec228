"""How well detection did in a scenario: its faults, its alerts and the score, as text and JSON."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drills.playback import play_scenario
from drills.scenario import Scenario, runs_of
from fleet.simulation.ground_truth import FaultTruth, all_truths
from fleet.simulation.scoring import (
    Firing,
    Matches,
    accuses_wrongly,
    is_cause_right,
    match,
    tally,
)
from telemetry.detect.causes import UNKNOWN
from telemetry.simulate.faults import FAULTS
from telemetry.simulate.plan import Plan

# Kinds whose effect is over before the fault is: one compilation, checkpoints that come rarely.
PASSES = ("recompile", "checkpoint_slow")


def truths_of(scenario: Scenario, plans: tuple[Plan, ...]) -> list[FaultTruth]:
    """Return every fault of a scenario, in the order of the file."""
    by_run = {plan.run.name: dict(all_truths(plan, scenario.duration_s)) for plan in plans}
    found = []
    for fault in scenario.faults:
        hit = [by_run[run.name][fault] for run in runs_of(fault, scenario.runs)]
        if not hit:
            continue
        # Of several runs, that which it costs the most.
        slowdowns = [each.step_slowdown_ratio for each in hit]
        worst = np.argmax([np.inf if ratio is None else ratio for ratio in slowdowns])
        merged = replace(
            hit[worst],
            runs=tuple(name for truth in hit for name in truth.runs),
            nodes=tuple(name for truth in hit for name in truth.nodes),
            felt_until_s=max(truth.felt_until_s for truth in hit),
            is_shown=any(truth.is_shown for truth in hit),
        )
        found.append(merged)
    return found


def misleads(truth: FaultTruth, firing: Firing, truths: Iterable[FaultTruth]) -> bool:
    """Whether an alert about a fault names a wrong cause, or a healthy node."""
    is_named = firing.cause == UNKNOWN or is_cause_right(truth, firing)
    return not is_named or accuses_wrongly(firing, truths)


def is_kept(truth: FaultTruth, firing: Firing) -> bool | None:
    """Whether an alert stayed open while its fault lasted; None for what slows only its start."""
    if truth.fault.kind in PASSES:
        return None
    return firing.resolved_s is None or firing.resolved_s >= truth.end_s


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
