"""What a runbook says to look at first, to stand on the page of an alert itself."""

from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.utils.safestring import SafeString
from markdown_it import MarkdownIt

from telemetry.detect import RULES

# Raw HTML stays text, and only links that go somewhere harmless become links.
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
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
