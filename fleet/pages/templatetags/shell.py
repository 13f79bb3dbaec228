"""Tags for the frame of every page: navigation, live stream, account."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from django import template
from django.conf import settings
from django.db import DatabaseError
from django.db.models import Count, QuerySet, Value
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from redis.exceptions import RedisError

from fleet.access.roles import assignable_names, reads_anonymously
from fleet.alerts.matchers import matchers_of, written
from fleet.alerts.silences import SPANS
from fleet.models import Alert, Delivery, Run
from fleet.ops.static_files import imported_by
from fleet.pages.annotations import annotate_context
from fleet.runs.state import missing_readings
from telemetry.store.hot import hot_store

register = template.Library()


def _url(name: str) -> str:
    """Return the URL of a page; empty if there is no such page."""
    try:
        return reverse(name)
    except NoReverseMatch:
        return ""


@register.simple_tag
def script_module(name: str) -> SafeString:
    """Load a JavaScript module, and all it imports at the same time instead of one after another.

    While developing, an import may have changed since the last page: the browser follows it.
    """
    imports = () if settings.DEBUG else imported_by(name)
    return format_html(
        '{}<script type="module" src="{}"></script>',
        format_html_join(
            "\n  ", '<link rel="modulepreload" href="{}">', ((static(each),) for each in imports)
        ),
        static(name),
    )


@register.simple_tag(takes_context=True)
def nav_link(context: template.Context, name: str, words: str, icon: str) -> SafeString | str:
    """Link a page in the navigation; the current page and its subpages are marked."""
    url = _url(name)
    if not url:
        return ""
    path = context["request"].path if "request" in context else ""
    is_here = path == url or (url != "/" and path.startswith(url))
    return format_html(
        '<a href="{}" data-page="{}"{}>'
        '<svg aria-hidden="true"><use href="#icon-{}"/></svg>{}{}</a>',
        url,
        icon,
        SafeString(' aria-current="page"') if is_here else "",
        icon,
        words,
        _firing(context) if icon == "alerts" else "",
    )


@register.simple_block_tag
def captured(content: SafeString) -> SafeString:
    """Keep what is between the tags: ``{% captured as links %}``."""
    return content


def _firing(context: template.Context) -> SafeString:
    """Count the unacknowledged alerts; the live stream updates the count."""
    n = header_counts(context.get("request")).n_unacknowledged
    return format_html(
        '<span class="count" id="firing-count"{}>{}</span>',
        format_html(' aria-label="{} unacknowledged"', n) if n else "",
        n or "",
    )


@register.inclusion_tag("access/_signed_in.html", takes_context=True)
def signed_in(context: template.Context) -> dict[str, Any]:
    """Show the account with its sign-out button, or a link to sign in."""
    return {
        "user": context.get("user"),
        "role": context.get("role"),
        "csrf_token": context.get("csrf_token"),
        "sign_in": _url("sign-in"),
        "sign_out": _url("sign-out"),
        "path": context["request"].path if "request" in context else "/",
    }


@register.simple_tag(takes_context=True)
def live_stream(context: template.Context, topic: str, filters: str = "") -> SafeString | str:
    """Return the attribute that names a page's live stream; empty if frozen in time."""
    if context.get("frozen"):
        return ""
    return format_html(' data-live="{}{}"', topic, f"?{filters}" if filters else "")


@register.simple_tag(takes_context=True)
def head_stream(context: template.Context) -> SafeString | str:
    """Return the attribute that names the header's stream; empty for users who may not read."""
    request, user = context.get("request"), context.get("user")
    may_read = getattr(user, "is_authenticated", False) or (
        request is not None and reads_anonymously(request)
    )
    return live_stream(context, "head") if may_read else ""


@register.inclusion_tag("runs/_annotations.html", takes_context=True)
def run_annotations(context: template.Context, run: Run) -> dict[str, Any]:
    """Render the form to annotate a run."""
    return {
        "run": run,
        **annotate_context(run=run.name, back=run.get_absolute_url()),
        "csrf_token": context.get("csrf_token"),
    }


