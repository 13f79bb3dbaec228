"""Page of the bearer tokens: what machines may do, made and revoked by admins."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from fleet.access.rights import maker, owner_of, powers, requires
from fleet.access.tokens import TokenFieldError, make_token, revoke
from fleet.models import Token
from fleet.views.render import HtmxRequest, render_page

SCOPES = {
    "ingest": "report nodes and steps",
    "scrape": "read /metrics, /metrics/neuron and /sd/prometheus",
    "annotate": "say what happened",
    "read": "read the API",
    "act": "read, annotate, act on alerts",
    "lead": "act, and prices, budgets, trials",
    "admin": "lead, and tokens",
}
DAYS = {"30": "30 days", "90": "90 days", "365": "a year", "": "for good"}
N_OVER = 50


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@requires("admin")
def token_list(request: HtmxRequest) -> HttpResponse:
    """List the tokens, and make one: its secret is on this page, once."""
    if request.method != "POST":
        return _show(request)
    given = {name: request.POST.get(name, "") for name in ("name", "scope", "days")}
    if given["days"] not in DAYS:
        return _show(request, given=given, error=TokenFieldError("days", "choose from the list"))
    try:
        token, secret = make_token(
            given["name"],
            given["scope"],
            days=int(given["days"]) if given["days"] else None,
            maker=maker(request.user),
            now=timezone.now(),
        )
    except TokenFieldError as error:
        return _show(request, given=given, error=error)
    return _show(request, made=token, secret=secret)


@require_POST
@requires("admin")
def token_revoke(request: HtmxRequest, pk: int) -> HttpResponse:
    """Revoke a token for good."""
    token = get_object_or_404(Token, pk=pk)
    if revoke(token, by=request.user.get_username(), now=timezone.now()):
        messages.success(request, f"{token.name} is revoked; doors close within seconds.")
    else:
        messages.error(request, f"{token.name} was revoked already.")
    return HttpResponseRedirect(reverse("token-list"))


def _show(
    request: HtmxRequest,
    *,
    given: dict[str, str] | None = None,
    error: TokenFieldError | None = None,
    made: Token | None = None,
    secret: str = "",
) -> HttpResponse:
    now = timezone.now()
    valid = Token.objects.lasting(now)
    tokens = list(valid.order_by("name", "pk"))
    allowed = powers(tokens)
    over = Token.objects.exclude(pk__in=valid.values("pk"))
    context: dict[str, Any] = {
        "tokens": [(token, sorted(allowed[token.pk]), owner_of(token)) for token in tokens],
        "over": list(over.order_by("-pk")[:N_OVER]),
        "scopes": SCOPES,
        "days": DAYS,
        "given": given or {"scope": "ingest", "days": "365"},
        "error": error,
        "made": made,
        "secret": secret,
        "address": request.build_absolute_uri("/").rstrip("/"),
        "now": now,
    }
    status = 422 if error else 200
    return render_page(request, "fleet/token_list.html", context, status=status)
