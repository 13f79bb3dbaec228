"""Filters and tags for figures, times, money and differences: fleet.formatting in templates."""

import re
from datetime import datetime

from django import template
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt

from fleet import formatting
from fleet.alerts.runbooks import PLACES
from fleet.trials import schedule_text
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
    formatting.loss_per_hour,
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
    schedule_text.ends,
    schedule_text.projected,
    schedule_text.span,
):
    register.filter(write.__name__, write)

register.simple_tag(formatting.at)
register.simple_tag(formatting.period)
register.simple_tag(formatting.verdict_badge)
register.simple_tag(formatting.ago, takes_context=True)


@register.filter("abs")
def size_of(value: float) -> float:
    return abs(value)


@register.filter("age_note")
def price_age(day: str, now: datetime) -> str:
    """Mark the date of a price that is older than 90 days; empty for a newer one."""
    return age_note(day, now.date())


PRE = (
    "margin:6px 0 12px 0;padding:8px 10px;background:#f5f6f8;border:1px solid #dfe3e8;"
    "font-family:Consolas,monospace;font-size:13px;line-height:19px;white-space:pre-wrap;"
)
FENCE = re.compile(r'<pre><code class="language-(\w+)">')
MAILED = MarkdownIt("commonmark", {"html": False})


@register.filter("runbook")
def mailed_steps(text: str) -> SafeString:
    """Render the steps of a runbook for a mail, whose styles stand in its elements."""

    def opened(fence: re.Match[str]) -> str:
        where = PLACES.get(fence[1], fence[1])
        return f'<div style="color:#566372;">{where}</div><pre style="{PRE}"><code>'

    # Markdown escapes what it does not know.
    return mark_safe(FENCE.sub(opened, MAILED.render(text)))  # noqa: S308


EMOJI = {
    ":red_circle:": "\U0001f534",
    ":large_orange_circle:": "\U0001f7e0",
    ":eyes:": "\U0001f440",
    ":white_check_mark:": "\u2705",
    ":warning:": "\u26a0\ufe0f",
    ":wave:": "\U0001f44b",
}
SLACK_MARKUP = (
    (re.compile(r"```\n?(.*?)\n?```", re.DOTALL), r'<code class="block">\1</code>'),
    (re.compile(r"<!date\^[^|>]*\|([^>]*)>"), r"\1"),
    (re.compile(r"<(https?://[^|>\"]+)\|([^>]*)>"), r'<a href="\1">\2</a>'),
    (re.compile(r"\*([^*\n]+)\*"), r"<b>\1</b>"),
    (re.compile(r"`([^`\n]+)`"), r"<code>\1</code>"),
)


@register.filter
def slack_html(text: str) -> SafeString:
    """Show the text of a Slack message, which is escaped already, as Slack shows it."""
    for code, sign in EMOJI.items():
        text = text.replace(code, sign)
    for pattern, html in SLACK_MARKUP:
        text = pattern.sub(html, text)
    return mark_safe(text)  # noqa: S308
