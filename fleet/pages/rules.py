"""Rules: what each watches, its limits, what fires now, what was false, and the runbooks."""

import re
import zlib
from collections import Counter
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise, takewhile

from django.conf import settings
from django.contrib import messages
from django.db.models import Count, Max, Q
from django.http import Http404, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape
from django.utils.safestring import SafeString
from django.views.decorators.http import require_http_methods, require_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token
from redis.exceptions import RedisError

from fleet.access.roles import requires
from fleet.alerts.failures import rule_failures
from fleet.alerts.quality import RECENT, YEAR, Quality, limits_now, quality, quality_by_rule
from fleet.alerts.runbooks import PLACES, checks_first, filled, first_step
from fleet.alerts.runbooks import document as read_document
from fleet.alerts.watch_monitor import last_evaluation
from fleet.formatting import counted
from fleet.models import Alert, Run
from fleet.models.run import SHARE
from fleet.pages.fields import submit
from fleet.pages.forms import RunLimitsForm
from fleet.pages.render import HtmxRequest, render_page
from fleet.pages.tables import Column, Table, moment, number
from fleet.runs.limits import RUN_LIMITS, own_limits, set_limits
from telemetry.detect import RULES
from telemetry.detect.rules import Rule
from telemetry.store.hot import hot_store

