"""Moments for people: a <time> that reads without JavaScript and is kept fresh with it."""

from datetime import UTC, datetime

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.templatetags.units import ABSENT, duration

register = template.Library()


def _moment(when: datetime | float | None) -> datetime | None:
    if isinstance(when, (int, float)):
        return datetime.fromtimestamp(when, UTC)
    return when


def _element(when: datetime, form: str, text: str) -> SafeString:
    return format_html(
        '<time datetime="{}" data-form="{}" title="{}">{}</time>',
        when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        form,
        when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        text,
    )


@register.simple_tag(takes_context=True)
def ago(context: template.Context, when: datetime | float | None) -> SafeString | str:
    """How long ago: "3 min". Live parts carry the moment only; the browser counts on."""
    moment = _moment(when)
    if moment is None:
        return ABSENT
    if context.get("live"):
        return _element(moment, "ago", moment.astimezone(UTC).strftime("%H:%M:%S"))
    return _element(moment, "ago", duration(timezone.now() - moment))


@register.simple_tag
def at(when: datetime | float | None, form: str = "clock") -> SafeString | str:
    """Write a moment: form "clock" 14:29:02, "minute" 14:29, "day" 21 Nov 14:29."""
    moment = _moment(when)
    if moment is None:
        return ABSENT
    moment = moment.astimezone(UTC)
    day = "%-d %b %H:%M" if moment.year == timezone.now().year else "%-d %b %Y %H:%M"
    pattern = {"clock": "%H:%M:%S", "minute": "%H:%M", "day": day}[form]
    return _element(moment, form, moment.strftime(pattern))
