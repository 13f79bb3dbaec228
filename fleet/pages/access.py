"""Sign-in, sign-out, the account page, and the pages of people and of bearer tokens."""

import secrets
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login, logout
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm, UsernameField
from django.contrib.auth.models import User
from django.contrib.auth.views import PasswordChangeView
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse, reverse_lazy
from django.utils import timezone
from django.utils.crypto import constant_time_compare
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from fleet.access import audit
from fleet.access.audit import explain, known_account
from fleet.access.people import change_role, create_person, reset_password, set_active
from fleet.access.roles import ROLES, effective_scopes, maker, owner_of, requires, role_of
from fleet.access.throttling import SignInAttempt
from fleet.access.tokens import make_token, revoke
from fleet.models import Token
from fleet.pages.fields import submit
from fleet.pages.forms import PasswordForm, PersonForm, TokenForm
from fleet.pages.render import HtmxRequest, render_page
from fleet.pages.tables import Column, Table, moment
from telemetry.errors import FieldError
from telemetry.units import DAY_S

EXPIRED = Table(
    "expired-tokens",
    "newest first",
    (
        Column("name", "Name", "name", order="name"),
        Column("scope", "Scope", "scope", order="scope"),
        moment("created", "Created", "created_at", order="created_at"),
        Column("by", "Created by", "created_by", style=None),
        moment("ended", "Ended", lambda t: t.revoked_at or t.expires_at, order="ended_at"),
        moment("used", "Last used", "last_used_at", order="last_used_at"),
    ),
    is_stored=True,
    anchor="#over",
)
# Identifies a browser that has signed in: failed attempts of others do not lock it out.
DEVICE_COOKIE = "trnwatch_device"
DEVICE_COOKIE_AGE_S = 90 * DAY_S


