"""Marks of drills: how a fault ended for detection, by shape, word and colour."""

from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.templatetags.units import ABSENT, NBSP, duration

register = template.Library()

# outcome → (colour class, shape, words)
OUTCOMES = {
    "noticed": ("ok", "✓", "noticed"),
    "missed": ("bad", "✕", "missed"),
    "waiting": ("ack", "◇", "not noticed yet"),
    "planned": ("", "○", "about to begin"),
    "faint": ("", "○", "too faint to count"),
}


@register.simple_tag
def outcome(told: Any, extra: str = "") -> SafeString:
    """Mark whether a fault was noticed, and after how long."""
    colour, shape, words = OUTCOMES[told.outcome]
    after = f" after {soon(told.delay_s)}" if told.delay_s is not None else ""
    return format_html(
        '<span class="{}"><span aria-hidden="true">{}</span> {}{}</span>',
        " ".join(filter(None, ("tag", colour, extra))),
        shape,
        words,
        after,
    )


@register.simple_tag
def verdict(named: str, right: str, wrong: str) -> SafeString:
    """Mark what was named: "right" or "wrong", in words for either."""
    colour, shape, words = ("ok", "✓", right) if named == "right" else ("bad", "✕", wrong)
    return format_html(
        '<span class="tag small {}"><span aria-hidden="true">{}</span> {}</span>',
        colour,
        shape,
        words,
    )


@register.filter
def soon(value: float | None) -> str:
    """Write how long something took: whole seconds up to two minutes."""
    if value is None:
        return ABSENT
    return f"{value:.0f}{NBSP}s" if value < 120 else duration(value)


@register.filter
def times(value: float | None) -> str:
    """Write a factor: 1.4982 becomes 1.50 behind a cross."""
    return ABSENT if value is None else f"\u00d7 {value:.2f}"
