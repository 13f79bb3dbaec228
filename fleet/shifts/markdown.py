"""A shift as Markdown, to paste where the next shift reads."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from html import unescape

from django.utils.html import strip_tags
from django.utils.safestring import SafeString

from fleet.models import HandOver
from fleet.shifts.ages import Aged
from fleet.shifts.shift import Held, Over, Recurring, Shift
from fleet.templatetags.units import duration

SPECIAL = re.compile(r"([\\`*_\[\]<>#|])")


def as_markdown(shift: Shift, notes: Iterable[HandOver], *, address: str) -> str:
    """Write a shift and its notes as Markdown; links begin with ``address``."""
    sections: tuple[tuple[str, list[str]], ...] = (
        ("Open", [_held(each, shift.until, address) for each in shift.held]),
        ("Silenced", [_silence(each, address) for each in shift.silences]),
        ("Over", [_over(each, address) for each in shift.over]),
        ("Recurs", [_recurring(each, address) for each in shift.recurring]),
        ("Said", list(_remarks(shift))),
    )
    lines = [f"# Hand-over: {_at(shift.since)} to {_at(shift.until)}"]
    for title, entries in sections:
        lines += ["", f"## {title}: {len(entries)}", ""]
        lines += [f"- {entry}" for entry in entries] or ["Nothing."]
    for note in notes:
        lines += ["", f"## {plain(str(note))}", "", note.text]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Write a text so that Markdown leaves it as it is, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _said(headline: SafeString) -> str:
    return plain(unescape(strip_tags(headline)))


def _held(held: Held, now: datetime, address: str) -> str:
    alert, taken = held.alert, held.taken
    told = [f"{_link(alert.pk, address)} {_said(held.headline)}, since {_at(alert.fired_at)}"]
    if taken is None:
        told.append("**nobody has it**")
    else:
        told.append(f"{plain(taken.by)} has it since {_at(taken.since)}")
        if taken.is_forgotten:
            told.append(f"**no news for {duration(now - taken.news_at)}**")
    if held.silence is not None:
        told.append(f"silenced until {_at(held.silence.ends_at)}: {plain(held.silence.reason)}")
    if alert.flapping_since is not None:
        told.append(f"comes and goes, fired {alert.n_firings} times")
    return "; ".join(told)


def _silence(each: Aged, address: str) -> str:
    silence = each.silence
    link = f"[silence {silence.pk}]({address}{silence.get_absolute_url()})"
    verb = "until" if each.is_active else "over since"
    code = silence.matchers.replace("`", "'") or "everything"
    age = "; **older than a day**" if each.is_old else ""
    who = f"{plain(silence.by)}: {plain(silence.reason)}"
    return f"{link} `{code}` {verb} {_at(silence.ends_at)}, by {who}{age}"


def _over(over: Over, address: str) -> str:
    alert = over.alert
    by = plain(alert.owner) or "nobody"
    ended = f"over {_at(alert.resolved_at)}" if alert.resolved_at else "over"
    return (
        f"{_link(alert.pk, address)} {_said(over.headline)}, {ended} "
        f"after {duration(over.lasted)}; taken by {by}"
    )


def _recurring(each: Recurring, address: str) -> str:
    last = _link(each.latest, address)
    return f"{plain(each.words)}: {each.n_firings} times in 7 days, last {last}"


def _remarks(shift: Shift) -> Iterator[str]:
    for event in shift.remarks:
        done = event.get_kind_display().lower()
        yield f"{_at(event.at)} {plain(event.by)} {done}: {plain(event.text)}"


def _link(pk: int, address: str) -> str:
    return f"[alert {pk}]({address}/alerts/{pk}/)"


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
