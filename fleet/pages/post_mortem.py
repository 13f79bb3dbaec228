"""An alert written up in Markdown: every line of it is true as it stands."""

import html
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from django.urls import reverse
from django.utils.html import strip_tags
from django.utils.safestring import SafeString

from fleet.alerts.text import AlertText, facts, headline, loss, ruled_out
from fleet.charts.frozen import figures_of, frozen_link
from fleet.formatting import NBSP, counted, duration
from fleet.models import Alert, AlertEvent
from fleet.pages.alert_context import (
    RecentChange,
    RelatedAlert,
    SimilarAlerts,
    changes_of,
    likes_of,
)
from telemetry.detect import RULES
from telemetry.store.reading import Source

# What Markdown would take for its own; links and tags of others stay text.
SPECIAL = re.compile(r"([\\`*_\[\]<>#|~])")
FOLLOW_UPS = ("Why it could happen", "How it is noticed sooner", "How it is prevented")


def post_mortem(
    source: Source,
    alert: Alert,
    events: Sequence[AlertEvent],
    neighbours: Sequence[RelatedAlert],
    *,
    now: datetime,
    root: str,
) -> str:
    """Return the post-mortem of an alert; ``root`` goes before the addresses of pages."""
    likes = likes_of(alert, neighbours)
    changes = changes_of(source, alert, neighbours, now=now)
    parts = (
        _head(alert, now=now, root=root),
        ["## Summary", plain(AlertText(alert, now).story)],
        ["## Impact", *_impact(alert, events, now=now)],
        ["## Timeline", *_timeline(alert, events, changes)],
        ["## Cause and evidence", *_evidence(source, alert, likes, now=now, root=root)],
        ["## What changed around the onset", *_changes(changes)],
        ["## Who did what", *_people(alert, events)],
        ["## Earlier alerts like this", *_likes(likes)],
        ["## Follow-ups", *_follow_ups()],
    )
    return "\n\n".join(line for part in parts for line in part) + "\n"


def plain(text: str) -> str:
    """Return words for Markdown: our markup is taken off, what people wrote is kept as text."""
    bare = html.unescape(strip_tags(text)) if isinstance(text, SafeString) else text
    bare = bare.replace(NBSP, " ").replace("\u00a0", " ")
    return SPECIAL.sub(r"\\\1", " ".join(bare.split()))


def _head(alert: Alert, *, now: datetime, root: str) -> list[str]:
    state = "over" if alert.resolved_at else f"still open ({alert.state})"
    drill = " It was a drill: the fault was injected on purpose." if alert.is_drill else ""
    return [
        f"# Post-mortem: {plain(headline(alert))}",
        f"Alert [{alert.pk}]({root}{alert.get_absolute_url()}), rule {plain(alert.rule)}, "
        f"{alert.get_severity_display()}. Written by trnwatch on {_day(now)}, when it was "
        f"{state}.{drill} All times are UTC.",
    ]


def _impact(alert: Alert, events: Sequence[AlertEvent], *, now: datetime) -> list[str]:
    taken = next((event for event in events if event.kind == event.Kind.ACKNOWLEDGED), None)
    rows = [
        ("Began", _day(alert.onset_at)),
        ("Noticed", f"{_day(alert.fired_at)}, {duration(alert.fired_at - alert.onset_at)} later"),
        ("Taken", _taken(alert, taken)),
        ("Over", _day(alert.resolved_at) if alert.resolved_at else "not yet"),
        ("Lasted", duration(alert.lasted(now)) + ("" if alert.resolved_at else " so far")),
        ("Lost", _lost(alert)),
        ("Slowed with it", _victims(alert)),
    ]
    return [_table(("What", "Figure"), rows)]


def _taken(alert: Alert, taken: AlertEvent | None) -> str:
    if taken is None:
        return "by nobody"
    return f"{_day(taken.at)} by {taken.by}, {duration(taken.at - alert.fired_at)} after it fired"


def _lost(alert: Alert) -> str:
    lost = loss(alert)
    if lost is None:
        return "not known: no comparable pace before it"
    if lost.is_none:
        return f"no step. {lost.how}"
    return f"{lost.short}. {lost.how}"


def _victims(alert: Alert) -> str:
    if not alert.victims:
        return "nobody that is known of"
    return f"{counted(len(alert.victims), 'node')}: {', '.join(map(str, alert.victims))}"


def _timeline(
    alert: Alert, events: Iterable[AlertEvent], changes: Iterable[RecentChange]
) -> list[str]:
    moments = [(alert.onset_at, "it began", "")]
    moments += [(e.at, _happened(e), e.by) for e in events]
    moments += [(c.at, f"{c.kind}: {c.text}", c.by) for c in changes]
    rows = [(_day(at), what, by or "trnwatch") for at, what, by in sorted(moments, key=_first)]
    return [_table(("When", "What", "By"), rows)]


def _first(moment: tuple[datetime, str, str]) -> datetime:
    return moment[0]


def _happened(event: AlertEvent) -> str:
    kind = event.get_kind_display().lower()
    return f"{kind}: {event.text}" if event.text else kind


def _evidence(
    source: Source, alert: Alert, likes: SimilarAlerts, *, now: datetime, root: str
) -> list[str]:
    until = alert.resolved_at or now
    found = [_table(("What", "Figure"), facts(alert, recurring=likes.recurring))]
    figures = figures_of(source, alert, now=now)
    if figures:
        rows = [(row.chart, row.line, row.before, row.during) for row in figures]
        found += [
            "Medians before the onset and during it:",
            _table(("Chart", "Line", "Before", "During"), rows),
        ]
    if looked_at := ruled_out(alert):
        found += ["Ruled out:", _table(("Cause", "Figure"), looked_at)]
    links = [f"[The charts, as they were]({root}{frozen_link(alert, at=until)})"]
    if alert.rule in RULES:
        links.append(f"[the runbook]({root}{reverse('runbook', args=[alert.rule])})")
    return [*found, ", ".join(links) + "."]


def _changes(changes: Sequence[RecentChange]) -> list[str]:
    if not changes:
        return ["Nothing that trnwatch saw or was told of."]
    rows = [(_day(c.at), _before(c), f"{c.kind}: {c.text}", c.by or "trnwatch") for c in changes]
    return [_table(("When", "Before the onset", "What", "By"), rows)]


def _before(change: RecentChange) -> str:
    if change.before_s < 0:
        return f"{duration(change.after_s)} after it"
    return duration(change.before_s)


def _people(alert: Alert, events: Iterable[AlertEvent]) -> list[str]:
    acts = [event for event in events if event.by]
    if not acts:
        return ["Nobody did anything about it in trnwatch."]
    rows = [
        (event.by, duration(event.at - alert.fired_at) + " after it fired", _happened(event))
        for event in acts
    ]
    return [_table(("Who", "When", "What"), rows)]


def _likes(likes: SimilarAlerts) -> list[str]:
    if not likes.likes:
        return ["None in the 90 days before."]
    rows = [
        (
            _day(like.alert.fired_at),
            f"{like.headline} ({like.same})",
            duration(like.lasted),
            f"{like.said_by}: {like.said}" if like.said else "nothing was said of it",
        )
        for like in likes.likes
    ]
    return [_table(("Fired", "What", "Lasted", "Last word"), rows)]


def _follow_ups() -> list[str]:
    ask = "\n".join(f"- [ ] {question}: owner, due" for question in FOLLOW_UPS)
    return ["None is recorded in trnwatch. To be agreed on:", ask]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(head), _line(["---"] * len(head))]
    lines += [_line([plain(cell) for cell in row]) for row in rows]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _day(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
