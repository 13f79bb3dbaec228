"""What routes would catch: each open and recent alert, laid beside the routing table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Q

from fleet.matching import MatcherError, matches, parse_matchers
from fleet.models import Alert, Receiver, Route
from fleet.notify.listing import About
from fleet.outbox.routing import routes_of

RECENT = timedelta(days=1)
MOST = 200
N_SHOWN = 12


@dataclass(slots=True)
class Caught:
    """A route, what it would catch, and what is wrong with it."""

    route: Route
    alerts: list[Alert] = field(default_factory=list)
    error: str = ""

    @property
    def receivers(self) -> list[Receiver]:
        """Return where the route leads."""
        return list(self.route.receivers.all())

    @property
    def abouts(self) -> list[About]:
        """Say what the first of the alerts are about."""
        return [About.of(alert) for alert in self.alerts[:N_SHOWN]]

    @property
    def n_more(self) -> int:
        """How many alerts there are beyond those."""
        return max(0, len(self.alerts) - N_SHOWN)

    @property
    def leads_nowhere(self) -> bool:
        """Whether nobody would be told."""
        return not any(receiver.is_enabled for receiver in self.receivers)


def recent_alerts(*, now: datetime) -> list[Alert]:
    """Return the open alerts, and those of the last day, the newest first."""
    wanted = Alert.objects.filter(Q(resolved_at=None) | Q(fired_at__gt=now - RECENT))
    return list(wanted.select_related("run", "node").order_by("-fired_at")[:MOST])


def preview(table: Sequence[Route], alerts: Iterable[Alert]) -> tuple[list[Caught], list[Alert]]:
    """Return what each route catches, and the alerts that none does."""
    rows = {route.pk: Caught(route, error=_error(route)) for route in table}
    lost = []
    for alert in alerts:
        taken = list(routes_of(alert, table))
        for route in taken:
            rows[route.pk].alerts.append(alert)
        if not taken:
            lost.append(alert)
    return list(rows.values()), lost


def _error(route: Route) -> str:
    try:
        parse_matchers(route.matchers)
    except MatcherError as error:
        return str(error)
    return ""


def caught(matchers: str, alerts: Iterable[Alert]) -> list[Alert]:
    """Return the alerts that matchers mean; raises MatcherError where they cannot be read."""
    parsed = parse_matchers(matchers)
    return [alert for alert in alerts if matches(parsed, alert)]
