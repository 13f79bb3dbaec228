"""What a run was paid between two moments, each part of it at the price that held then."""

from datetime import datetime

from fleet.models import Run


def usd_between(run: Run, start: datetime, end: datetime) -> float:
    """Return the dollars that a run's nodes cost between two moments; NaN without a price.

    Nothing is paid before the run began or after it ended; of a run that goes on, time to come
    is paid as announced so far.
    """
    start = max(start, run.started_at)
    if run.finished_at is not None:
        end = min(end, run.paid_by(end))
    return run.rates.usd(start.timestamp(), max(start, end).timestamp())
