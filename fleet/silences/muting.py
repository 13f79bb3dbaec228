"""Which silences mute an alert, and what a silence would mute."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.matching import Matcher, MatcherError, matches, parse_matchers
from fleet.models import Alert, Silence

Read = tuple[Silence, tuple[Matcher, ...]]
LOOK_BACK = timedelta(days=7)
# Fewer alerts than this say nothing about whether a silence means them all.
FEW = 3


def active_silences(*, now: datetime) -> list[Read]:
    """Return the silences that hold now with their matchers, the one that holds longest first.

    One whose matchers can no longer be read mutes nothing: rather told in vain than not at all.
    """
    held = Silence.objects.active(now).order_by("-ends_at", "-pk")
    return [(silence, read) for silence in held if (read := _read(silence)) is not None]


def silences_of(alert: Alert, *, now: datetime) -> list[Silence]:
    """Return the silences that mute an alert now, the one that holds longest first."""
    return muting(active_silences(now=now), alert)


def muting(silences: Iterable[Read], alert: Alert) -> list[Silence]:
    """Return which of these silences mean an alert."""
    return [silence for silence, matchers in silences if matches(matchers, alert)]


def meant(matchers: Sequence[Matcher], alerts: Iterable[Alert]) -> list[Alert]:
    """Return which of these alerts the matchers mean; they need their run and node."""
    return [alert for alert in alerts if matches(matchers, alert)]


def _read(silence: Silence) -> tuple[Matcher, ...] | None:
    try:
        return parse_matchers(silence.matchers)
    except MatcherError:
        return None


@dataclass(frozen=True, slots=True)
class Preview:
    """What a silence would mute: of what is open now, and of what fired in the week before."""

    matchers: tuple[Matcher, ...]
    open: list[Alert]
    n_open: int
    past: list[Alert]
    n_past: int

    @property
    def is_everything(self) -> bool:
        """Whether nothing would be heard of any more, as far as the week before tells."""
        n_alerts = self.n_open + self.n_past
        is_all = len(self.open) + len(self.past) == n_alerts
        return not self.matchers or (is_all and n_alerts >= FEW)


def preview(text: str, *, now: datetime) -> Preview:
    """Say what matchers would mute; raises MatcherError where they cannot be read."""
    matchers, alerts = parse_matchers(text), Alert.objects.select_related("run", "node", "silence")
    held = list(alerts.open().worst_first())
    over = alerts.filter(resolved_at__isnull=False, fired_at__gt=now - LOOK_BACK)
    past = list(over.defer("victims").order_by("-fired_at", "-pk"))
    return Preview(matchers, meant(matchers, held), len(held), meant(matchers, past), len(past))
