"""Marks that say a state by shape, word and colour, and a share by length and hatching."""

import math
from functools import lru_cache
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.templatetags.units import percent

register = template.Library()

# word → (colour class, shape)
STATES = {
    "firing": ("bad", "▲"),
    "acknowledged": ("ack", "●"),
    "resolved": ("ok", "✓"),
    "silent": ("bad", "▲"),
    "up": ("ok", "✓"),
    "stale": ("warn", "◔"),
    "pending": ("", "○"),
    "compiling": ("warn", "◐"),
    "warming_up": ("warn", "◕"),
    # What a run does says nothing of how well it does: that is a mark of its own.
    "training": ("", "▸"),
    "healthy": ("ok", "✓"),
    "over_limit": ("bad", "▲"),
    "finished": ("", "■"),
    "failed": ("bad", "✕"),
    "page": ("bad", "▲"),
    "warn": ("warn", "△"),
    "drill": ("ack", "◇"),
    "idle": ("", "○"),
    "pass": ("ok", "✓"),
    "hold": ("warn", "△"),
    "fail": ("bad", "✕"),
    "probing": ("warn", "◐"),
    "released": ("", "■"),
}
FULL_BAR_RATIO = 0.5
EMPTY_BAR = SafeString('<svg class="spread" role="img" aria-label="no data"></svg>')


@register.simple_tag
@lru_cache(maxsize=1024)
def tag(state: str, words: str = "", extra: str = "") -> SafeString:
    """Mark a state; ``words`` in place of its name, ``extra`` a further class (small)."""
    colour, shape = STATES.get(str(state), ("", "○"))
    return format_html(
        '<span class="{}"><span aria-hidden="true">{}</span> {}</span>',
        " ".join(filter(None, ("tag", colour, extra))),
        shape,
        words or str(state).replace("_", " "),
    )


@register.inclusion_tag("fleet/_share.svg")
def share_bar(
    transfer_ratio: float | None, wait_ratio: float | None, limit_ratio: float = 0.25
) -> dict[str, Any]:
    """Draw how much of a step is all-reduce: transferring, then waiting, and the limit."""
    known = [math.isfinite(x) if x is not None else False for x in (transfer_ratio, wait_ratio)]
    transfer = transfer_ratio if transfer_ratio is not None and known[0] else 0.0
    wait = wait_ratio if wait_ratio is not None and known[1] else 0.0
    label = (
        f"{percent(transfer + wait)} of the step: {percent(transfer)} transferring, "
        f"{percent(wait)} waiting; limit {percent(limit_ratio, 0)}"
        if any(known)
        else "no steps yet"
    )
    return {
        "label": label,
        "transfer": f"{min(transfer / FULL_BAR_RATIO, 1) * 100:.1f}",
        "wait": f"{min(wait / FULL_BAR_RATIO, 1) * 100:.1f}",
        "limit": f"{min(limit_ratio / FULL_BAR_RATIO, 1) * 100:.1f}",
    }


@register.simple_tag
def spread_bar(low: float | None, mean: float | None, high: float | None) -> SafeString:
    """Draw from the lowest to the highest of a node's cores, and a tick at their mean."""
    if low is None or mean is None or high is None:
        return EMPTY_BAR
    return format_html(
        '<svg class="spread" role="img" aria-label="cores between {} and {}, mean {}">'
        '<rect class="range" x="{}%" width="{}%" y="3" height="8"/>'
        '<rect class="mean" x="{}%" width="2" height="14"/></svg>',
        percent(low, 0),
        percent(high, 0),
        percent(mean, 0),
        f"{100 * low:.1f}",
        f"{max(100 * (high - low), 0.8):.1f}",
        f"{100 * mean:.1f}",
    )
