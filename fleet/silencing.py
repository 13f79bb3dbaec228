"""Which silences mute an alert."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from fleet.matching import Matcher, MatcherError, matches, parse_matchers
from fleet.models import Alert, Silence

Read = tuple[Silence, tuple[Matcher, ...]]


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
