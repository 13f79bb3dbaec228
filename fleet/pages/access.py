"""Page of the bearer tokens: what machines may do, made and revoked by admins."""

import secrets
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login, logout
from django.contrib.auth.forms import AuthenticationForm, UsernameField
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from fleet.access.roles import effective_scopes, maker, owner_of, requires
from fleet.access.throttling import SignInAttempt
from fleet.access.tokens import make_token, revoke
from fleet.models import Token
from fleet.pages.render import HtmxRequest, render_page
from telemetry.errors import FieldError

# Names a browser that has signed in, so that guesses from elsewhere cannot keep it out.
DEVICE_COOKIE = "trnwatch_device"
DEVICE_COOKIE_AGE_S = 90 * 86_400


@sensitive_post_parameters("password")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    """Ask for name and password; go on to where the visitor wanted to be.

    An attempt is counted before its password is looked at. One too many is answered without
    looking, by a page that is the same for every name and password.
    """
    there = _wanted(request)
    if request.user.is_authenticated:
        return redirect(there)
    if request.method != "POST":
        return _page(request, AuthenticationForm(request), there)
    account = str(UsernameField(max_length=150).to_python(request.POST.get("username", "")))
    device = _device(request, account)
    attempt = SignInAttempt(account, request.META.get("REMOTE_ADDR", ""), device=device)
    if wait_s := attempt.wait_s():
        response = _page(
            request, AuthenticationForm(request), there, status=429, wait_minutes=-(-wait_s // 60)
        )
        response["Retry-After"] = str(wait_s)
        return response
    form = AuthenticationForm(request, data=request.POST)
    if not form.is_valid():
        return _page(request, form, there, status=422)
    attempt.succeeded()
    login(request, form.get_user())
    response = redirect(there)
    _remember_device(response, form.get_user())
    return response


def _page(
    request: HttpRequest,
    form: AuthenticationForm,
    there: str,
    *,
    status: int = 200,
    wait_minutes: int = 0,
) -> HttpResponse:
    context = {"form": form, "next": there, "wait_minutes": wait_minutes, "is_demo": settings.DEMO}
    return render(request, "access/sign_in.html", context, status=status)


def _device(request: HttpRequest, account: str) -> str:
    """Return the identity of a browser that signed in to this account before, or nothing.

    The cookie is signed for one account and, like sessions, ends with its password.
    """
    cookie = request.get_signed_cookie(
        DEVICE_COOKIE, default="", salt=_salt(account), max_age=DEVICE_COOKIE_AGE_S
    )
    device, _, session_hash = (cookie or "").partition(".")
    if not device:
        return ""
    user = User.objects.filter(username=account, is_active=True).first()
    known = user is not None and constant_time_compare(session_hash, user.get_session_auth_hash())
    return device if known else ""


def _remember_device(response: HttpResponseBase, user: User) -> None:
    response.set_signed_cookie(
        DEVICE_COOKIE,
        f"{secrets.token_hex(16)}.{user.get_session_auth_hash()}",
        salt=_salt(user.get_username()),
        max_age=DEVICE_COOKIE_AGE_S,
        path=reverse("sign-in"),
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )


def _salt(account: str) -> str:
    return f"trnwatch device {account}"


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session."""
    logout(request)
    return redirect(settings.LOGIN_REDIRECT_URL)


def _wanted(request: HttpRequest) -> str:
    """Return the page of ours that the visitor was on the way to."""
    there = request.POST.get("next") or request.GET.get("next") or ""
    ours = url_has_allowed_host_and_scheme(
        there, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return there if ours else settings.LOGIN_REDIRECT_URL


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
        return _show(request, given=given, error=FieldError("days", "choose from the list"))
    try:
        token, secret = make_token(
            given["name"],
            given["scope"],
            days=int(given["days"]) if given["days"] else None,
            maker=maker(request.user),
            now=timezone.now(),
        )
    except FieldError as error:
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
    error: FieldError | None = None,
    made: Token | None = None,
    secret: str = "",
) -> HttpResponse:
    now = timezone.now()
    valid = Token.objects.valid(now)
    tokens = list(valid.order_by("name", "pk"))
    allowed = effective_scopes(tokens)
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
    return render_page(request, "access/token_list.html", context, status=status)