@sensitive_post_parameters("password")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    """Ask for name and password, then redirect to the requested page.

    An attempt is counted before its password is checked. Above the limit, passwords are not
    checked, and the response is the same for every name and password.
    """
    target = _target(request)
    if request.user.is_authenticated:
        return HttpResponseRedirect(target)
    if request.method != "POST":
        return _page(request, AuthenticationForm(request), target)
    account = str(UsernameField(max_length=150).to_python(request.POST.get("username", "")))
    device = _device(request, account)
    attempt = SignInAttempt(account, request.META.get("REMOTE_ADDR", ""), device=device)
    if wait_s := attempt.wait_s():
        explain(request, 429, who=known_account(account), why="too many attempts to sign in")
        response = _page(
            request, AuthenticationForm(request), target, status=429, wait_minutes=-(-wait_s // 60)
        )
        response["Retry-After"] = str(wait_s)
        return response
    form = AuthenticationForm(request, data=request.POST)
    if not form.is_valid():
        known = known_account(account)
        detail = "wrong password, or disabled" if known else "no such account"
        audit.note("sign_in", "failed", who=known, detail=detail, is_counted=True)
        return _page(request, form, target, status=422)
    attempt.succeeded()
    user = form.get_user()
    login(request, user)
    audit.note("sign_in", "ok", who=user.get_username(), is_counted=True)
    response = HttpResponseRedirect(target)
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
    return response


def _page(
    request: HttpRequest,
    form: AuthenticationForm,
    target: str,
    *,
    status: int = 200,
    wait_minutes: int = 0,
) -> HttpResponse:
    context = {
        "form": form,
        "next": target,
        "wait_minutes": wait_minutes,
        "is_demo": settings.DEMO,
    }
    return render(request, "access/sign_in.html", context, status=status)


def _device(request: HttpRequest, account: str) -> str:
    """Return the id of a browser that signed in to this account before, else an empty string.

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


def _salt(account: str) -> str:
    return f"trnwatch device {account}"


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    if request.user.is_authenticated:
        audit.note("sign_out", "ok", who=request.user.get_username(), is_counted=True)
    logout(request)
    return redirect(settings.LOGIN_REDIRECT_URL)


def _target(request: HttpRequest) -> str:
    """Return the requested page if it is on this site, else the start page."""
    target = request.POST.get("next") or request.GET.get("next") or ""
    is_ours = url_has_allowed_host_and_scheme(
        target, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return target if is_ours else settings.LOGIN_REDIRECT_URL


class AccountView(PasswordChangeView):
    """Change the own password.

    Attempts are limited per session, so the password cannot be guessed at an unlocked screen.
    """

    template_name = "access/account.html"
    form_class = PasswordForm
    success_url = reverse_lazy("account")

    def post(self, request: HttpRequest, *args: str, **kwargs: Any) -> HttpResponse:
        session = request.session.session_key or ""
        account, address = request.user.get_username(), request.META.get("REMOTE_ADDR", "")
        if wait_s := SignInAttempt(account, address, device=f"session {session}").wait_s():
            context = self.get_context_data(
                form=PasswordForm(request.user), wait_minutes=-(-wait_s // 60)
            )
            headers = {"Retry-After": str(wait_s)}
            return self.render_to_response(context, status=429, headers=headers)
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: PasswordChangeForm) -> HttpResponse:
        audit.note("password_change", "ok", who=self.request.user.get_username())
        messages.success(self.request, "Password changed.")
        return super().form_valid(form)

    def form_invalid(self, form: PasswordChangeForm) -> HttpResponse:
        who = self.request.user.get_username()
        audit.note("password_change", "failed", who=who, is_counted=True)
        return self.render_to_response(self.get_context_data(form=form), status=422)


account = never_cache(AccountView.as_view())

N_EXPIRED = 50


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@requires("admin")
def token_list(request: HtmxRequest) -> HttpResponse:
    """List the tokens, or create one; its secret is shown once."""
    form = TokenForm(request.POST if request.method == "POST" else None)
    token, secret, now = None, "", timezone.now()
    user = request.user
    if new := submit(form, lambda: make_token(**form.cleaned_data, maker=maker(user), now=now)):
        (token, secret), form = new, TokenForm()
    valid = Token.objects.valid(now)
    tokens = list(valid.order_by("name", "pk"))
    allowed = effective_scopes(tokens)
    expired = Token.objects.exclude(pk__in=valid.values("pk")).order_by("-pk")
    expired = expired.alias(ended_at=Coalesce("revoked_at", "expires_at"))
    table = EXPIRED.by(request.GET.dict(), lambda t: t.ordered(expired).iterator())
    context = {
        "tokens": [(each, sorted(allowed[each.pk]), owner_of(each)) for each in tokens],
        "table": table,
        "expired": list(table.ordered(expired)[:N_EXPIRED]),
        "form": form,
        "made": token,
        "secret": secret,
        "address": request.build_absolute_uri("/").rstrip("/"),
    }
    return render_page(request, "access/token_list.html", context)


@require_POST
@requires("admin")
def token_revoke(request: HtmxRequest, pk: int) -> HttpResponse:
    token = get_object_or_404(Token, pk=pk)
    if revoke(token, by=request.user.get_username(), now=timezone.now()):
        messages.success(request, f"{token.name} revoked. Requests with it fail within seconds.")
    else:
        messages.error(request, f"{token.name} is already revoked.")
    return HttpResponseRedirect(reverse("token-list"))


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@requires("admin")
def people_list(request: HtmxRequest) -> HttpResponse:
    """List the accounts, or create one; its password is shown once."""
    form = PersonForm(request.POST if request.method == "POST" else None)
    made, password = None, ""
    if new := submit(form, lambda: create_person(**form.cleaned_data, **_by(request))):
        (made, password), form = new, PersonForm()
    return _show(request, form, made, password)


def _by(request: HtmxRequest) -> dict[str, Any]:
    return {"by": request.user.get_username(), "now": timezone.now()}


def _show(
    request: HtmxRequest, form: PersonForm, made: User | None = None, password: str = ""
) -> HttpResponse:
    people = User.objects.order_by("-is_active", "username").prefetch_related("groups")
    context = {
        "people": [(each, role_of(each)) for each in people],
        "roles": ROLES,
        "form": form,
        "made": made,
        "password": password,
        "address": request.build_absolute_uri(reverse("sign-in")),
    }
    return render_page(request, "access/people_list.html", context)


@never_cache
@require_POST
@requires("admin")
def person_change(request: HtmxRequest, pk: int) -> HttpResponse:
    """Change a role, disable or enable an account, or reset its password, which is shown once."""
    user, act = get_object_or_404(User, pk=pk), request.POST.get("act", "")
    if user == request.user and act == "disable":
        messages.error(request, "You cannot disable your own account.")
        return HttpResponseRedirect(reverse("people-list"))
    try:
        match act:
            case "reset":
                return _show(request, PersonForm(), user, reset_password(user, **_by(request)))
            case "role":
                change_role(user, request.POST.get("role", ""), **_by(request))
                messages.success(request, f"{user} is now {role_of(user)}.")
            case "disable" | "enable":
                set_active(user, is_active=act == "enable", **_by(request))
                messages.success(request, f"{user} {act}d.")
            case _:
                messages.error(request, "Choose what to change.")
    except FieldError as error:
        messages.error(request, f"Nothing changed: {error.message}.")
    return HttpResponseRedirect(reverse("people-list"))
