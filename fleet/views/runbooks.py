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


@require_safe
def runbook(request: HtmxRequest, name: str) -> HttpResponse:
    """Show what to do about one rule."""
    rule = RULES.get(name)
    path = Path(settings.ROOT) / rule.runbook if rule else None
    if rule is None or path is None or not path.is_file():
        raise Http404(f"there is no runbook {name}; there are {', '.join(RULES)}")
    # Markdown escapes what it does not know; see MARKDOWN.
    text = SafeString(MARKDOWN.render(path.read_text()))
    return render_page(request, "fleet/runbook.html", {"rule": rule, "text": text})
