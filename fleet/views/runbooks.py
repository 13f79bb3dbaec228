"""Runbooks: what to do about an alert, as pages."""

from pathlib import Path

from django.conf import settings
from django.http import Http404, HttpResponse
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe
from markdown_it import MarkdownIt

from fleet.views.render import HtmxRequest, render_page
from telemetry.detect import RULES

# Raw HTML stays text, and only links that go somewhere harmless become links.
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")

# What is no rule of the fleet's, and has a runbook all the same.
OF_SERVICE = {
    "notifications": "Notifications",
    "service": "trnwatch itself",
}


@require_safe
def runbook(request: HtmxRequest, name: str) -> HttpResponse:
    """Show what to do about one rule, or about trnwatch itself."""
    known = (*RULES, *OF_SERVICE)
    path = Path(settings.ROOT) / f"docs/runbooks/{name}.md"
    if name not in known or not path.is_file():
        raise Http404(f"there is no runbook {name}; there are {', '.join(known)}")
    # Markdown escapes what it does not know; see MARKDOWN.
    text = SafeString(MARKDOWN.render(path.read_text()))
    title = RULES[name].title if name in RULES else OF_SERVICE[name]
    context = {"rule": RULES.get(name), "title": title, "text": text}
    return render_page(request, "fleet/runbook.html", context)
