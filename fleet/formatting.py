"""How figures read inside a sentence: a number with its noun, a value by its unit's name."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import TypeGuard

from django import template
from django.template.loader import get_template
from django.utils import timezone
from django.utils.html import format_html, strip_tags
from django.utils.safestring import SafeString, mark_safe

from telemetry.units import DAY_S

ABSENT = "\u2013"
MINUS = "\u2212"
NBSP = "\u202f"  # narrow no-break space, between a figure and its unit

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def _known(value: object) -> TypeGuard[float]:
    """Whether a value is a number: None, NaN and text are not."""
    return isinstance(value, int | float) and math.isfinite(value)


def _digits(value: float) -> str:
    """Format three significant digits, never as a power of ten."""
    if value == 0:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(float(f"{value:.3g}"))))
    return f"{value:,.{min(max(decimals, 0), 6)}f}"


def _scaled(value: object, unit: str) -> str:
    if not _known(value):
        return ABSENT
    size, prefix = next(((s, p) for s, p in _PREFIXES if abs(value) >= s * 0.9995), (1.0, ""))
    return f"{_digits(value / size)}{NBSP}{prefix}{unit}".rstrip(NBSP)


def percent(ratio: float | None, decimals: int = 1) -> str:
    """Format a ratio in percent: 0.314 → 31.4 %."""
    return f"{ratio * 100:.{decimals}f}{NBSP}%" if _known(ratio) else ABSENT


def si(value: float | None) -> str:
    """Format a large number with its prefix: 1213000 → 1.21 M."""
    return _scaled(value, "")


def size(n_bytes: float | None) -> str:
    """Format bytes: 96e9 → 96.0 GB."""
    return _scaled(n_bytes, "B")


def rate(bytes_per_s: float | None) -> str:
    """Format bytes per second: 1.8e12 → 1.80 TB/s."""
    return _scaled(bytes_per_s, "B/s")


def flops(per_s: float | None) -> str:
    """Format FLOPs per second: 9.5e13 → 95.0 TFLOP/s."""
    return _scaled(per_s, "FLOP/s")


def seconds(value: float | None) -> str:
    """Format a duration in a unit of its size: 8.41 s, 310 ms, 142 µs."""
    if not _known(value):
        return ABSENT
    if value == 0 or abs(value) >= 0.9995:
        return f"{_digits(value)}{NBSP}s"
    if abs(value) >= 0.9995e-3:
        return f"{_digits(value * 1e3)}{NBSP}ms"
    return f"{_digits(value * 1e6)}{NBSP}µs"


def usd(value: float | None) -> str:
    """Format dollars: whole from $100, to the cent below, to 0.1 cent below 10 cents."""
    if not _known(value):
        return ABSENT
    decimals = 0 if abs(value) >= 100 else 2 if abs(value) >= 0.0995 or not value else 3
    return f"{MINUS if value < 0 else ''}${abs(value):,.{decimals}f}"


def count(value: float | None) -> str:
    """Format a whole number with thousands separators: 18204 → 18,204."""
    return f"{value:,.0f}" if _known(value) else ABSENT


def duration(value: float | timedelta | None) -> str:
    """Format how long something lasted: 41 s, 3 min, 1 h, 1 h 6 min, 2 d 7 h."""
    total = value.total_seconds() if isinstance(value, timedelta) else value
    if not _known(total):
        return ABSENT
    whole = max(0, int(total))
    days, hours, minutes = whole // DAY_S, whole // 3_600, whole // 60
    if days:
        return f"{days}{NBSP}d" + (f" {hours % 24}{NBSP}h" if hours % 24 else "")
    if hours:
        return f"{hours}{NBSP}h" + (f" {minutes % 60}{NBSP}min" if minutes % 60 else "")
    return f"{minutes}{NBSP}min" if minutes else f"{whole}{NBSP}s"


def moment(when: datetime | float) -> datetime:
    return datetime.fromtimestamp(when, UTC) if isinstance(when, int | float) else when


def _element(when: datetime, form: str, text: str) -> SafeString:
    return format_html(
        '<time datetime="{}" data-form="{}" title="{}">{}</time>',
        when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        form,
        when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        text,
    )


def ago(context: template.Context, when: datetime | float | None) -> SafeString | str:
    """Format an age: "3 min"; in live parts, the time from which the browser counts."""
    if when is None:
        return ABSENT
    instant = moment(when)
    if context.get("live"):
        return _element(instant, "ago", written(instant, "clock"))
    return _element(instant, "ago", duration(timezone.now() - instant))


# What stands after the date. "day" always has a date, the others have one unless it is today.
CLOCKS = {"clock": "%H:%M:%S", "minute": "%H:%M", "day": "%H:%M"}


def written(when: datetime, form: str = "clock") -> str:
    """Write a time in UTC without markup, for the forms of ``at``."""
    instant, today = when.astimezone(UTC), timezone.now().astimezone(UTC).date()
    if form == "full":
        return f"{instant:%Y-%m-%d %H:%M:%S}"
    date = "%-d %b " if instant.year == today.year else "%-d %b %Y "
    has_date = form == "day" or instant.date() != today
    return instant.strftime(f"{date if has_date else ''}{CLOCKS[form]}")


def at(when: datetime | float | None, form: str = "clock") -> SafeString | str:
    """Format a time; what is not today has its date.

    Form "clock" 14:29:02 or 21 Nov 14:29:02, "minute" 14:29 or 21 Nov 14:29, "day" always
    21 Nov 14:29, "full" always 2026-11-21 14:29:02.
    """
    if when is None:
        return ABSENT
    instant = moment(when)
    return _element(instant, form, written(instant, form))


def period(start: datetime | float, end: datetime | float) -> SafeString:
    """Format a time range with its dates and the time zone, which the browser can switch."""
    return format_html("{} to {} <span data-zone>UTC</span>", at(start, "full"), at(end, "full"))


def dollars(value: float | None) -> str:
    """Format dollars to the cent, so that readers can add them up; a dash if unknown."""
    return ABSENT if value is None or math.isnan(value) else f"${value:,.2f}"


def per_hour(value: float | None) -> str:
    """Format a price with two to five decimals, as needed: $35.7608, $0.512, $21.50."""
    if value is None or math.isnan(value):
        return ABSENT
    text = f"{value:,.5f}".rstrip("0")
    return f"${text}" if len(text.partition(".")[2]) >= 2 else f"${value:,.2f}"


def loss_per_hour(value: float | None) -> str:
    """Format what an hour costs, with a minus sign: in whole dollars from $10 on."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{MINUS}${value:,.0f}/h" if value >= 9.995 else f"{MINUS}{usd(value)}/h"


