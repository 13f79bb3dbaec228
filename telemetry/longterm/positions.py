"""How far each stream has come, kept in the database: whoever writes next goes on from there."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F, Q, QuerySet

from telemetry.longterm.courier import Delivered
from telemetry.store.models import LongTermPosition

SECONDS, MINUTES = "seconds", "minutes"
LONGEST_WHY = 300
# A stream that has not come further for so long is in trouble that people should know of.
BEHIND_S = 15 * 60
# A refusal is told of for so long.
TELL_S = 60 * 60


@dataclass(frozen=True, slots=True)
class Position:
    """Where one stream stands."""

    stream: str

    def start_at(self, second: int, *, now: datetime) -> int:
        """Return where to go on; a stream that never went anywhere begins at ``second``."""
        row, _ = LongTermPosition.objects.get_or_create(
            stream=self.stream, defaults={"second": second, "moved_at": now}
        )
        return row.second

    def move(self, *, before: int, after: int, delivered: Delivered, now: datetime) -> None:
        """Note that everything before ``after`` is delivered, and what became of it.

        Another writer may have come further: a position never goes back.
        """
        row = LongTermPosition.objects.filter(stream=self.stream)
        row.filter(second=before).update(second=after, moved_at=now)
        row.update(
            n_sent=F("n_sent") + delivered.sent,
            n_dropped=F("n_dropped") + delivered.dropped,
            n_retries=F("n_retries") + delivered.retries,
        )
        if delivered.dropped:
            row.update(dropped_at=now, trouble=delivered.why[:LONGEST_WHY], trouble_at=now)

    def rewind(self, second: int, *, now: datetime) -> None:
        """Go on from an earlier second, so that what is there is delivered again."""
        LongTermPosition.objects.update_or_create(
            stream=self.stream, defaults={"second": second, "moved_at": now}
        )

    def complain(self, why: str, *, now: datetime) -> None:
        """Note what stands in the way."""
        LongTermPosition.objects.filter(stream=self.stream).update(
            trouble=why[:LONGEST_WHY], trouble_at=now
        )


def streams() -> QuerySet[LongTermPosition]:
    """Return the streams that are written; none where nobody is asked to any more."""
    everything = LongTermPosition.objects.order_by("stream")
    return everything if settings.LONG_TERM_WRITE_URL else everything.none()


def in_trouble(now: datetime) -> QuerySet[LongTermPosition]:
    """Return the streams that people should know of: far behind, or refused lately."""
    behind = Q(second__lt=int(now.timestamp()) - BEHIND_S)
    refused = Q(dropped_at__gt=now - timedelta(seconds=TELL_S))
    return streams().filter(behind | refused)


def undelivered_since() -> int | None:
    """Return from which second on minutes are still to be delivered; None where nobody writes."""
    row = streams().filter(stream=MINUTES).first()
    return None if row is None else row.second
