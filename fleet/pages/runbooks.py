"""Runbooks: what to do about an alert, as pages and as the steps on an alert's page."""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from django.conf import settings
from django.http import Http404, HttpResponse
from django.utils.html import escape
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token

from fleet.models import Alert
from fleet.pages.render import HtmxRequest, render_page
from telemetry.detect import RULES
from telemetry.detect.causes import RULE_OF

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


NOW, FIRST = "## Do now", "## Check first"
# Where the commands of a block are run. Blocks of other schedulers than the alert's are left out.
PLACES = {"slurm": "Slurm", "kubernetes": "Kubernetes", "shell": "On the node"}
SCHEDULERS = ("slurm", "kubernetes")
# Labels that show which scheduler a node or a job has.
LABELS_OF = {
    "slurm": ("slurm_job_id", "slurm_partition"),
    "kubernetes": ("kubernetes_node", "pod", "namespace"),
}
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```\n", re.MULTILINE | re.DOTALL)
# Neither an option nor anything that a shell reads in another way.
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
FIELD = re.compile(r"\{([a-z_]+)\}")


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


@lru_cache(maxsize=64)
def section(rule: str, title: str) -> str:
    """Return a section of a rule's runbook as Markdown; empty where there is none."""
    known = RULES.get(rule)
    path = Path(settings.ROOT) / known.runbook if known else None
    if path is None or not path.is_file():
        return ""
    _, _, rest = path.read_text().partition(f"{title}\n")
    return rest.partition("\n## ")[0].strip()


def check_first(rule: str) -> SafeString:
    # Markdown escapes what it does not know.
    return SafeString(MARKDOWN.render(section(rule, FIRST)))


def do_now(alert: Alert) -> SafeString:
    """Return the steps of an alert's runbook with its names filled in, as HTML.

    The cause chooses the runbook: an all-reduce share because of a slow core has that of the slow
    core. Commands of a scheduler that the alert's node and run do not have are left out, unless
    nothing shows which one they have.
    """
    node, run = alert.node, alert.run
    rule = RULE_OF.get(alert.cause, alert.rule) if node else alert.rule
    text = section(rule, NOW) or section(alert.rule, NOW)
    labels = {**(run.labels if run else {}), **(node.labels if node else {})}
    found = [name for name in SCHEDULERS if any(label in labels for label in LABELS_OF[name])]
    left_out = set(SCHEDULERS) - set(found) if found else set()
    text = BLOCK.sub(lambda match: "" if match[1] in left_out else match[0], text)
    values = {**labels, "alert": str(alert.pk)}
    if run:
        values["run"] = run.name
    if node:
        values["node"] = node.name
        values.setdefault("kubernetes_node", node.name)
    return SafeString(MARKDOWN.render(filled(text, values)))


def filled(text: str, values: Mapping[str, str]) -> str:
    """Fill the fields of a runbook, such as ``{node}``; unknown ones become their name: NODE.

    A label may be any text: in a block, one that the shell or a program would take for more than
    a name counts as unknown.

    Examples
    --------
    >>> filled("drain `{node}`, {pod}", {"node": "trn-a"})
    'drain `trn-a`, POD'
    """

    def fill(text: str, quote: Callable[[str], str]) -> str:
        return FIELD.sub(
            lambda field: quote(values.get(field[1], "")) or field[1].upper(),
            text,
        )

    parts, end = [], 0
    for block in BLOCK.finditer(text):
        parts += [fill(text[end : block.start()], _plain), fill(block[0], _name_only)]
        end = block.end()
    return "".join([*parts, fill(text[end:], _plain)])


def _plain(value: str) -> str:
    # It stands between backticks, which end at another one.
    return value.replace("`", "'").replace("\n", " ")


def _name_only(value: str) -> str:
    return value if SAFE.fullmatch(value) else ""