TINY = 1e-9
MARKS = {
    "better": ("ok", "✓"),
    "worse": ("bad", "▲"),
    "equivalent": ("", "="),
    "cannot tell yet": ("", "○"),
    "arms differ": ("bad", "▲"),
    "price kinds differ": ("", "○"),
    "price unknown": ("", "○"),
    "tokens unknown": ("", "○"),
}


# From here on a difference is written as a multiple.
MANY_TIMES = 9.0


def change(ratio: float | None, decimals: int = 1) -> str:
    """Format a difference with its sign: +12.3 %; a large one as "44 times"."""
    if ratio is None:
        return ABSENT
    if ratio >= MANY_TIMES:
        return f"{1 + ratio:,.0f} times"
    written = percent(abs(ratio), decimals)
    # A change that rounds to zero has no sign.
    return (
        written if written == percent(0.0, decimals) else f"{MINUS if ratio < 0 else '+'}{written}"
    )


def points(difference: float, decimals: int = 1) -> str:
    """Format a difference between two shares with its sign: +1.5 points."""
    return f"{change(difference, decimals).removesuffix('%').rstrip()}{NBSP}points"


def tick(ratio: float) -> str:
    """Format an axis tick in whole percent; "same" for zero."""
    return change(ratio, 0) if abs(ratio) > TINY else "same"


def badge(colour: str, shape: str, words: str, extra: str = "") -> SafeString:
    """Render a tag: a shape, for those who see no colours, and words."""
    classes = " ".join(filter(None, ("tag", colour, extra)))
    html = '<span class="{}"><span aria-hidden="true">{}</span> {}</span>'
    return format_html(html, classes, shape, words)


