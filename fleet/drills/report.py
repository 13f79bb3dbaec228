"""What a drill has to say: the truth, the alerts and the score, as JSON or as tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.drills.firings import Firing
from fleet.drills.matching import Matches, match
from fleet.drills.playing import play_scenario
from fleet.drills.scoring import tally
from fleet.drills.truth import Truth, truths_of
from telemetry.simulate.kinds import FAULTS
from telemetry.simulate.scenario import Scenario

HEADS = {
    "precision": "of the alerts were about a fault",
    "recall": "of the faults that count were noticed",
    "localisation": "of those noticed, the right place named",
    "cause": "of those noticed, the right cause named",
    "in_time": "of those noticed, within 15 s or two steps",
}


@dataclass(frozen=True, slots=True)
class Report:
    """One scenario played, beside its truth."""

    scenario: Scenario
    seed: int
    truths: tuple[Truth, ...]
    firings: tuple[Firing, ...]
    matches: Matches

    @property
    def score(self) -> dict[str, Any]:
        """Return the score."""
        duration_s = self.scenario.duration_s
        return tally(
            self.truths, self.firings, duration_s=duration_s, matches=self.matches
        ).score()

    def as_json(self) -> dict[str, Any]:
        """Return the answer of ``drill --json``."""
        return {
            "scenario": self.scenario.name,
            "seed": self.seed,
            "duration_s": self.scenario.duration_s,
            "faults": [fault_json(truth) for truth in self.truths],
            "alerts": [alert_json(firing) for firing in self.firings],
            "score": self.score,
        }


def drill(scenario: Scenario, *, seed: int | None = None) -> Report:
    """Play a scenario, and hold what fired against what was wrong."""
    played = play_scenario(scenario, seed=seed)
    truths = tuple(truths_of(scenario, played.plans))
    used = scenario.seed if seed is None else seed
    return Report(scenario, used, truths, played.firings, match(truths, played.firings))


def fault_json(truth: Truth) -> dict[str, Any]:
    """Return a fault as ``drill --json`` prints it."""
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
    """Return an alert as ``drill --json`` prints it."""
    return {
        "rule": firing.rule,
        "cause": firing.cause,
        "node": firing.node,
        "nodes": list(firing.accused) or None,
        "run": firing.run,
        "runs": None if firing.run is None else [firing.run],
        "device": firing.device,
        "onset_s": rounded(firing.onset_s),
        "fired_s": rounded(firing.fired_s),
        "resolved_s": rounded(firing.resolved_s),
        "score": rounded(firing.score),
        "victims": list(firing.victims),
    }


def rounded(value: float | None) -> float | None:
    """Round to a thousandth: no clock here is finer."""
    return None if value is None else round(value, 3)


def lines(report: Report) -> Iterator[str]:
    """Yield the report for people, line by line."""
    scenario, score = report.scenario, report.score
    yield f"{scenario.name}: {scenario.duration_s:,.0f} s, seed {report.seed}"
    yield f"\nFaults: {len(report.truths)}"
    yield from _table([_fault_row(report, i) for i in range(len(report.truths))])
    yield f"\nAlerts: {len(report.firings)}"
    yield from _table([_alert_row(report, j) for j in range(len(report.firings))])
    yield "\nScore"
    rows = [(name, _share(score[name]), text) for name, text in HEADS.items()]
    delay = score["time_to_detect_s"]
    rows.append(("time to detect", _seconds(delay["p50"]), f"p90 {_seconds(delay['p90'])}"))
    rows.append(("false alerts", str(score["false_alerts"]), _false_pages(score)))
    yield from _table(rows)


def _false_pages(score: dict[str, Any]) -> str:
    return f"{score['false_pages']} of them pages, {score['false_pages_per_day']:.2g} per day"


def _fault_row(report: Report, i: int) -> tuple[str, ...]:
    truth = report.truths[i]
    cost = truth.step_slowdown_ratio
    ratio = "no step got on" if cost is None else f"steps x {cost:.3f}"
    noticed = report.matches.noticed.get(i)
    if noticed is None:
        verdict = "MISSED" if truth.counts else "not noticed, need not be"
    else:
        delay_s = report.firings[noticed].fired_s - truth.start_s
        verdict = f"noticed after {delay_s:,.0f} s"
    at = f"{truth.start_s:,.0f}-{truth.end_s:,.0f} s"
    return (
        truth.fault.kind,
        _place(truth.fault.node or truth.run, truth.fault.device),
        at,
        ratio,
        verdict,
    )


def _alert_row(report: Report, j: int) -> tuple[str, ...]:
    firing = report.firings[j]
    over = "open still" if firing.resolved_s is None else f"over {firing.resolved_s:,.0f} s"
    verdict = "FALSE" if j in report.matches.false else ""
    if j in report.matches.repeats:
        verdict = "again"
    return (
        firing.rule,
        firing.cause,
        _place(firing.node or firing.run or "fleet", firing.device),
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
    """Yield rows in columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()
