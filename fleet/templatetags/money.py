"""Money as its pages write it: dollars to the cent, and the moments of a tariff."""

import math
from datetime import UTC, datetime

from django import template

from fleet.templatetags.units import ABSENT

register = template.Library()


@register.filter
def moment(unix_s: float) -> datetime:
    """Return Unix seconds as a moment."""
    return datetime.fromtimestamp(unix_s, UTC)


@register.filter
def dollars(value: float | None) -> str:
    """Write dollars to the cent, so that a reader can add them up; an unknown price is a dash."""
    return ABSENT if value is None or math.isnan(value) else f"${value:,.2f}"


@register.filter
def per_hour(value: float | None) -> str:
    """Write a price: to the cent, and finer where it is: $35.7608, $0.512, $21.50."""
    if value is None or math.isnan(value):
        return ABSENT
    text = f"{value:,.5f}".rstrip("0")
    return f"${text}" if len(text.partition(".")[2]) >= 2 else f"${value:,.2f}"
