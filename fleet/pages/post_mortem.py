"""The post-mortem of an alert: Markdown that is correct without editing."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.template.loader import render_to_string

from fleet.alerts.text import AlertText, facts, ruled_out
from fleet.charts.frozen import figures_of, frozen_link
from fleet.models import Alert, AlertEvent
from fleet.pages.alert_context import RecentChange, RelatedAlert, changes_of, similar_alerts
from telemetry.detect import RULES
from telemetry.store.reading import Source


def post_mortem(
    source: Source,
    alert: Alert,
    events: Sequence[AlertEvent],
    neighbours: Sequence[RelatedAlert],
    *,
    now: datetime,
    root: str,
) -> str:
    """Write the post-mortem of an alert; ``root`` goes before the addresses of pages."""
    similar = similar_alerts(alert, neighbours)
    changes = changes_of(source, alert, neighbours, now=now)
    acknowledged = next((event for event in events if event.kind == event.Kind.ACKNOWLEDGED), None)
    context: dict[str, Any] = {
        "alert": alert,
        "text": AlertText(alert, now),
        "now": now,
        "root": root,
        "fired_after": alert.fired_at - alert.onset_at,
        "acknowledged": acknowledged,
        "acknowledged_after": acknowledged and acknowledged.at - alert.fired_at,
        "timeline": _timeline(alert, events, changes),
        "facts": facts(alert, recurring=similar.recurring),
        "figures": figures_of(source, alert, now=now),
        "ruled_out": ruled_out(alert),
        "frozen_link": frozen_link(alert, at=alert.resolved_at or now),
        "has_runbook": alert.rule in RULES,
        "changes": changes,
        "actions": [(event, event.at - alert.fired_at) for event in events if event.by],
        "similar": similar.alerts,
    }
    return re.sub(r"\n{3,}", "\n\n", render_to_string("alerts/post_mortem.md", context))


def _timeline(
    alert: Alert, events: Sequence[AlertEvent], changes: Sequence[RecentChange]
) -> list[tuple[datetime, str, str, str]]:
    """Return everything that happened, in order: when, what kind, what, by whom."""
    rows = [(alert.onset_at, "began", "", "")]
    rows += [(e.at, e.get_kind_display().lower(), e.text, e.by) for e in events]
    rows += [(c.at, c.kind, c.text, c.by) for c in changes]
    return sorted(rows, key=lambda row: row[0])
