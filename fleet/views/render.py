"""How every page answers: whole, or only the part that htmx wants to replace."""

from collections.abc import Collection, Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django_htmx.middleware import HtmxDetails


class HtmxRequest(HttpRequest):
    """A request that has passed django-htmx's middleware."""

    htmx: HtmxDetails


def render_page(
    request: HtmxRequest,
    template: str,
    context: Mapping[str, Any],
    *,
    partials: Collection[str] = (),
    status: int = 200,
) -> HttpResponse:
    """Render ``template``, or only the partial whose element htmx wants to replace.

    A partial, the element it fills and the entry in ``partials`` share one name.
    """
    target = request.htmx.target
    name = f"{template}#{target}" if target in partials else template
    response = render(request, name, dict(context), status=status)
    patch_vary_headers(response, ["HX-Request", "HX-Target"])
    return response
