"""The page of notifications: what was not delivered, who is told, by which routes, and the log."""

from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Count, Q
from django.http import HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from fleet.access.rights import may
from fleet.models import Change, Delivery, Receiver, SenderPulse
from fleet.notify.listing import deliveries, rows_of
from fleet.notify.previewing import preview, recent_alerts
from fleet.outbox.routing import routing_table
from fleet.views.render import HtmxRequest, render_page

PARTIALS = ("sending", "dead", "receivers", "log")
N_LATEST, N_DEAD, N_CHANGES = 15, 50, 10
State = Delivery.State


def notifications_context() -> dict[str, Any]:
    """Return what changes by itself: who is told, what was not delivered, what was of late."""
    dead, latest = rows_of(
        deliveries().filter(state=State.DEAD)[:N_DEAD],
        deliveries().exclude(state=State.DEAD)[:N_LATEST],
    )
    return {
        "receivers": receivers(),
        "dead": dead,
        "latest": latest,
        **sending(now=timezone.now()),
    }


@require_safe
def notification_list(request: HtmxRequest) -> HttpResponse:
    """Show who is told of alerts, and whether they were."""
    table = routing_table()
    routes, lost = preview(table, recent_alerts(now=timezone.now()))
    context = notifications_context() | {
        "kinds": Receiver.Kind.choices,
        "routes": routes,
        "has_default": any(route.is_default for route in table),
        "lost": lost if table else [],
        "changes": Change.objects.all()[:N_CHANGES],
        "can_manage": may(request.user, "admin"),
    }
    return render_page(request, "fleet/notification_list.html", context, partials=PARTIALS)


def receivers() -> list[Receiver]:
    """Return every receiver with what waits for it."""
    unfinished = Q(deliveries__state__in=(State.PENDING, State.SENDING))
    tried = unfinished & Q(deliveries__n_attempts__gt=0)
    return list(
        Receiver.objects.annotate(
            n_waiting=Count("deliveries", filter=unfinished),
            n_failing=Count("deliveries", filter=tried),
            n_unhandled=Count("deliveries", filter=Q(deliveries__state=State.DEAD)),
        )
    )


def sending(*, now: datetime) -> dict[str, Any]:
    """Return whether anybody sends, and whether the dead man's switch is held."""
    latest = SenderPulse.objects.first()
    return {
        "sender": latest,
        "is_sending": latest is not None and latest.is_alive(now),
        "has_switch": bool(settings.HEARTBEAT_URL),
        "has_mail": bool(settings.SMTP_URL),
    }
