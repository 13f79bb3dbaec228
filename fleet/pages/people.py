"""The page of people: accounts and their roles, for admins."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from fleet.access.people import change_role, create_person, reset_password, set_active
from fleet.access.roles import ROLES, requires, role_of
from fleet.pages.forms import PersonForm, submit
from fleet.pages.render import HtmxRequest, render_page
from telemetry.errors import FieldError


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
