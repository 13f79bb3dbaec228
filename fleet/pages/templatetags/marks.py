"""Template tags for states (shape, word and colour) and for shares (bars)."""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from django import template
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.checks.support import check_summary
from fleet.formatting import ABSENT, NBSP, badge, duration, percent
from fleet.models import Delivery, SupportCheck
from fleet.notifications.channels import refusal_of

register = template.Library()
register.filter("refusal", refusal_of)

# word → (colour class, shape)
STATES = {
    "firing": ("bad", "▲"),
    "acknowledged": ("ack", "●"),
    "recovering": ("warn", "◔"),
    "resolved": ("ok", "✓"),
    "silent": ("bad", "▲"),
    "up": ("ok", "✓"),
    "stale": ("warn", "◔"),
    "waiting": ("", "○"),
    "unknown": ("", "○"),
    "pending": ("", "○"),
    "compiling": ("warn", "◐"),
    "warming_up": ("warn", "◕"),
    # The phase of a run. Its health has a tag of its own.
    "training": ("", "▸"),
    # It is training by its phase, but makes no steps.
    "hangs": ("bad", "■"),
    "stopped": ("warn", "■"),
    "refused": ("warn", "■"),
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
    "retired": ("", "□"),
    # What detection makes of a cause.
    "likely": ("bad", "▲"),
    "possible": ("warn", "◐"),
    "rejected": ("", "✕"),
    "not measured": ("", "○"),
}
FULL_BAR_RATIO = 0.5
EMPTY_BAR = SafeString('<svg class="spread" role="img" aria-label="no data"></svg>')


@register.simple_tag
@lru_cache(maxsize=1024)
def tag(state: str, words: str = "", extra: str = "") -> SafeString:
    """Render a state tag; ``words`` replaces its name, ``extra`` is one more CSS class."""
    colour, shape = STATES.get(str(state), ("", "○"))
    return badge(colour, shape, words or str(state).replace("_", " "), extra)


@register.inclusion_tag("charts/_share.svg")
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


# outcome → (colour class, shape, text)
OUTCOMES = {
    "noticed": ("ok", "✓", "detected"),
    "missed": ("bad", "✕", "missed"),
    "waiting": ("ack", "◇", "not detected yet"),
    "planned": ("", "○", "scheduled"),
    "faint": ("", "○", "not scored"),
}


@register.simple_tag
def outcome(result: Any, extra: str = "") -> SafeString:
    """Render whether a fault was detected, and after how long."""
    colour, shape, words = OUTCOMES[result.outcome]
    after = f" after {soon(result.delay_s)}" if result.delay_s is not None else ""
    return badge(colour, shape, f"{words}{after}", extra)


@register.simple_tag
def verdict(named: str, right: str, wrong: str) -> SafeString:
    """Render a correct or wrong detection result, with the words for each."""
    is_right = named == "right"
    return badge(*(("ok", "✓", right) if is_right else ("bad", "✕", wrong)), "small")


@register.filter
@lru_cache(maxsize=128)
def symptom(name: str) -> str:
    """Name a symptom of detection; by its key if it is unknown."""
    try:
        return get_template(f"alerts/_symptoms.html#{name}").render().strip()
    except TemplateDoesNotExist:
        return name.replace("_", " ")


@register.filter
def symptoms(found: Iterable[tuple[str, str]]) -> str:
    """List symptoms with their directions: step time raised, HBM bandwidth lowered."""
    return ", ".join(f"{symptom(name)} {direction}".strip() for name, direction in found)


@register.filter
def soon(value: float | None) -> str:
    """Format a duration: whole seconds up to two minutes."""
    if value is None:
        return ABSENT
    return f"{value:.0f}{NBSP}s" if value < 120 else duration(value)


@register.filter
def times(value: float | None) -> str:
    """Format a factor with a multiplication sign and two decimals."""
    return ABSENT if value is None else f"\u00d7 {value:.2f}"


State = Delivery.State
# (colour class, shape, word)
MARKS = {
    State.PENDING: ("", "○", "pending"),
    State.SENDING: ("warn", "◐", "sending"),
    State.SENT: ("ok", "✓", "sent"),
    State.DEAD: ("bad", "✕", "failed"),
    State.DROPPED: ("", "■", "dropped"),
}
RETRYING = ("warn", "◔", "retrying")


@register.simple_tag
def delivery_tag(delivery: Delivery) -> SafeString:
    state = State(delivery.state)
    is_retrying = state == State.PENDING and delivery.n_attempts > 0
    return badge(*(RETRYING if is_retrying else MARKS[state]))


register.filter(check_summary)


@register.simple_tag
def support_tag(check: SupportCheck) -> SafeString:
    """Render a check by its worst operator."""
    if check.n_unsupported:
        return badge("bad", "▲", "unsupported", "small")
    if check.n_unknown:
        return badge("warn", "?", "unknown", "small")
    return badge("ok", "✓", "supported", "small")
