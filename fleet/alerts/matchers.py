"""Silences: what they mute, and for how long."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from fleet.models import Alert, Silence

FIELDS = ("rule", "cause", "severity", "run", "node", "team", "subject", "drill")
OPS = ("=", "!=", "=~", "!~")
LONGEST_PATTERN = 200
MANY_PATTERNS = 1024
# More of these in one pattern may take longer to match than anybody waits.
MOST_REPEATS, MOST_GROUPS, MOST_CHOICES = 3, 3, 20

ONE = re.compile(r'\s*(?P<field>[^\s=!~",]+)\s*(?P<op>=~|!~|!=|=)\s*(?P<value>"[^"]*"|[^\s",]*)')
PLAIN = re.compile(r'[^\s",=!~][^\s",]*')
BETWEEN = re.compile(r"\s*,\s*|\s+")
WILD = re.compile(r"\)\s*[*+?{]|\(\?|\\\d")
ESCAPED = re.compile(r"\\.|\[[^\]]*\]")


class MatcherError(ValueError):
    """A text that is no list of matchers; the message names the field and the remedy."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on an alert: a field, an operator, a value or a pattern of the whole value."""

    field: str
    op: str
    value: str

    def __str__(self) -> str:
        value = self.value if PLAIN.fullmatch(self.value) else f'"{self.value}"'
        return f"{self.field}{self.op}{value}"

    def accepts(self, value: str) -> bool:
        """Whether a value of the field is as the matcher has it."""
        if self.op in ("=", "!="):
            return (value == self.value) is (self.op == "=")
        return (_compiled(self.value).fullmatch(value) is not None) is (self.op == "=~")


def parse_matchers(text: str) -> tuple[Matcher, ...]:
    """Read matchers: ``rule=allreduce_share team=~"blue|green" node!=trn-07``.

    Raises
    ------
    MatcherError
        Where something is no matcher, its field or operator is unknown, or its pattern is
        broken or could take for ever.
    """
    found, at, text = [], 0, text.strip()
    while at < len(text):
        one = ONE.match(text, at)
        if one is None:
            raise MatcherError(
                f"matchers: {text[at : at + 40]!r} is no matcher; write field=value, "
                f"with one of {' '.join(OPS)} between them"
            )
        found.append(_matcher(one["field"], one["op"], one["value"].strip('"')))
        at = one.end()
        gap = BETWEEN.match(text, at)
        if gap is None and at < len(text):
            raise MatcherError(f"matchers: put a space before {text[at : at + 40]!r}")
        at = gap.end() if gap else at
    return tuple(found)


def written(matchers: Iterable[Matcher]) -> str:
    """Write matchers as ``parse_matchers`` reads them."""
    return " ".join(map(str, matchers))


def meaning(alert: Alert) -> tuple[Matcher, ...]:
    """Return matchers for the problem an alert tells of, under whatever rule it is seen."""
    fields = fields_of(alert)
    names = (
        ("node", "cause") if fields["node"] else ("rule", "run") if fields["run"] else ("rule",)
    )
    return tuple(Matcher(name, "=", fields[name]) for name in names)


def matches(matchers: Iterable[Matcher], alert: Alert) -> bool:
    """Whether all matchers accept an alert; none at all accept every alert."""
    fields = fields_of(alert)
    return all(matcher.accepts(fields[matcher.field]) for matcher in matchers)


def fields_of(alert: Alert) -> dict[str, str]:
    """Return what matchers see of an alert; what it does not have is the empty text."""
    kind, _, name = alert.subject.partition(":")
    return {
        "rule": alert.rule,
        "cause": alert.cause,
        "severity": alert.get_severity_display(),
        "run": alert.run.name if alert.run else "",
        "node": alert.node.name if alert.node else name if kind == "node" else "",
        "team": alert.run.team if alert.run else "",
        "subject": alert.subject,
        "drill": "yes" if alert.is_drill else "no",
    }


def _matcher(field: str, op: str, value: str) -> Matcher:
    if field not in FIELDS:
        raise MatcherError(f"matchers: {field[:40]!r} is no field; use one of {', '.join(FIELDS)}")
    if op in ("=~", "!~"):
        _check(field, value)
    return Matcher(field, op, value)


def _check(field: str, pattern: str) -> None:
    """Refuse a pattern that is broken, or that could take for ever on a long name."""
    bare = ESCAPED.sub("x", pattern)
    repeats = sum(map(bare.count, "*+{"))
    if len(pattern) > LONGEST_PATTERN:
        raise MatcherError(f"{field}: the pattern is longer than {LONGEST_PATTERN} characters")
    is_wild = WILD.search(bare) or re.search(r"\\\d", pattern)
    too_many = repeats > MOST_REPEATS or bare.count("(") > MOST_GROUPS
    if is_wild or too_many or bare.count("|") > MOST_CHOICES:
        raise MatcherError(
            f"{field}: the pattern {pattern!r} is too involved; use at most {MOST_REPEATS} of "
            f"* + {{}}, {MOST_GROUPS} plain groups, and repeat no group"
        )
    try:
        _compiled(pattern)
    except re.error as error:
        raise MatcherError(f"{field}: the pattern {pattern!r} is broken: {error}") from error


@lru_cache(MANY_PATTERNS)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


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
class SilencePreview:
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


def preview(text: str, *, now: datetime) -> SilencePreview:
    """Say what matchers would mute; raises MatcherError where they cannot be read."""
    matchers, alerts = parse_matchers(text), Alert.objects.select_related("run", "node", "silence")
    held = list(alerts.open().worst_first())
    over = alerts.filter(resolved_at__isnull=False, fired_at__gt=now - LOOK_BACK)
    past = list(over.defer("victims").order_by("-fired_at", "-pk"))
    return SilencePreview(
        matchers, meant(matchers, held), len(held), meant(matchers, past), len(past)
    )


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
