"""The page that shows how to connect nodes, and the files that they need."""

from datetime import timedelta
from functools import cache

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from fleet.access.roles import has_role, maker
from fleet.access.tokens import make_token
from fleet.models import Node, Run, Token
from fleet.pages.forms import TokenForm, submit
from fleet.pages.render import HtmxRequest, render_page
from telemetry.ingest.exporters import KEEP
from telemetry.node_files import agent_file, reporter_wheel

NEW_FOR = timedelta(hours=1)
MOST = 8
USUAL_NAME = "nodes"


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def connect(request: HtmxRequest) -> HttpResponse:
    """Show three ways to connect nodes; an admin can create the token that they need."""
    user = request.user
    is_admin, form, secret = has_role(user, "admin"), TokenForm(), ""
    form.fields["name"].initial = USUAL_NAME
    if is_admin and request.method == "POST":
        form = TokenForm({"name": request.POST.get("name", ""), "scope": "ingest", "days": "365"})
        if made := submit(
            form,
            lambda: make_token(**form.cleaned_data, maker=maker(user), now=timezone.now()),
        ):
            secret = made[1]
    context = _reports() | {
        "form": form if is_admin else None,
        "secret": secret,
        "address": request.build_absolute_uri("/").rstrip("/"),
        "wheel": _files()[1],
        "keep": KEEP,
        "is_start": request.path == reverse("overview"),
    }
    return render_page(request, "pages/connect.html", context, partials={"reports"})


def _reports() -> dict[str, object]:
    """Return the nodes and runs that reported first within the last hour, newest first."""
    since = timezone.now() - NEW_FOR
    nodes = Node.objects.exclude(source=Node.Source.SIMULATED).filter(first_seen_at__gte=since)
    tokens = Token.objects.valid(timezone.now()).filter(scope=Token.Scope.INGEST)
    used = tokens.exclude(last_used_at=None).order_by("-last_used_at")
    return {
        "new_nodes": nodes.select_related("run").order_by("-first_seen_at")[:MOST],
        "n_new": nodes.count(),
        "new_runs": Run.objects.filter(nodes__in=nodes).distinct().order_by("name")[:MOST],
        "last_used": used.first(),
        "n_tokens": tokens.count(),
    }


@require_safe
def node_file(request: HttpRequest, name: str) -> HttpResponse:
    """Send the agent or the reporter's wheel: nothing secret, and needed before any sign-in."""
    content = _files()[0].get(name)
    if content is None:
        raise Http404
    return HttpResponse(content, "application/octet-stream")


@cache
def _files() -> tuple[dict[str, bytes], str]:
    wheel, content = reporter_wheel()
    return {"trnwatch-agent.pyz": agent_file(), wheel: content}, wheel
