"""The timeline: every change of an alert as a row, and on its way to whoever must know."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, QuerySet

from fleet.alerts.evidence import cause_name, part_name
from fleet.alerts.matchers import MatcherError, matches, parse_matchers, silences_of
from fleet.formatting import counted, listed, seconds
from fleet.models import Alert, AlertEvent, Delivery, NotifiedState, Receiver, Route
from telemetry.detect import RULES, Finding


def labels_of(alert: Alert) -> dict[str, str]:
    """Return the labels by which other systems know an alert; without those it does not have."""
    labels = {
        "alertname": alert.rule,
        "trnwatch_alert": str(alert.pk),
        "severity": alert.get_severity_display(),
        "run": alert.run.name if alert.run else "",
        "team": alert.run.team if alert.run else "",
        "node": alert.node.name if alert.node else "",
        "drill": "yes" if alert.is_drill else "",
    }
    return {name: value for name, value in labels.items() if value}


# What may still join a message that has not been tried.
JOINS = {
    Delivery.Kind.FIRING: {Delivery.Kind.FIRING},
    Delivery.Kind.CHANGED: {Delivery.Kind.FIRING, Delivery.Kind.CHANGED},
    Delivery.Kind.REPEATED: {Delivery.Kind.REPEATED},
    Delivery.Kind.RESOLVED: {Delivery.Kind.RESOLVED},
}


def post(
    receiver: Receiver,
    kind: Delivery.Kind,
    alert: Alert,
    event: AlertEvent | None,
    *,
    group_key: str,
    route: Route | None,
    now: datetime,
) -> Delivery:
    """Put a notification into the outbox, or into the message its group is waiting to send.

    Must be called within the transaction of what it tells of.
    """
    delivery = _waiting(receiver, kind, group_key)
    if delivery is None:
        wait = route.group_wait_s if route is not None and kind in JOINS else 0
        delivery = Delivery.objects.create(
            receiver=receiver,
            route=route,
            kind=kind,
            group_key=group_key,
            created_at=now,
            next_try_at=now + timedelta(seconds=wait),
        )
    delivery.alerts.add(alert)
    if event is not None:
        delivery.events.add(event)
    return delivery


def _waiting(receiver: Receiver, kind: Delivery.Kind, group_key: str) -> Delivery | None:
    """Return the last message of a group if this may join it, locked until the commit."""
    last = Delivery.objects.unfinished().filter(receiver=receiver, group_key=group_key).last()
    if last is None or last.kind not in JOINS.get(kind, ()):
        return None
    untried = Delivery.objects.filter(
        pk=last.pk, state=Delivery.State.PENDING, n_attempts=0, body__isnull=True
    )
    # Writing to the row makes a sender that wants to claim it wait for us, or us see its claim.
    return last if untried.update(next_try_at=F("next_try_at")) else None


KIND = Delivery.Kind
EVERYTHING = frozenset(KIND)


@dataclass(frozen=True, slots=True)
class Traits:
    """How a kind of receiver likes its notifications."""

    takes: frozenset[Delivery.Kind]
    is_grouped: bool = True
    is_reminded: bool = True


# PagerDuty and Alertmanager keep alerts of their own, group and escalate: one alert at a time.
TRAITS = {
    Receiver.Kind.WEBHOOK: Traits(EVERYTHING),
    Receiver.Kind.SLACK: Traits(EVERYTHING),
    Receiver.Kind.EMAIL: Traits(EVERYTHING - {KIND.ACKNOWLEDGED}),
    Receiver.Kind.PAGERDUTY: Traits(EVERYTHING, is_grouped=False, is_reminded=False),
    Receiver.Kind.ALERTMANAGER: Traits(
        frozenset({KIND.FIRING, KIND.CHANGED, KIND.RESOLVED, KIND.TEST}),
        is_grouped=False,
        is_reminded=False,
    ),
}


def traits_of(receiver: Receiver) -> Traits:
    """Return what a receiver takes."""
    return TRAITS[Receiver.Kind(receiver.kind)]


LONGEST_GROUP_KEY = 200


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


def group_key_of(route: Route, receiver: Receiver, alert: Alert) -> str:
    """Return the key of an alert's group: alerts of one group may share a message."""
    if route.group_by == Route.GroupBy.ALERT or not traits_of(receiver).is_grouped:
        return f"alert {alert.pk}"
    values = {
        "run": alert.run.name if alert.run else alert.subject,
        "team": alert.run.team if alert.run else "",
        "rule": alert.rule,
    }
    group = " ".join(values[field] for field in route.group_by.split(","))
    return f"route {route.pk} {group}"[:LONGEST_GROUP_KEY]


EVENT_KIND = AlertEvent.Kind
STARTS = frozenset({EVENT_KIND.FIRED, EVENT_KIND.REFIRED, EVENT_KIND.UNSILENCED})
GOES_ON = {
    EVENT_KIND.CAUSE_CHANGED: Delivery.Kind.CHANGED,
    EVENT_KIND.RULE_CHANGED: Delivery.Kind.CHANGED,
    EVENT_KIND.ACKNOWLEDGED: Delivery.Kind.ACKNOWLEDGED,
    EVENT_KIND.UNACKNOWLEDGED: Delivery.Kind.REPEATED,
}