# What people read where the API has another word.
WORDS = {"cannot tell yet": "inconclusive", "price kinds differ": "not like for like"}


def verdict_badge(word: str, extra: str = "") -> SafeString:
    marks = MARKS.get(word, MARKS["cannot tell yet"])
    return badge(*marks, WORDS.get(word, word), extra)


def counted(n: float, noun: str, plural: str = "") -> str:
    """Format a count with its noun, in singular or plural."""
    return f"{count(n)}{NBSP}{noun if round(n) == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int = 24) -> str:
    """List names; beyond ``most``, only the first, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {count(len(names) - most)} more"


# What Markdown reads as markup.
MARKUP = re.compile(r"([\\`*_\[\]<>#|~])")


def markdown(text: object) -> SafeString:
    """Escape text for Markdown, on one line; our own HTML loses its tags."""
    return mark_safe(MARKUP.sub(r"\\\1", " ".join(untagged(text).split())))  # noqa: S308


def slack(text: str) -> str:
    """Escape text so that Slack finds no links, mentions or markup in it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


WRITERS: Mapping[str, Callable[[float], str]] = {
    "s": seconds,
    "ratio": percent,
    "bytes": size,
    "bytes_per_s": rate,
    "per_s": lambda value: _scaled(value, "/s"),
    "flops_per_s": flops,
    "count": count,
    "usd": usd,
    "factor": lambda value: f"{value:.2f}{NBSP}\u00d7",
}


def figure(value: float | None, unit: str | None) -> str:
    """Format a value in its unit, which is named as in metrics and evidence."""
    return ABSENT if value is None else WRITERS.get(unit or "", si)(value)


def unit_of(name: str) -> str | None:
    """Return the unit that a name ends with: ``quiet_s`` is in seconds; None where it has none."""
    units = sorted(WRITERS, key=len, reverse=True)
    return next((unit for unit in units if name.endswith(f"_{unit}")), None)


# A spreadsheet takes a text that begins with one of these for a formula.
FORMULA_PREFIXES = ("=", "+", "-", "@")


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Write rows as CSV: unknown values empty, times in UTC, texts never as formulas.

    >>> csv_text([("node", 0.25, None), ("=1+1", -2, ["a", "b"])]).splitlines()
    ['node,0.25,', "'=1+1,-2,a; b"]
    """
    text = io.StringIO()
    csv.writer(text).writerows(map(_cell, row) for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return value if math.isfinite(value) else ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, list | tuple):
        value = "; ".join(map(str, value))
    # Spreadsheets that guess the encoding read the sign of multiplication wrongly.
    text = "" if value is None else " ".join(untagged(value).split()).replace("\u00d7", "x")
    return f"'{text}" if text.startswith(FORMULA_PREFIXES) else text


def untagged(value: object) -> str:
    """Convert to plain text: our own HTML loses its tags."""
    return unescape(strip_tags(value)) if isinstance(value, SafeString) else str(value)


# Line breaks of templates: none before punctuation or inside bold text, elsewhere one space.
# Narrow and non-breaking spaces belong to figures and stay.
NO_SPACE = re.compile(r"(?<=<b>)[ \n]+|[ \n]+(?=[,.:;)]|</)")
SPACES = re.compile(r"[ \n]+")
LINE_BREAK = re.compile(r" *\n[ \n]*(?=([,.:;)])?)")
EMPTY_LINE = re.compile(r"\n[ ]*\n")


def _plain_line(rendered: str) -> str:
    """Join the lines of a text; spaces within a line, as in names that people gave, stay."""
    return LINE_BREAK.sub(lambda found: "" if found[1] else " ", rendered.strip())


def render_text(template_name: str, **context: object) -> str:
    return _plain_line(get_template(template_name).render(context))


def render_lines(template_name: str, **context: object) -> list[str]:
    """Render plain text from a template: each paragraph becomes one line."""
    text = get_template(template_name).render(context)
    return list(filter(None, map(_plain_line, EMPTY_LINE.split(text))))


def render_line(template_name: str, **context: object) -> SafeString:
    html = get_template(template_name).render(context)
    return mark_safe(SPACES.sub(" ", NO_SPACE.sub("", html)).strip())  # noqa: S308
