"""How a trial's differences and verdicts are written: with their sign, by shape and word."""

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.templatetags.units import ABSENT, MINUS, percent

register = template.Library()
TINY = 1e-9
MARKS = {
    "better": ("ok", "✓"),
    "worse": ("bad", "▲"),
    "cannot tell yet": ("", "○"),
    "arms differ": ("bad", "▲"),
    "price kinds differ": ("", "○"),
    "price unknown": ("", "○"),
}


@register.filter
def change(ratio: float | None, decimals: int = 1) -> str:
    """Write a difference with its sign: +12.3 %."""
    if ratio is None:
        return ABSENT
    written = percent(abs(ratio), decimals)
    # What is written as nothing has no direction.
    return (
        written if written == percent(0.0, decimals) else f"{MINUS if ratio < 0 else '+'}{written}"
    )


@register.filter
def tick(ratio: float) -> str:
    """Write a tick of the axis: whole percents, and a word for none."""
    return change(ratio, 0) if abs(ratio) > TINY else "same"


@register.simple_tag
def said(word: str, extra: str = "") -> SafeString:
    """Mark a verdict by shape, word and colour."""
    colour, shape = MARKS.get(word, MARKS["cannot tell yet"])
    return format_html(
        '<span class="{}"><span aria-hidden="true">{}</span> {}</span>',
        " ".join(filter(None, ("tag", colour, extra))),
        shape,
        word,
    )