@transaction.atomic
def enqueue(alert: Alert, event: AlertEvent, *, now: datetime) -> None:
    """Put the notifications of a timeline event into the outbox.

    Must be called within the transaction that writes the event: then either both are there
    after a crash or neither is. Without receivers it does nothing.
    """
    kind = EVENT_KIND(event.kind)
    if kind == EVENT_KIND.RESOLVED:
        _notify_end(alert, event, now=now)
    elif kind in STARTS:
        if not silences_of(alert, now=now):
            _notify_start(alert, event, now=now)
    elif kind in GOES_ON and not silences_of(alert, now=now):
        for state in _notified(alert):
            _notify(state, GOES_ON[kind], event, now=now)


def _notify_start(alert: Alert, event: AlertEvent, *, now: datetime) -> None:
    for route, receiver in receivers_of(alert, routing_table()):
        state, is_new = NotifiedState.objects.get_or_create(
            receiver=receiver,
            alert=alert,
            ended_at=None,
            defaults={
                "route": route,
                "group_key": group_key_of(route, receiver, alert),
                "labels": labels_of(alert),
                "since": now,
                "last_at": now,
            },
        )
        is_damped = alert.flapping_since is not None and event.kind == EVENT_KIND.REFIRED
        if is_new or not is_damped:
            kind = Delivery.Kind.FIRING if is_new else Delivery.Kind.REPEATED
            _notify(state, kind, event, now=now)


def _notified(alert: Alert) -> QuerySet[NotifiedState]:
    """Return what receivers know of an alert whose end they were not notified of."""
    return alert.notified_states.filter(ended_at=None).select_related("receiver", "route")


def _notify_end(alert: Alert, event: AlertEvent, *, now: datetime) -> None:
    """Notify the receivers that know the alert that it is resolved, silenced or not."""
    for state in _notified(alert):
        state.ended_at = now
        state.save(update_fields=["ended_at"])
        if state.route is None or state.route.sends_resolved:
            _notify(state, Delivery.Kind.RESOLVED, event, now=now)


def _notify(
    state: NotifiedState, kind: Delivery.Kind, event: AlertEvent, *, now: datetime
) -> None:
    receiver = state.receiver
    if not receiver.is_enabled or kind not in traits_of(receiver).takes:
        return
    if kind == Delivery.Kind.REPEATED:
        state.last_at = now
        state.save(update_fields=["last_at"])
    post(receiver, kind, event.alert, event, group_key=state.group_key, route=state.route, now=now)


Kind = AlertEvent.Kind
LONGEST = 500
# What an alert says changes with these: links frozen in time show what it said then.
SPEAKING = {
    *(Kind.FIRED, Kind.REFIRED, Kind.RULE_CHANGED),
    *(Kind.CAUSE_CHANGED, Kind.WORSENED, Kind.LEARNED),
}


def note(alert: Alert, kind: Kind, *, now: datetime, by: str = "", text: str = "") -> AlertEvent:
    """Add to the timeline and to the outbox; call it in the transaction of the change."""
    snapshot = alert.said if kind in SPEAKING else {}
    event = AlertEvent.objects.create(
        alert=alert, at=now, kind=kind, by=by, text=text[:LONGEST], snapshot=snapshot
    )
    enqueue(alert, event, now=now)
    return event


def change(alert: Alert, *, if_still: dict[str, Any], to: dict[str, Any]) -> bool:
    """Change an alert if it is still as we believe, and the one in hand with it."""
    if not Alert.objects.filter(pk=alert.pk, **if_still).update(**to):
        return False
    for name, value in to.items():
        setattr(alert, name, value)
    return True


def blame(finding: Finding) -> str:
    """Say how bad it is, why and where, in a line for the timeline."""
    cause = cause_name(finding.cause)
    if finding.node is not None:
        cause += f" at {finding.node}"
    elif finding.nodes:
        cause += f": {how_many(finding)}"
    if finding.device is not None:
        cause += f", {part_name(finding.cause) or 'device'} {finding.device}"
    return f"{how_bad(finding)}; {cause}" if "share_ratio" in finding.evidence else cause


def how_many(finding: Finding) -> str:
    """Say how many nodes are accused, and which."""
    return f"{counted(len(finding.nodes), 'node')}: {listed(finding.nodes)}"


def how_bad(finding: Finding) -> str:
    """Say how bad it is: the share, the time of a step, or only what it is."""
    share = finding.evidence.get("share_ratio")
    step_s, healthy_s = (finding.evidence.get(key) for key in ("step_s", "baseline_step_s"))
    if share is not None:
        return f"at {100 * share:.1f} % of the step"
    if step_s is not None and healthy_s is not None:
        return f"{seconds(step_s)} per step in place of {seconds(healthy_s)}"
    return RULES[finding.rule].title.lower()
