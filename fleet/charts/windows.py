"""The stretch of time that a page shows: the last minutes, or one frozen in the address."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fleet.formatting import period
from telemetry.errors import FieldError
from telemetry.units import DAY_S

LENGTHS: Mapping[str, int] = {
    "15m": 900,
    "1h": 3_600,
    "6h": 21_600,
    "24h": DAY_S,
    "7d": 7 * DAY_S,
    "30d": 30 * DAY_S,
}
DEFAULT = "15m"
LONGEST_S = 31 * DAY_S


def lengths_within(keep_s: float) -> list[str]:
    return [name for name, length_s in LENGTHS.items() if length_s <= keep_s]


@dataclass(frozen=True, slots=True)
class Window:
    """Unix seconds from ``start`` to ``end``; ``name`` is None where they are frozen."""

    start: int
    end: int
    name: str | None = None

    @property
    def is_live(self) -> bool:
        return self.name is not None

    @property
    def query(self) -> str:
        return f"window={self.name}" if self.name else f"from={self.start}&to={self.end}"

    @property
    def frozen(self) -> str:
        """Return the frozen time as HTML; empty for a live window."""
        return "" if self.is_live else period(self.start, self.end)

    @property
    def from_text(self) -> str:
        """Return the start in UTC, for a field."""
        return f"{datetime.fromtimestamp(self.start, UTC):%Y-%m-%dT%H:%M:%S}"

    @property
    def to_text(self) -> str:
        """Return the end in UTC, for a field."""
        return f"{datetime.fromtimestamp(self.end, UTC):%Y-%m-%dT%H:%M:%S}"

    @property
    def length_s(self) -> int:
        return self.end - self.start

    def around(self) -> dict[str, str]:
        """Return the addresses of the earlier, later and wider window; empty where there is none.

        A step is half a window long, so that one half stays in sight. What lies around a frozen
        window does not depend on the time at which it is shown.
        """
        half_s = self.length_s // 2
        longer = [name for name, length_s in LENGTHS.items() if length_s > self.length_s]
        wider = "" if 2 * self.length_s > LONGEST_S else self._grown(half_s, half_s)
        if self.is_live:
            wider = f"window={longer[0]}" if longer else ""
        return {
            "earlier": self._grown(half_s, -half_s),
            "later": "" if self.is_live else self._grown(-half_s, half_s),
            "wider": wider,
        }

    def _grown(self, before_s: int, after_s: int) -> str:
        return Window(self.start - before_s, self.end + after_s).query


def window_of(query: Mapping[str, str], *, now: datetime) -> Window:
    """Read ``window``, or ``from`` and ``to``, or the end ``at``, as Unix seconds or ISO 8601.

    Raises FieldError where one of them cannot be read, or they make no window.
    """
    if "at" in query and "from" not in query:
        end = int(_moment(query, "at", ""))
        if end > now.timestamp() + 1:
            raise FieldError("at", "is in the future")
        return Window(end - LENGTHS[DEFAULT], end)
    if "from" in query or "to" in query:
        start, end = int(_moment(query, "from")), int(_moment(query, "to"))
        if end <= start:
            raise FieldError("to", "must be later than from")
        if end - start > LONGEST_S:
            raise FieldError("from", f"must lie at most {LONGEST_S // DAY_S} days before to")
        if start > (now + timedelta(minutes=1)).timestamp():
            raise FieldError("from", "is in the future")
        return Window(start, end)
    name = query.get("window", DEFAULT)
    if name not in LENGTHS:
        raise FieldError("window", f"must be one of {', '.join(LENGTHS)}")
    end = int(now.timestamp())
    return Window(end - LENGTHS[name], end, name)


def _moment(
    query: Mapping[str, str], field: str, missing: str = "; give both from and to"
) -> float:
    text = query.get(field, "")
    if not text:
        raise FieldError(field, f"is missing{missing}")
    try:
        second = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise FieldError(field, "must be Unix seconds or ISO 8601") from None
        second = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not 0 <= second < 1e11:
        raise FieldError(field, "is no Unix second of this age")
    return second
