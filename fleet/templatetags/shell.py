"""What the frame around every page needs: links to pages that exist, and who is signed in."""

from typing import Any

from django import template
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.access.rights import reads_anonymously
from fleet.trouble import trouble_for

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
    return format_html(
        '<a href="{}" data-page="{}"{}>'
        '<svg aria-hidden="true"><use href="#icon-{}"/></svg>{}{}</a>',
        url,
        icon,
        SafeString(' aria-current="page"') if _is_here(context, url) else "",
        icon,
        words,
        _firing(context) if icon == "alerts" else "",
    )


@register.simple_tag(takes_context=True)
def more_here(context: template.Context, *names: str) -> str:
    """Say whether we are on one of the pages, or below it, that the menu holds."""
    return "page" if any(_is_here(context, _url(name)) for name in names) else ""


@register.simple_tag
def page_url(name: str) -> str:
    """Return the address of a page, or nothing where there is no such page."""
    return _url(name)


def _is_here(context: template.Context, url: str) -> bool:
    """Whether we are on a page, or below it."""
    path = context["request"].path if "request" in context else ""
    return bool(url) and (path == url or (url != "/" and path.startswith(url)))


def _firing(context: template.Context) -> SafeString:
    """Count the alerts that nobody has, for who may know; the stream keeps the count fresh."""
    n = trouble_for(context.get("request")).n_unacknowledged
    return format_html(
        '<span class="count" id="firing-count"{}>{}</span>',
        format_html(' aria-label="{} unacknowledged"', n) if n else "",
        n or "",
    )


def _may_read(context: template.Context) -> bool:
    """Whether who looks was let in, or would be."""
    request, user = context.get("request"), context.get("user")
    return getattr(user, "is_authenticated", False) or (
        request is not None and reads_anonymously(request)
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


@register.simple_tag(takes_context=True)
def head_stream(context: template.Context) -> SafeString | str:
    """Follow what every page is told, how fresh the data are, where a page follows no more."""
    return live_stream(context, "head") if _may_read(context) else ""
