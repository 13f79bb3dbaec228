"""The way in and the way out for people."""

from django.conf import settings
from django.contrib.auth import login, logout
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from fleet.access.throttling import Attempts


@sensitive_post_parameters("password")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    """Ask for name and password; go on to where the visitor wanted to be."""
    there = _wanted(request)
    if request.user.is_authenticated:
        return redirect(there)
    form = AuthenticationForm(request, data=request.POST if request.method == "POST" else None)
    attempts = Attempts(request.POST.get("username", ""), request.META.get("REMOTE_ADDR", ""))
    wait_s = attempts.wait_s() if form.is_bound else 0
    if not wait_s and form.is_bound:
        if form.is_valid():
            attempts.forget()
            login(request, form.get_user())
            return redirect(there)
        attempts.note()
    context = {
        "form": form,
        "next": there,
        "wait_minutes": -(-wait_s // 60),
        "is_demo": settings.DEMO,
    }
    response = render(request, "registration/sign_in.html", context, status=_status(form, wait_s))
    if wait_s:
        response["Retry-After"] = str(wait_s)
    return response


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


def _status(form: AuthenticationForm, wait_s: int) -> int:
    """Return 429 for too many attempts, 422 for a wrong password, 200 for a fresh form."""
    if wait_s:
        return 429
    return 422 if form.is_bound else 200
