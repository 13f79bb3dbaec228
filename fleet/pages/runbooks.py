"""Runbooks: what to do about an alert, as pages."""

from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.http import Http404, HttpResponse
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe
from markdown_it import MarkdownIt

from fleet.pages.render import HtmxRequest, render_page
from telemetry.detect import RULES

# Raw HTML is escaped, and only links with a safe scheme become links.
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
# A table that is wider than the screen scrolls by itself.
SCROLLED = '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>\n'
MARKDOWN.add_render_rule("table_open", lambda *_: SCROLLED)
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
    text = SafeString(MARKDOWN.render(path.read_text()))
    title = RULES[name].title if name in RULES else OF_SERVICE[name]
    context = {"rule": RULES.get(name), "title": title, "text": text}
    return render_page(request, "alerts/runbook.html", context)


FIRST = "## Check first"


@lru_cache(maxsize=64)
def check_first(rule: str) -> SafeString:
    """Return the first part of a rule's runbook as HTML; nothing where there is none."""
    known = RULES.get(rule)
    path = Path(settings.ROOT) / known.runbook if known else None
    if path is None or not path.is_file():
        return SafeString("")
    _, _, rest = path.read_text().partition(FIRST)
    # Markdown escapes what it does not know.
    return SafeString(MARKDOWN.render(rest.partition("\n## ")[0].strip()))
