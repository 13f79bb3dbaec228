"""What an attempt comes to: there, again later, or given up; and how much later."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from fleet.notify.http import Answer

OK = range(200, 300)
REDIRECTS = range(300, 400)
FOR_GOOD = range(400, 500)
# What asks for patience although it begins with a four, or moves for good with a three.
PASSING = frozenset({408, 425, 429})
MOVED = frozenset({301, 308})
LONGEST_WAIT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended."""

    is_sent: bool = False
    is_final: bool = False
    status: int | None = None
    why: str = ""
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and for how long a receiver is tried."""

    first_s: float = 2.0
    longest_s: float = 60.0
    factor: float = 2.0
    give_up_after: timedelta = timedelta(hours=12)
    min_attempts: int = 5
    max_attempts: int = 1000

    def pause(self, n_attempts: int, *, dice: random.Random) -> timedelta:
        """Return how long to wait after so many failed attempts.

        Grows exponentially up to a limit; half of it is chance, so that what failed together
        does not come back together.
        """
        power = min(n_attempts - 1, 32)
        pause_s = min(self.longest_s, self.first_s * self.factor**power)
        return timedelta(seconds=pause_s * (0.5 + 0.5 * dice.random()))

    def is_over(self, n_attempts: int, waited: timedelta) -> bool:
        """Whether a notification that failed so often, so long, is given up."""
        is_late = waited >= self.give_up_after and n_attempts >= self.min_attempts
        return is_late or n_attempts >= self.max_attempts


def outcome_of(answer: Answer, *, is_confirmed: bool, now: datetime) -> Outcome:
    """Judge an answer by its status, and by whether the receiver itself gave it."""
    status, said = answer.status, f": {answer.said}" if answer.said else ""
    if status in OK and is_confirmed:
        return Outcome(is_sent=True, status=status)
    if status in OK:
        return Outcome(status=status, why=f"{status}, but not from such a receiver{said}")
    if status in REDIRECTS:
        why = f"{status}: it has moved to {answer.location[:120] or 'elsewhere'}; not followed"
        return Outcome(is_final=status in MOVED, status=status, why=why)
    return Outcome(
        is_final=status in FOR_GOOD and status not in PASSING,
        status=status,
        why=f"{status}{said}",
        retry_after=_asked(answer.retry_after, now=now),
    )


def _asked(text: str, *, now: datetime) -> timedelta | None:
    """Read Retry-After, seconds or a date; what cannot be read asks for nothing."""
    text = text.strip()
    if text.isdecimal() and len(text) < 10:
        return min(timedelta(seconds=int(text)), LONGEST_WAIT)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max(at - now, timedelta()), LONGEST_WAIT)
