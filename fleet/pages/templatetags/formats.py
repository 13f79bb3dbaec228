"""Filters and tags for figures, times, money and differences: fleet.formatting in templates."""

from django import template

from fleet import formatting

register = template.Library()

for write in (
    formatting.change,
    formatting.count,
    formatting.counted,
    formatting.dollars,
    formatting.duration,
    formatting.figure,
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
):
    register.filter(write.__name__, write)

register.simple_tag(formatting.at)
register.simple_tag(formatting.verdict_badge)
register.simple_tag(formatting.ago, takes_context=True)
