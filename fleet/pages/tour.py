"""The tour: one real incident of the fleet, step by step, from the page to the next shift."""

from typing import Any

from django.conf import settings
from django.db.models import F
from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from fleet.alerts.text import AlertText
from fleet.charts.frozen import frozen_link
from fleet.models import Alert, Trial
from fleet.pages.render import HtmxRequest, render_page

HEADLINE = "allreduce_share"


@require_safe
def tour(request: HtmxRequest) -> HttpResponse:
    return render_page(request, "pages/tour.html", tour_context())


def tour_context() -> dict[str, Any]:
    """Return the newest incident with a culprit: resolved and of the headline rule if possible."""
    now = timezone.now()
    accused = Alert.objects.exclude(node=None).select_related("run", "node")
    newest = F("resolved_at").desc(nulls_last=True)
    whole = accused.exclude(resolved_at=None).filter(rule=HEADLINE).order_by(newest)
    alert = whole.first() or accused.order_by("-fired_at").first()
    if alert is None:
        return {"alert": None, "is_demo": settings.DEMO}
    return {
        "alert": alert,
        "text": AlertText(alert, alert.resolved_at or now),
        "frozen_url": frozen_link(alert, at=alert.resolved_at or now),
        "trial": Trial.objects.order_by("-pk").first(),
        "is_demo": settings.DEMO,
    }