# Names that the form suggests; others can be typed.
N_SUGGESTED = 200
MINUTE = timedelta(minutes=1)
# Units at the end of a limit's name.
UNITS = {"_ratio": "", "_per_s": "per second", "_s": "s"}


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A rule, its limits as name, value and unit, and its alerts that are not drills."""

    rule: Rule
    limits: list[tuple[str, str]]
    n_open: int
    last_fired_at: datetime | None
    # Of the last year, by severity.
    quality: Sequence[Quality]

    @property
    def n_false(self) -> int:
        return sum(each.n_false for each in self.quality)

    @property
    def n_fired(self) -> int:
        return sum(each.n_fired for each in self.quality)


RULE_TABLE = Table(
    "rules",
    "most open alerts first",
    (
        Column("rule", "Rule", "rule.title"),
        Column("name", "Name", "rule.name", style=None),
        Column("severity", "Severity", "rule.severity"),
        Column("subject", "Subject", "rule.subject", style=None),
        number("open", "Open", "n_open", style=""),
        number("false", "False in a year, of its share", "n_false", style=""),
        number("fired", "Fired in a year", "n_fired", style=None),
        moment("last", "Last fired", "last_fired_at", style="wide"),
        Column(
            "limits", "Thresholds", lambda row: [" ".join(each) for each in row.limits], "", None
        ),
    ),
    anchor="#rules",
)
FOUND = Table(
    "found",
    "by run",
    (
        Column("run", "Run", lambda row: row[0]),
        number("all", "All workers slow", lambda row: row[1].slowdown_ratio, "ratio"),
        number("one", "One worker slow", lambda row: row[1].worker_ratio, "ratio"),
        number("within", "Within", lambda row: row[1].within_s, "s"),
        number("scatter", "Steps scatter by", lambda row: row[1].scatter_ratio, "ratio"),
    ),
    parameter="sort_found",
    anchor="#found",
)


@require_http_methods(["GET", "HEAD", "POST"])
def rule_list(request: HtmxRequest) -> HttpResponseBase:
    """List the rules with their limits; operators give a run limits of its own."""
    if request.method == "POST":
        return _set_limits(request)
    asked = request.GET.get("run", "")
    run = Run.objects.filter(name=asked).first() if asked else None
    return _show(request, RunLimitsForm(run=run) if run else None, asked=asked)


@requires("operator")
def _set_limits(request: HtmxRequest) -> HttpResponse:
    form = RunLimitsForm(request.POST)
    by, now = request.user.get_username(), timezone.now()

    def change() -> tuple[Run, int]:
        wanted = {limit.field: form.cleaned_data[limit.field] for limit in RUN_LIMITS}
        return set_limits(form.cleaned_data["run"], wanted, by=by, now=now)

    done = submit(form, change)
    if done is None:
        return _show(request, form, asked=request.POST.get("run", ""))
    run, n_changed = done
    if n_changed:
        messages.success(request, f"{run.name}: {counted(n_changed, 'limit')} changed.")
    else:
        messages.info(request, f"{run.name}: nothing changed.")
    return HttpResponseRedirect(reverse("rule-list"))


def _show(request: HtmxRequest, form: RunLimitsForm | None, *, asked: str = "") -> HttpResponse:
    real = Alert.objects.filter(is_drill=False)
    by_rule = (
        real.order_by()
        .values("rule")
        .annotate(n_open=Count("pk", filter=Q(resolved_at=None)), last=Max("fired_at"))
    )
    counts = {rule: (n, at) for rule, n, at in by_rule.values_list("rule", "n_open", "last")}
    now = timezone.now()
    judged = quality_by_rule(now=now)
    rows = [
        RuleRow(
            rule,
            [limit_text(name, value) for name, value in rule.limits.items()],
            *counts.get(rule.name, (0, None)),
            quality=judged[rule.name],
        )
        for rule in RULES.values()
    ]
    active = Run.objects.active().order_by("name")
    changed = active.exclude(
        allreduce_limit_ratio=SHARE["limit_ratio"],
        allreduce_resolve_ratio=SHARE["resolve_ratio"],
        limits=None,
    )
    try:
        failures, found = rule_failures(hot_store()), limits_now(hot_store())
    except RedisError:
        failures, found = [], None
    rows.sort(key=lambda row: -row.n_open)
    of_runs = sorted(found.runs.items()) if found else []
    query = request.GET.dict()
    context = {
        "table": RULE_TABLE.by(query, lambda table: table.sorted(rows)),
        "year": quality(now=now, within=YEAR),
        "quality": quality(now=now, within=RECENT),
        "failures": failures,
        "found": found,
        "is_old": found is not None and now - found.at > MINUTE,
        "limits_now": of_runs,
        "found_table": FOUND.by(query, lambda table: table.sorted(of_runs)),
        "evaluated_at": last_evaluation(settings.REDIS_URL)(),
        "runs": active.values_list("name", flat=True)[:N_SUGGESTED],
        "own_limits": [(run, own) for run in changed if (own := own_limits(run))],
        "asked": asked,
        "form": form,
    }
    return render_page(request, "alerts/rule_list.html", context, partials=("rules",))


def limit_text(name: str, value: float) -> tuple[str, str]:
    """Write a limit: its name without the unit, and the value with it.

    >>> limit_text("limit_ratio", 0.25), limit_text("silent_s", 15.0), limit_text("steps", 2)
    (('limit', '0.25'), ('silent', '15 s'), ('steps', '2'))
    """
    ending = next((each for each in UNITS if name.endswith(each)), "")
    label = name.removesuffix(ending).replace("_", " ") or name
    return label, f"{value:,g} {UNITS.get(ending, '')}".strip()


# Raw HTML is escaped, and only links with a safe scheme become links.
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


def _table(
    _: object, tokens: Sequence[Token], place: int, __: object, tables: MutableMapping[str, int]
) -> str:
    """Open a table that scrolls by itself where it is too wide; heading and columns name it."""
    header = takewhile(lambda token: token.type != "thead_close", tokens[place:])
    columns = ", ".join(token.content for token in header if token.type == "inline")
    above = [i for i in range(place) if tokens[i].type == "heading_open"]
    name = f"{tokens[above[-1] + 1].content}: {columns}" if above else columns
    tables[name] = tables.get(name, 0) + 1
    name = f"{name} ({tables[name]})" if tables[name] > 1 else name
    plain = escape(name.replace("`", ""))
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{plain}"><table>\n'


MARKDOWN.add_render_rule("table_open", _table)
MARKDOWN.add_render_rule("table_close", lambda *_: "</table></div>\n")

# The id of commands that can be copied.
COPIED = re.compile(r'data-copies="([^"]+)"')
# What GitHub leaves out of the id of a heading.
NOT_IN_ID = re.compile(r"[^\w\- ]")


def render_document(text: str) -> SafeString:
    """Render a document, with ids on its headings as GitHub makes them."""
    tokens, n_used = MARKDOWN.parse(text), Counter[str]()
    for opening, heading in pairwise(tokens):
        if opening.type == "heading_open":
            name = NOT_IN_ID.sub("", heading.content.lower()).replace(" ", "-")
            opening.attrSet("id", f"{name}-{n_used[name]}" if n_used[name] else name)
            n_used[name] += 1
    # Safe: MARKDOWN escapes raw HTML.
    return SafeString(MARKDOWN.renderer.render(tokens, MARKDOWN.options, {}))


@require_safe
def runbook(request: HtmxRequest, name: str) -> HttpResponse:
    """Show what to do about one rule, or about trnwatch itself."""
    return _document(request, f"docs/runbooks/{name}.md", rule=RULES.get(name))


@require_safe
def document(request: HtmxRequest, name: str) -> HttpResponse:
    return _document(request, f"docs/{name}.md")


def _document(request: HtmxRequest, path: str, *, rule: Rule | None = None) -> HttpResponse:
    text = read_document(path)
    if not text:
        raise Http404(f"there is no {path}")
    title = rule.title if rule else text.partition("\n")[0].removeprefix("# ")
    is_runbook = path.startswith("docs/runbooks/")
    context = {
        "rule": rule,
        "title": f"Runbook: {title}" if is_runbook else title,
        "text": render_document(filled(text, {}) if is_runbook else text),
    }
    return render_page(request, "alerts/document.html", context)


def _fence(tokens: Sequence[Token], place: int, *_: object) -> str:
    """Write a block of commands with where to run them, and a button that copies them."""
    token = tokens[place]
    where, code = PLACES.get(token.info.strip()), escape(token.content)
    if where is None:
        return f'<pre tabindex="0"><code>{code}</code></pre>\n'
    key = f"commands-{zlib.crc32(f'{place} {token.content}'.encode()):08x}"
    return (
        f'<div class="commands"><p><span class="muted">{where}</span>'
        f'<button type="button" class="quiet js" data-copies="{key}">Copy</button></p>'
        f'<pre tabindex="0"><code id="{key}">{code}</code></pre></div>\n'
    )


MARKDOWN.add_render_rule("fence", lambda *arguments: _fence(*arguments[1:]))
MARKDOWN.add_render_rule("code_block", lambda *arguments: _fence(*arguments[1:]))


def check_first(alert: Alert) -> SafeString:
    # Markdown escapes what it does not know.
    return SafeString(MARKDOWN.render(checks_first(alert)))


@dataclass(frozen=True, slots=True)
class DoNow:
    """The first step of a runbook: what to do in one sentence, its commands, and why.

    ``copies`` is the id of the first commands, ``rest`` what follows: more steps, what to expect.
    """

    act: str
    why: SafeString
    commands: SafeString
    copies: str
    rest: SafeString


def do_now(alert: Alert) -> DoNow | None:
    """Read the steps of an alert's runbook; None without any."""
    step = first_step(alert)
    if not step.act:
        return None
    shown = SafeString(MARKDOWN.render(step.commands))
    found = COPIED.search(shown)
    return DoNow(
        act=step.act,
        why=SafeString(MARKDOWN.renderInline(step.why)),
        commands=shown,
        copies=found[1] if found else "",
        rest=SafeString(MARKDOWN.render(step.rest)),
    )