@register.inclusion_tag("alerts/_alert_actions.html", takes_context=True)
def alert_actions(context: template.Context, alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert,
        "people": [name for name in assignable_names() if name != alert.assigned_to],
        "matchers": written(matchers_of(alert)),
        "spans": {name: words for name, words in SPANS.items() if name != "until"},
        "is_silenced": alert.is_silenced(timezone.now()),
        "csrf_token": context.get("csrf_token"),
        "live": context.get("live"),
        "frozen_link": context["frozen_link"],
    }


@register.inclusion_tag("alerts/_alert_marks.html", takes_context=True)
def alert_marks(
    context: template.Context, alert: Alert, *, is_full: bool = False
) -> dict[str, Any]:
    """Mark an alert as silenced, assigned, flapping or recurring; ask for it with its silence.

    ``frozen_at`` in the context is the time that a frozen page shows.
    """
    now = context.get("frozen_at") or timezone.now()
    return {"alert": alert, "is_silenced": alert.is_silenced(now), "is_full": is_full}


@register.simple_tag
def past_is_missing() -> bool:
    """Whether a list may be empty only because the demo's history is still being prepared."""
    return settings.DEMO and Run.objects.without_past().exists()


@register.inclusion_tag("simulation/_past.html")
def demo_past(*, is_line: bool = False) -> dict[str, object]:
    """Say that the past of the demo's runs is still being simulated."""
    if not settings.DEMO:
        return {}
    runs = Run.objects.simulated()
    n_left = runs.without_past().count()
    n_all = runs.count() if n_left else 0
    return {"n_left": n_left, "n_all": n_all, "n_done": n_all - n_left, "is_line": is_line}


@register.inclusion_tag("notifications/_undelivered.html", takes_context=True)
def undelivered(context: template.Context) -> dict[str, Any]:
    """Warn on every page about failed and delayed notifications."""
    request = context.get("request")
    counts = header_counts(request)
    match = getattr(request, "resolver_match", None)
    # The notification page lists failed deliveries itself.
    is_there = match is not None and match.url_name == "notification-list"
    return {"n_dead": 0 if is_there else counts.n_dead, "n_late": counts.n_late}


@register.inclusion_tag("pages/_missing_stores.html")
def missing_stores() -> dict[str, Any]:
    """Say on every page which stores, of several, do not answer, and how many nodes that hides."""
    try:
        missing = missing_readings(hot_store())
    except (RedisError, DatabaseError):
        return {}
    n_nodes = Counter(missing.nodes.values())
    return {"stores": [(name, gap.since_s, n_nodes[name]) for name, gap in missing.away.items()]}


CACHED = "trnwatch_header_counts"


@dataclass(frozen=True, slots=True)
class HeaderCounts:
    """Unacknowledged alerts, dead and late deliveries."""

    n_unacknowledged: int = 0
    n_dead: int = 0
    n_late: int = 0

    @classmethod
    def now(cls, *, now: datetime) -> Self:
        counted = [
            _counted("n_unacknowledged", Alert.objects.open().unacknowledged()),
            _counted("n_dead", Delivery.objects.dead()),
            _counted("n_late", Delivery.objects.late(now)),
        ]
        return cls(**dict(counted[0].union(*counted[1:], all=True)))


def _counted(name: str, rows: QuerySet[Any, Any]) -> QuerySet[Any, Any]:
    """Select a row of a name and a count; no row where the count is zero."""
    named = rows.order_by().annotate(what=Value(name)).values("what")
    counted: QuerySet[Any, Any] = named.annotate(n=Count("pk")).values_list("what", "n")
    return counted


def header_counts(request: HttpRequest | None) -> HeaderCounts:
    """Read the counts that a request may see, once per request; zeros without a database."""
    is_signed_in = getattr(getattr(request, "user", None), "is_authenticated", False)
    if request is None or not (is_signed_in or reads_anonymously(request)):
        return HeaderCounts()
    if CACHED not in request.META:
        try:
            request.META[CACHED] = HeaderCounts.now(now=timezone.now())
        except DatabaseError:
            return HeaderCounts()
    counts: HeaderCounts = request.META[CACHED]
    return counts
