"""Runbooks: what to do about an alert, as pages and as the steps on an alert's page."""

import zlib
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from django.conf import settings
from django.http import Http404, HttpResponse
from django.utils.html import escape
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token

from fleet.alerts.runbooks import PLACES, checks_first, filled, steps_now
from fleet.models import Alert
from fleet.pages.render import HtmxRequest, render_page
from telemetry.detect import RULES

# Raw HTML is escaped, and only links with a safe scheme become links.
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


def _table(_: object, tokens: Sequence[Token], place: int, *__: object) -> str:
    """Open a table that scrolls by itself where it is too wide; heading and columns name it."""
    header = takewhile(lambda token: token.type != "thead_close", tokens[place:])
    columns = ", ".join(token.content for token in header if token.type == "inline")
    above = [i for i in range(place) if tokens[i].type == "heading_open"]
    name = f"{tokens[above[-1] + 1].content}: {columns}" if above else columns
    plain = escape(name.replace("`", ""))
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{plain}"><table>\n'


MARKDOWN.add_render_rule("table_open", _table)
MARKDOWN.add_render_rule("table_close", lambda *_: "</table></div>\n")

# Runbooks of trnwatch itself, not of a rule.
OF_SERVICE = {
    "input-tiers": "Input tiers",
    "notifications": "Notifications",
    "service": "trnwatch service",
}


@require_safe
def runbook(request: HtmxRequest, name: str) -> HttpResponse:
    """Show what to do about one rule, or about trnwatch itself."""
    known = (*RULES, *OF_SERVICE)
    path = Path(settings.ROOT) / f"docs/runbooks/{name}.md"
    if name not in known or not path.is_file():
        raise Http404(f"there is no runbook {name}; there are {', '.join(known)}")
    # Safe: MARKDOWN escapes raw HTML.
    text = SafeString(MARKDOWN.render(filled(path.read_text(), {})))
    title = RULES[name].title if name in RULES else OF_SERVICE[name]
    context = {"rule": RULES.get(name), "title": title, "text": text}
    return render_page(request, "alerts/runbook.html", context)


def _fence(tokens: Sequence[Token], place: int, *_: object) -> str:
    """Write a block of commands with where to run them, and a button that copies them."""
    token = tokens[place]
    where, code = PLACES.get(token.info.strip()), escape(token.content)
    if where is None:
        return f"<pre><code>{code}</code></pre>\n"
    key = f"commands-{zlib.crc32(f'{place} {token.content}'.encode()):08x}"
    return (
        f'<div class="commands"><p><span class="muted">{where}</span>'
        f'<button type="button" class="quiet js" data-copies="{key}">Copy</button></p>'
        f'<pre tabindex="0"><code id="{key}">{code}</code></pre></div>\n'
    )


MARKDOWN.add_render_rule("fence", lambda *arguments: _fence(*arguments[1:]))


def check_first(alert: Alert) -> SafeString:
    # Markdown escapes what it does not know.
    return SafeString(MARKDOWN.render(checks_first(alert)))


def do_now(alert: Alert) -> SafeString:
    return SafeString(MARKDOWN.render(steps_now(alert)))
