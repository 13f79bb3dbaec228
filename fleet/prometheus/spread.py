"""What Prometheus may know of how long steps take, one by one: a histogram for each run."""

from datetime import datetime

from fleet.durations import duration_rows
from telemetry.families import Spec
from telemetry.histograms import HistogramFamily

DURATIONS = Spec(
    "trnwatch_run_step_duration_seconds",
    "histogram",
    "How long steps took, each counted once a minute after its end.",
    ("run",),
)


def duration_family(*, now: datetime) -> HistogramFamily:
    """Return the histogram of each run that goes on, or ended within a day."""
    family = HistogramFamily(DURATIONS)
    for run, counts, total_s in duration_rows(now=now):
        family.add(counts, total_s, run)
    return family
