"""Nodes and runs as they were while a page's window lasted, in a sentence each."""

from datetime import UTC, datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet.models import Node
from fleet.summaries import RunNow
from fleet.templatetags.units import count, percent, seconds, si, usd


def of_run_then(then: RunNow, *, n_steps: int, start_s: float, end_s: float) -> SafeString:
    """Say how a run got on in a window."""
    if not n_steps:
        text = "<b>{}</b> finished no step {}."
        return format_html(text, then.run.name, _window(start_s, end_s))
    return format_html(
        "{} <b>{}</b> took <b>{}</b> step{} of <b>{}</b>, <b{}>{}</b> of it in all-reduce: "
        "{} tokens/s at <b>{}</b> per 1M.",
        _window(start_s, end_s).replace("from", "From", 1),
        then.run.name,
        count(n_steps),
        "" if n_steps == 1 else "s",
        seconds(then.step_s),
        SafeString(' class="bad-text"') if then.is_over_limit else "",
        percent(then.share_ratio),
        si(then.tokens_per_s),
        usd(then.usd_per_mtok),
    )


def of_node_then(node: Node, *, start_s: float, end_s: float) -> SafeString:
    """Say what a node's page shows of a window, and where it stands now."""
    return format_html(
        'What <b>{}</b> did {} stands in the charts; how it is now, on <a href="{}">its page</a>.',
        node.name,
        _window(start_s, end_s),
        node.get_absolute_url(),
    )


def _window(start_s: float, end_s: float) -> str:
    first, last = (datetime.fromtimestamp(second, UTC) for second in (start_s, end_s))
    day = "" if first.date() == last.date() else f"{last:%-d %b} "
    return f"from {first:%-d %b %H:%M:%S} to {day}{last:%H:%M:%S} UTC"
