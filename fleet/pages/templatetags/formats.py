"""Filters and tags for figures, times, money and differences: fleet.formatting in templates."""

from datetime import datetime

from django import template

from fleet import formatting
from telemetry.catalog import age_note

register = template.Library()

for write in (
    formatting.change,
    formatting.count,
    formatting.counted,
    formatting.dollars,
    formatting.duration,
    formatting.figure,
    formatting.flops,
    formatting.listed,
    formatting.markdown,
    formatting.moment,
    formatting.per_hour,
    formatting.percent,
    formatting.rate,
    formatting.seconds,
    formatting.si,
    formatting.size,
    formatting.slack,
    formatting.tick,
    formatting.usd,
    formatting.written,
):
    register.filter(write.__name__, write)

register.simple_tag(formatting.at)
register.simple_tag(formatting.period)
register.simple_tag(formatting.verdict_badge)
register.simple_tag(formatting.ago, takes_context=True)


@register.filter("age_note")
def price_age(day: str, now: datetime) -> str:
    """Mark the date of a price that is older than 90 days; empty for a newer one."""
    return age_note(day, now.date())
