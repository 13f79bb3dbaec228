"""What can be done about an alert, and who does it, wherever alerts are shown."""

from typing import Any

from django import template
from django.utils import timezone

from fleet.access.people import names
from fleet.matching import meaning, written
from fleet.models import Alert
from fleet.silences.spans import SPANS

register = template.Library()


@register.inclusion_tag("fleet/_alert_actions.html", takes_context=True)
def alert_actions(context: template.Context, alert: Alert) -> dict[str, Any]:
    """Offer to give an alert to somebody, silence it, give it back or call it over."""
    return {
        "alert": alert,
        "people": [name for name in names() if name != alert.assigned_to],
        "matchers": written(meaning(alert)),
        "spans": {name: words for name, words in SPANS.items() if name != "until"},
        "is_silenced": alert.is_silenced(timezone.now()),
        "csrf_token": context.get("csrf_token"),
        "live": context.get("live"),
    }


@register.inclusion_tag("fleet/_alert_marks.html", takes_context=True)
def alert_marks(
    context: template.Context, alert: Alert, *, is_full: bool = False
) -> dict[str, Any]:
    """Mark an alert as silenced, assigned, flapping or recurring; ask for it with its silence.

    On a page frozen in time ``moment`` is when it stands still.
    """
    now = context.get("moment") or timezone.now()
    return {"alert": alert, "is_silenced": alert.is_silenced(now), "is_full": is_full}
