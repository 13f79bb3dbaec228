"""The stretch of time that a question is about, and how far back it may reach."""

from datetime import UTC, datetime, timedelta

from ninja import Field, Schema

from fleet.api.v1.fields import EARLIEST, Moment
from fleet.charts.windows import LONGEST_S

USUAL = timedelta(minutes=15)


class Stretching(Schema):
    """From when until when; a window longer than 31 days begins 31 days before its end."""

    since: Moment = Field(
        None,
        description="Where the window begins: RFC 3339, or Unix seconds. Left out: 15 minutes "
        "before its end. At most 31 days before it.",
        examples=["2026-11-21T14:30:00Z"],
    )
    until: Moment = Field(
        None,
        description="Where it ends, itself left out: RFC 3339, or Unix seconds. Left out: now.",
        examples=["2026-11-21T15:30:00Z"],
    )

    def window(self, *, now: datetime) -> tuple[int, int]:
        """Return the window in Unix seconds; one that ends before it begins is empty."""
        end = min(self.until or now, now + timedelta(minutes=1))
        start = self.since or max(EARLIEST, end - USUAL)
        longest = max(EARLIEST, end - timedelta(seconds=LONGEST_S))
        start = min(max(start, longest), end)
        return int(start.astimezone(UTC).timestamp()), int(end.astimezone(UTC).timestamp())
