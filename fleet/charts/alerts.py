"""The charts of an alert: its evidence over the window in which it happened, frozen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from fleet.charts.culprits import culprit_charts, culprit_figure, stands_out
from fleet.charts.figures import Figure, Heat, Line, Mark, Shade, mean_of
from fleet.charts.nodes import note_of
from fleet.charts.runs import PER_STEP, run_figure
from fleet.charts.windows import Window
from fleet.models import Alert, Run
from fleet.templatetags.units import percent, seconds
from fleet.words.evidence import WAITED, Evidence, blames_late_worker
from telemetry.store.history import MINUTE_S, run_steps, worker_minutes
from telemetry.store.source import LongTerm, Source

BEFORE_S = 300
AFTER_S = 120
LONGEST_S = 3600
# Where the time of a step goes that too much goes into: the phase to set workers side by side in.
PHASE_OF: Mapping[str, tuple[str, str, str]] = {
    "input_stall": ("input_s", "input", "Input by worker"),
    "checkpoint_slow": ("checkpoint_s", "checkpoint", "Checkpoint by worker"),
}


@dataclass(frozen=True, slots=True)
class AlertChart:
    """One chart of the alert page."""

    name: str
    title: str
    kind: str
    help: str
    note: str | None = None


def alert_window(alert: Alert, *, now: datetime) -> Window:
    """Return the stretch that an alert is about: from before its onset to after its end.

    An open alert's stretch grows for an hour; then what made it fire stays in view.
    """
    onset_s = alert.onset_at.timestamp()
    is_over = alert.resolved_at is not None and alert.resolved_at <= now
    until = alert.resolved_at if is_over and alert.resolved_at else now
    until_s = until.timestamp() + (AFTER_S if is_over else 0)
    end = min(until_s, onset_s + LONGEST_S, now.timestamp())
    return Window(int(onset_s) - BEFORE_S, max(int(end), int(onset_s) + 1))


def charts_of(alert: Alert) -> Sequence[AlertChart]:
    """Return the charts that speak for an alert, the most telling first."""
    phases = AlertChart("phases", "Step time by phase", "stack", "per step, seconds")
    convicting = _convicting(alert)
    if alert.run is None:
        return convicting
    # What a node rule found stands in its own metric; what a run's rule found, in the steps.
    of_node = alert.subject.startswith("node:")
    found = [*convicting, phases] if of_node else [phases, *convicting]
    return [*found, *_by_worker(alert)]


def _convicting(alert: Alert) -> list[AlertChart]:
    if alert.node is None:
        return []
    return [
        AlertChart(
            "culprit" if not i else f"culprit-{i + 1}",
            f"{chart.title}, {alert.node}",
            "lines",
            stands_out(alert),
            note_of(chart, alert.node),
        )
        for i, chart in enumerate(culprit_charts(alert))
    ]


def _by_worker(alert: Alert) -> list[AlertChart]:
    evidence = Evidence(alert.evidence)
    if alert.cause in PHASE_OF:
        title = PHASE_OF[alert.cause][2]
        words = "the longest, seconds" if alert.cause == "checkpoint_slow" else "seconds per step"
        return [AlertChart("workers", title, "bars", f"{words}, while it was so")]
    found = []
    if evidence.by_node:
        words = "host vCPUs in use: who computes or polls, and who does neither"
        found.append(AlertChart("by-node", "Hosts side by side", "bars", words))
    if evidence.wait_by_worker or alert.rule in WAITED:
        found.append(AlertChart("workers", "Who waits for whom", "bars", _who_waits(alert)))
    if alert.rule == "allreduce_share":
        words = "of each step; the line is the limit"
        found.append(AlertChart("share", "All-reduce share", "lines", words))
    return found


def _who_waits(alert: Alert) -> str:
    if blames_late_worker(alert):
        return f"{PER_STEP}; {alert.node} waits least: the culprit is the one the others wait for"
    if Evidence(alert.evidence).is_waiting:
        return PER_STEP
    return f"{PER_STEP}; the time goes into the transfer, not into waiting for one worker"


def alert_figure(
    source: Source,
    alert: Alert,
    chart: str,
    window: Window,
    *,
    now: datetime,
    long_term: LongTerm | None = None,
) -> Figure | Heat | None:
    """Return one chart of an alert, the broken stretch shaded; None where it has no such chart.

    What the database no longer keeps is asked of ``long_term``, but for single workers.
    """
    if chart not in {each.name for each in charts_of(alert)}:
        return None
    if chart.startswith("culprit"):
        number = int(chart.removeprefix("culprit").removeprefix("-") or 1)
        culprit = culprit_charts(alert)[number - 1]
        figure = culprit_figure(source, alert, culprit, window, long_term=long_term)
    elif chart == "by-node":
        figure = _by_node(alert)
    elif chart == "workers":
        figure = _workers(source, alert, window)
    else:
        run = alert.run
        figure = run_figure(source, run, chart, window, long_term=long_term) if run else None
    if figure is not None and chart == "phases":
        figure = replace(figure, marks=_usual(alert))
    return replace(figure, shade=[shade_of(alert, now=now)]) if figure else None


def _usual(alert: Alert) -> Sequence[Mark]:
    """Return how long a step took before, as a level to draw."""
    evidence = Evidence(alert.evidence)
    usual_s = evidence.number("baseline_step_s") or evidence.number("usual_step_s")
    return [] if usual_s is None else [(usual_s, f"before {seconds(usual_s)}", "peers")]


def _by_node(alert: Alert) -> Figure:
    shown = Evidence(alert.evidence).by_node
    return Figure("ratio", [Line("vCPUs", np.array(list(shown.values())))], labels=list(shown))


def _workers(source: Source, alert: Alert, window: Window) -> Figure | None:
    """Draw how long each worker waited, or what it was late with, while it was so."""
    if alert.run is None:
        return None
    broken = replace(window, start=int(alert.onset_at.timestamp()))
    if alert.cause in PHASE_OF:
        return _phase(source, alert.run, alert.cause, broken)
    waits = Evidence(alert.evidence).wait_by_worker
    if waits:
        values = np.array(list(waits.values()))
        return Figure("s", [Line("waiting", values, "wait")], labels=list(waits))
    return run_figure(source, alert.run, "workers", broken)


def _phase(source: Source, run: Run, cause: str, window: Window) -> Figure:
    """Set the workers side by side: their mean, or the longest where it comes now and then."""
    phase, label, _ = PHASE_OF[cause]
    steps = run_steps(source, run.name, start_s=window.start, end_s=window.end)
    if len(steps.workers) != run.n_nodes:
        first = window.start - window.start % MINUTE_S
        steps = worker_minutes(source, run.name, start_s=first, end_s=window.end)
    values = steps.phases[phase]
    longest = np.fmax.reduce(values, axis=0, initial=np.nan)
    shown = longest if phase == "checkpoint_s" else mean_of(values.T)
    return Figure("s", [Line(label, shown, label)], labels=steps.workers)


def shade_of(alert: Alert, *, now: datetime) -> Shade:
    """Return the broken stretch, with its words."""
    limit = Evidence(alert.evidence).number("limit_ratio")
    is_share = alert.rule == "allreduce_share" and limit is not None
    words = f"above {percent(limit, 0)}" if is_share else "broken"
    return (alert.onset_at.timestamp(), (alert.resolved_at or now).timestamp(), words)
