"""What the frame around every page needs: links to pages that exist, and who is signed in."""

from typing import Any

from django import template
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()


def _url(name: str) -> str:
    """Return the address of a page, or nothing if there is no such page."""
    try:
        return reverse(name)
    except NoReverseMatch:
        return ""


@register.simple_tag(takes_context=True)
def nav_link(context: template.Context, name: str, words: str, icon: str) -> SafeString | str:
    """Link a page of the bar; the one we are on, or below, is marked as current."""
    url = _url(name)
    if not url:
        return ""
    path = context["request"].path if "request" in context else ""
    here = path == url or (url != "/" and path.startswith(url))
    return format_html(
        '<a href="{}" data-page="{}"{}>'
        '<svg aria-hidden="true"><use href="#icon-{}"/></svg>{}{}</a>',
        url,
        icon,
        SafeString(' aria-current="page"') if here else "",
        icon,
        words,
        SafeString('<span class="count" id="firing-count"></span>') if icon == "alerts" else "",
    )


@register.inclusion_tag("fleet/_signed_in.html", takes_context=True)
def signed_in(context: template.Context) -> dict[str, Any]:
    """Say who is signed in, with the way out; or the way in."""
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
    """Name the stream of changes that the page follows, unless it is frozen in time."""
    if context.get("frozen"):
        return ""
    return format_html(' data-live="{}{}"', topic, f"?{filters}" if filters else "")
