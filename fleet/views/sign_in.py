"""The way in and the way out for people."""

import secrets

from django.conf import settings
from django.contrib.auth import login, logout
from django.contrib.auth.forms import AuthenticationForm, UsernameField
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.crypto import constant_time_compare
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from fleet.access.throttling import SignInAttempt

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
    return render(request, "registration/sign_in.html", context, status=status)


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
