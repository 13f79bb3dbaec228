"""Notifications in templates: the state of a delivery, and trouble that every page must show."""

from datetime import datetime
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.models import Delivery
from fleet.templatetags.units import duration
from fleet.trouble import trouble_for
from telemetry.longterm.positions import BEHIND_S, in_trouble
from telemetry.store.models import LongTermPosition

register = template.Library()

State = Delivery.State
# (colour class, shape, word)
MARKS = {
    State.PENDING: ("", "○", "waits"),
    State.SENDING: ("warn", "◐", "being sent"),
    State.SENT: ("ok", "✓", "sent"),
    State.DEAD: ("bad", "✕", "given up"),
    State.DROPPED: ("", "■", "dropped"),
}
RETRYING = ("warn", "◔", "tried again")


@register.simple_tag
def delivery_tag(delivery: Delivery) -> SafeString:
    """Mark how far a delivery got."""
    state = State(delivery.state)
    is_retrying = state == State.PENDING and delivery.n_attempts > 0
    colour, shape, word = RETRYING if is_retrying else MARKS[state]
    text = '<span class="tag {}"><span aria-hidden="true">{}</span> {}</span>'
    return format_html(text, colour, shape, word)


@register.inclusion_tag("fleet/_undelivered.html", takes_context=True)
def undelivered(context: template.Context) -> dict[str, Any]:
    """Tell, on every page, of notifications that were given up or that nobody sends."""
    request = context.get("request")
    trouble = trouble_for(request)
    match = getattr(request, "resolver_match", None)
    # The page of notifications has a whole part for it.
    is_there = match is not None and match.url_name == "notification-list"
    streams = list(in_trouble(timezone.now())) if trouble.n_behind else []
    return {
        "n_dead": 0 if is_there else trouble.n_dead,
        "n_late": trouble.n_late,
        "long_term": [behind_in_words(row, now=timezone.now()) for row in streams],
    }


def behind_in_words(row: LongTermPosition, *, now: datetime) -> str:
    """Say how far behind a stream is, what was refused, and what stands in the way."""
    lag_s = now.timestamp() - row.second
    said = []
    if lag_s > BEHIND_S:
        said.append(f"{row.stream} are {duration(lag_s)} behind")
    if row.dropped_at is not None:
        said.append(f"{row.n_dropped:,} samples of the {row.stream} were refused")
    return ", ".join(said) + (f" ({row.trouble})" if row.trouble else "")
