"""How long a silence holds: the usual spans, or until a moment that somebody names."""

from datetime import UTC, datetime, timedelta

SPANS = {
    "1h": "1 hour",
    "4h": "4 hours",
    "tomorrow": "until tomorrow 09:00 UTC",
    "until": "until …",
}
HOURS = {"1h": 1, "4h": 4}
MORNING_H = 9


class SpanError(ValueError):
    """A span or a moment that cannot be read; the message names the remedy."""


def end_of(span: str, *, until: str = "", now: datetime) -> datetime:
    """Return when a span that begins now is over.

    ``until`` is a moment in UTC as a browser's field gives it, for the span of that name.
    """
    if span in HOURS:
        return now + timedelta(hours=HOURS[span])
    if span == "tomorrow":
        morning = now.astimezone(UTC).replace(hour=MORNING_H, minute=0, second=0, microsecond=0)
        return morning + timedelta(days=1)
    if span != "until":
        raise SpanError(f"end: {span[:20]!r} is none of {', '.join(SPANS)}")
    try:
        moment = datetime.fromisoformat(until.strip())
    except ValueError:
        raise SpanError("end: name a day and a time in UTC, as 2026-11-21T14:30") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
