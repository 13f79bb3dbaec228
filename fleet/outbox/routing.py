"""Which receivers an alert goes to: the routing table, read from the top."""

from collections.abc import Iterable, Iterator

from fleet.matching import MatcherError, matches, parse_matchers
from fleet.models import Alert, Receiver, Route
from fleet.outbox.traits import traits_of

LONGEST_LANE = 200


def routing_table() -> list[Route]:
    """Return the routes in the order they are tried, with their receivers."""
    return list(Route.objects.in_order().prefetch_related("receivers"))


def takes(route: Route, alert: Alert) -> bool:
    """Whether a route means an alert; one whose matchers cannot be read means every alert."""
    try:
        return matches(parse_matchers(route.matchers), alert)
    except MatcherError:
        return True


def routes_of(alert: Alert, table: Iterable[Route]) -> Iterator[Route]:
    """Yield the routes an alert takes: the first that means it, and more while they go on."""
    for route in table:
        if takes(route, alert):
            yield route
            if not route.goes_on:
                return


def receivers_of(alert: Alert, table: Iterable[Route]) -> list[tuple[Route, Receiver]]:
    """Return each enabled receiver of an alert once, with the route that leads to it."""
    found: dict[int, tuple[Route, Receiver]] = {}
    for route in routes_of(alert, table):
        for receiver in route.receivers.all():
            if receiver.is_enabled:
                found.setdefault(receiver.pk, (route, receiver))
    return list(found.values())


def lane_of(route: Route, receiver: Receiver, alert: Alert) -> str:
    """Name the lane an alert travels in: those who share it may share a message."""
    if route.group_by == Route.GroupBy.ALERT or not traits_of(receiver).is_grouped:
        return f"alert {alert.pk}"
    values = {
        "run": alert.run.name if alert.run else alert.subject,
        "team": alert.run.team if alert.run else "",
        "rule": alert.rule,
    }
    group = " ".join(values[field] for field in route.group_by.split(","))
    return f"route {route.pk} {group}"[:LONGEST_LANE]
