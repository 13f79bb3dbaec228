"""Runs side by side: figures, with their differences from the first run's, and settings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from fleet.alerts.impact import worst_first
from fleet.charts.windows import Window
from fleet.formatting import change, percent, points, seconds, si, usd
from fleet.models import Alert, Run
from fleet.pages.frozen import run_in_window
from fleet.pages.render import HtmxRequest, render_page
from fleet.pages.runs import RunRow, rows_with_alerts
from fleet.runs.summaries import RunNow, runs_now
from fleet.trials.figures import NOT_REPORTED, MatchState, match_runs
from telemetry.store.hot import hot_store
from telemetry.units import HOUR_S

MOST_COMPARED = 4
# What is known of runs that are over: their last hour.
FIGURES: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("Step", "now.step_s", seconds),
    ("All-reduce share", "now.share_ratio", percent),
    ("Waiting", "now.wait_ratio", percent),
    ("Tokens/s", "now.tokens_per_s", si),
    ("MFU", "now.mfu_ratio", percent),
    ("$ per 1M tokens", "now.usd_per_mtok", usd),
    ("$ per hour", "usd_per_hour", usd),
)


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A figure or setting of each run, as text, with its difference from the first run's."""

    title: str
    cells: Sequence[tuple[str, str]]
    differs: bool = False


@require_safe
def run_compare(request: HtmxRequest) -> HttpResponse:
    """Compare the runs that ``?run=`` names, in this order."""
    names = list(dict.fromkeys(request.GET.getlist("run")))[:MOST_COMPARED]
    known = {run.name: run for run in Run.objects.filter(name__in=names)}
    runs = [known[name] for name in names if name in known]
    rows = _rows(runs)
    context = {
        "runs": rows,
        "missing": [name for name in names if name not in known],
        "figures": [_figure(rows, *each) for each in FIGURES if rows],
        "settings": _settings(rows),
        "any_over": any(run.finished_at for run in runs),
    }
    return render_page(request, "runs/run_compare.html", context)


def _rows(runs: Sequence[Run]) -> list[RunRow]:
    now = timezone.now()
    alerts = sorted(Alert.objects.open().select_related("run", "node"), key=worst_first)
    active = {
        each.run.pk: each
        for each in runs_now(hot_store(), runs, now_s=now.timestamp(), alerts=alerts)
    }
    summaries = [_last(run) if run.finished_at else active[run.pk] for run in runs]
    return rows_with_alerts(summaries, alerts, now=now)


def _last(run: Run) -> RunNow:
    end_s = int(run.finished_at.timestamp()) if run.finished_at else 0
    return run_in_window(run, Window(end_s - HOUR_S, end_s))[0]


def _figure(
    rows: Sequence[RunRow], title: str, path: str, write: Callable[[float | None], str]
) -> ComparedRow:
    values: list[float | None] = [attrgetter(path)(row) for row in rows]

    def difference(value: float | None) -> str:
        if value is None or not values[0]:
            return ""
        return points(value - values[0]) if write is percent else change(value / values[0] - 1)

    differences = ["", *map(difference, values[1:])]
    return ComparedRow(title, [*zip(map(write, values), differences, strict=True)])


def _settings(rows: Sequence[RunRow]) -> list[ComparedRow]:
    """List the settings, those that differ first."""
    runs = [row.run for row in rows]
    tokens = [
        round(row.now.tokens_per_s * row.now.step_s)
        if row.now.tokens_per_s and row.now.step_s
        else None
        for row in rows
    ]
    settings = [
        ("nodes", [f"{run.n_nodes} \u00d7 {run.instance_type}" for run in runs]),
        ("layout", [f"tp {run.tp}, pp {run.pp}" for run in runs]),
        ("neuronx-cc", [run.compiler_version or NOT_REPORTED for run in runs]),
    ]
    found = [
        ComparedRow(
            title, [(text, "") for text in texts], differs=len({*texts} - {NOT_REPORTED}) > 1
        )
        for title, texts in settings
    ]
    found += [
        ComparedRow(
            match.label, [(text, "") for text in match.values], match.state == MatchState.DIFFERS
        )
        for match in (match_runs(runs, tokens) if runs else ())
    ]
    return sorted(found, key=lambda row: not row.differs)
