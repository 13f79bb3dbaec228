"""The timeline of an alert, and the outbox: each entry enqueues the notifications it causes."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from fleet.alerts.causes import cause_name, part_text, shared_cause
from fleet.alerts.evidence import Evidence
from fleet.alerts.matchers import matches, parse_matchers, silences_of
from fleet.alerts.text import LOCATED_WITHIN, is_located
from fleet.formatting import counted, listed, seconds
from fleet.models import Alert, AlertEvent, Delivery, NotifiedState, Receiver, Route
from telemetry.detect import RULES, Finding
from telemetry.detect.causes import UNKNOWN
from telemetry.errors import FieldError

Kind = AlertEvent.Kind
LONGEST = 500
# After these the text of an alert differs. Charts frozen at the entry show the text of then.
CHANGES_TEXT = {
    *(Kind.FIRED, Kind.REFIRED, Kind.RULE_CHANGED),
    *(Kind.CAUSE_CHANGED, Kind.WORSENED, Kind.LEARNED),
}


def note(alert: Alert, kind: Kind, *, now: datetime, by: str = "", text: str = "") -> AlertEvent:
    """Add to the timeline and to the outbox; call it in the transaction of the change."""
    event = AlertEvent.objects.create(
        alert=alert,
        at=now,
        kind=kind,
        by=by,
        text=text[:LONGEST],
        snapshot=alert.snapshot if kind in CHANGES_TEXT else {},
    )
    enqueue(alert, event, now=now)
    return event


def change(alert: Alert, *, if_still: dict[str, Any], to: dict[str, Any]) -> bool:
    """Change an alert by compare-and-set, in the database and in memory."""
    if not Alert.objects.filter(pk=alert.pk, **if_still).update(**to):
        return False
    for name, value in to.items():
        setattr(alert, name, value)
    return True


def summary(finding: Finding) -> str:
    """Write severity, cause and location in one line for the timeline."""
    rule = RULES[finding.rule]
    is_stated = finding.cause == UNKNOWN and rule.explains_itself
    cause = in_sentence(rule.title) if is_stated else cause_name(finding.cause)
    place = Evidence(finding.evidence).shared_place
    if place:
        cause = f"{place}: {shared_cause(finding.cause)}"
        cause += f": {listed(finding.accused)}" if finding.accused else ""
    elif finding.node is not None:
        cause += f" at {finding.node}"
    elif finding.nodes:
        cause += f": {nodes_text(finding)}"
    if finding.device is not None and not place:
        cause += f", {part_text(finding.part, finding.device)}"
    return f"{severity_text(finding)}; {cause}" if "share_ratio" in finding.evidence else cause


def in_sentence(title: str) -> str:
    """Write the title of a rule as it stands within a sentence.

    >>> in_sentence("Run hangs"), in_sentence("EFA device degraded")
    ('run hangs', 'EFA device degraded')
    """
    return title if title[:2].isupper() else title[:1].lower() + title[1:]


def nodes_text(finding: Finding) -> str:
    return f"{counted(len(finding.nodes), 'node')}: {listed(finding.nodes)}"


def severity_text(finding: Finding) -> str:
    """Write the all-reduce share, step time or devices; without them, the title of the rule."""
    share = finding.evidence.get("share_ratio")
    step_s, healthy_s = (finding.evidence.get(key) for key in ("step_s", "baseline_step_s"))
    if share is not None:
        return f"at {100 * share:.1f} % of the step"
    if step_s is not None and healthy_s is not None:
        return f"{seconds(step_s)} per step instead of {seconds(healthy_s)}"
    if isinstance(devices := finding.evidence.get("devices"), list):
        return f"{counted(len(devices), 'device')}: {', '.join(map(str, devices))}"
    return in_sentence(RULES[finding.rule].title)


STARTS = frozenset({Kind.FIRED, Kind.REFIRED, Kind.UNSILENCED})
UPDATES = {
    Kind.CAUSE_CHANGED: Delivery.Kind.CHANGED,
    Kind.RULE_CHANGED: Delivery.Kind.CHANGED,
    Kind.ACKNOWLEDGED: Delivery.Kind.ACKNOWLEDGED,
    Kind.UNACKNOWLEDGED: Delivery.Kind.REPEATED,
    Kind.MARKED_FALSE: Delivery.Kind.MARKED_FALSE,
    Kind.UNMARKED_FALSE: Delivery.Kind.CHANGED,
}


@transaction.atomic
def enqueue(alert: Alert, event: AlertEvent, *, now: datetime) -> None:
    """Put the notifications of a timeline entry into the outbox.

    Call it in the transaction that writes the entry: after a crash either both exist or neither.
    Resolutions go to every receiver that was notified, even if the alert is silenced.
    """
    kind = Kind(event.kind)
    if kind == Kind.UNACKNOWLEDGED and not event.by:
        # By becoming a page, which the next entry tells.
        return
    is_end = kind == Kind.RESOLVED
    told_less = alert.notified_states.filter(ended_at=None, labels__severity="warn")
    is_raised = (
        kind in CHANGES_TEXT - STARTS
        and alert.severity == Alert.Severity.PAGE
        and told_less.exists()
    )
    is_start = kind in STARTS or is_raised
    if not is_end and (not (is_start or kind in UPDATES) or silences_of(alert, now=now)):
        return
    if is_start:
        found = receivers_of(alert, routing_table())
        if is_raised:
            # As a page it is another alert for them; what else they receive stays as it was.
            told_less.filter(receiver__in=[each.pk for _, each in found]).update(ended_at=now)
        for route, receiver in found:
            state, is_new = _notified(alert, route, receiver, now=now)
            is_damped = alert.flapping_since is not None and kind == Kind.REFIRED
            if is_new or not (is_damped or is_raised):
                start = Delivery.Kind.FIRING if is_new else Delivery.Kind.REPEATED
                _notify(state, start, event, now=now)
        return
    notified = alert.notified_states.filter(ended_at=None).select_related("receiver", "route")
    for state in notified:
        if not is_end:
            _notify(state, UPDATES[kind], event, now=now)
            continue
        state.ended_at = now
        state.save(update_fields=["ended_at"])
        if state.route is None or state.route.sends_resolved:
            _notify(state, Delivery.Kind.RESOLVED, event, now=now)


def _notified(
    alert: Alert, route: Route, receiver: Receiver, *, now: datetime
) -> tuple[NotifiedState, bool]:
    return NotifiedState.objects.get_or_create(
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


@transaction.atomic
def notify_newcomers(*, now: datetime) -> None:
    """Notify receivers of open alerts that reach them only now: they were added or enabled."""
    # What a silence mutes has an event when that ends.
    open_ = Alert.objects.open().filter(silence=None, fired_at__lt=now)
    alerts = list(open_.select_related("run", "node"))
    table = routing_table() if alerts else []
    known = set(
        NotifiedState.objects.filter(ended_at=None, alert__in=alerts).values_list(
            "alert_id", "receiver_id"
        )
    )
    for alert in alerts:
        new = [r for r in receivers_of(alert, table) if (alert.pk, r[1].pk) not in known]
        if not new or silences_of(alert, now=now):
            continue
        fired = alert.events.filter(kind__in=STARTS).last()
        for route, receiver in new if fired else ():
            state, is_new = _notified(alert, route, receiver, now=now)
            if is_new and fired:
                _notify(state, Delivery.Kind.FIRING, fired, now=now)


def _notify(
    state: NotifiedState, kind: Delivery.Kind, event: AlertEvent, *, now: datetime
) -> None:
    receiver = state.receiver
    if not receiver.is_enabled or not Receiver.Kind(receiver.kind).takes(kind):
        return
    if kind == Delivery.Kind.REPEATED:
        state.last_at = now
        state.save(update_fields=["last_at"])
    enqueue_delivery(
        receiver, kind, event.alert, event, group_key=state.group_key, route=state.route, now=now
    )


# The waiting messages that a notification may join.
JOINS = {
    Delivery.Kind.FIRING: {Delivery.Kind.FIRING},
    Delivery.Kind.CHANGED: {Delivery.Kind.FIRING, Delivery.Kind.CHANGED},
    Delivery.Kind.REPEATED: {Delivery.Kind.REPEATED},
    Delivery.Kind.RESOLVED: {Delivery.Kind.RESOLVED},
}


def enqueue_delivery(
    receiver: Receiver,
    kind: Delivery.Kind,
    alert: Alert,
    event: AlertEvent | None,
    *,
    group_key: str,
    route: Route | None,
    now: datetime,
) -> Delivery:
    """Put a notification into the outbox, or into the waiting message of its group.

    Call it in the transaction of the change that it reports.
    """
    delivery = _waiting(receiver, kind, group_key)
    group_wait = timedelta(
        seconds=route.group_wait_s if route is not None and kind in JOINS else 0
    )
    if delivery is None:
        wait = group_wait
        if kind == Delivery.Kind.FIRING and not is_located(alert):
            wait = max(wait, alert.fired_at + LOCATED_WITHIN - now)
        delivery = Delivery.objects.create(
            receiver=receiver,
            route=route,
            kind=kind,
            group_key=group_key,
            created_at=now,
            next_try_at=now + wait,
        )
    elif kind == Delivery.Kind.CHANGED and is_located(alert):
        # It waited for this.
        due = max(now, delivery.created_at + group_wait)
        waiting = Delivery.objects.filter(pk=delivery.pk, next_try_at__gt=due)
        waiting.update(next_try_at=due)
    delivery.alerts.add(alert)
    if event is not None:
        delivery.events.add(event)
    return delivery


def _waiting(receiver: Receiver, kind: Delivery.Kind, group_key: str) -> Delivery | None:
    """Find the last message of a group if it can be joined, locked until the commit."""
    last = Delivery.objects.unfinished().filter(receiver=receiver, group_key=group_key).last()
    if last is None or last.kind not in JOINS.get(kind, ()):
        return None
    untried = Delivery.objects.filter(
        pk=last.pk, state=Delivery.State.PENDING, n_attempts=0, body__isnull=True
    )
    # Writing to the row serialises this with a sender that claims it.
    return last if untried.update(next_try_at=F("next_try_at")) else None


LONGEST_GROUP_KEY = 200


def routing_table() -> list[Route]:
    """List the routes in the order of evaluation, with their receivers."""
    routes = list(Route.objects.in_order().prefetch_related("receivers"))
    devices = list(Receiver.objects.devices()) if routes else []
    for route in routes:
        route.people = devices
    return routes


def routes_of(alert: Alert, table: Iterable[Route]) -> Iterator[Route]:
    """Yield the routes of an alert: the first that matches, and more if that continues.

    A route with invalid matchers matches every alert: rather one notification too many.
    """
    for route in table:
        try:
            is_match = matches(parse_matchers(route.matchers), alert)
        except FieldError:
            is_match = True
        if is_match:
            yield route
            if not route.goes_on:
                return


def receivers_of(alert: Alert, table: Iterable[Route]) -> list[tuple[Route, Receiver]]:
    """List each enabled receiver of an alert once, with the route that leads to it."""
    receivers: dict[int, tuple[Route, Receiver]] = {}
    for route in routes_of(alert, table):
        for receiver in route.targets(is_page=alert.severity == Alert.Severity.PAGE):
            if receiver.is_enabled:
                receivers.setdefault(receiver.pk, (route, receiver))
    return list(receivers.values())


def group_key_of(route: Route, receiver: Receiver, alert: Alert) -> str:
    """Compute the group of an alert: alerts of one group may share a message."""
    if route.group_by == Route.GroupBy.ALERT or Receiver.Kind(receiver.kind).groups_itself:
        return f"alert {alert.pk}"
    values = {
        "run": alert.run.name if alert.run else alert.subject,
        "team": alert.run.team if alert.run else "",
        "rule": alert.rule,
    }
    group = " ".join(values[field] for field in route.group_by.split(","))
    return f"route {route.pk} {group}"[:LONGEST_GROUP_KEY]


def labels_of(alert: Alert) -> dict[str, str]:
    """List the labels by which other systems know an alert; empty ones are left out."""
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
