"""The money of a run on its own page: where every dollar went, and what it buys."""

import math
from datetime import UTC, datetime
from typing import Any

from django import template
from django.conf import settings
from django.utils import timezone

from fleet.models import Run
from fleet.money.panel import panel
from fleet.templatetags.units import ABSENT
from telemetry.store.hot import open_store

register = template.Library()


@register.inclusion_tag("fleet/_money.html", takes_context=True)
def run_money(context: template.Context, run: Run) -> dict[str, Any]:
    """Show what a run has cost and what it buys; frozen pages show it as it is now."""
    told = panel(open_store(settings.REDIS_URL), run, now=timezone.now())
    return told | {"role": context.get("role")}


@register.filter
def moment(unix_s: float) -> datetime:
    """Return Unix seconds as a moment."""
    return datetime.fromtimestamp(unix_s, UTC)


@register.filter
def dollars(value: float | None) -> str:
    """Write dollars to the cent, so that a reader can add them up; an unknown price is a dash."""
    return ABSENT if value is None or math.isnan(value) else f"${value:,.2f}"
