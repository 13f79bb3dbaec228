"""Reminders: what fires, and nobody has taken, is said again."""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from django.db import transaction
from django.db.models import F, Q

from fleet.alerts.events import post, traits_of
from fleet.alerts.matchers import MatcherError, silences_of
from fleet.models import Delivery, NotifiedState, Receiver, Route
from fleet.models.delivery import DeliveryQuerySet
from fleet.notifications.channels import CHANNELS, Body, postable
from fleet.notifications.http_client import AddressError, HttpClient, HttpResult, UnreachableError
from fleet.notifications.messages import Message, item_of, message_of

OK = range(200, 300)
REDIRECTS = range(300, 400)
FOR_GOOD = range(400, 500)
# What asks for patience although it begins with a four, or moves for good with a three.
PASSING = frozenset({408, 425, 429})
MOVED = frozenset({301, 308})
LONGEST_WAIT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """How an attempt ended."""

    is_sent: bool = False
    is_final: bool = False
    status: int | None = None
    why: str = ""
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and for how long a receiver is tried."""

    first_s: float = 2.0
    longest_s: float = 60.0
    factor: float = 2.0
    give_up_after: timedelta = timedelta(hours=12)
    min_attempts: int = 5
    max_attempts: int = 1000

    def pause(self, n_attempts: int, *, dice: random.Random) -> timedelta:
        """Return how long to wait after so many failed attempts.

        Grows exponentially up to a limit; half of it is chance, so that what failed together
        does not come back together.
        """
        power = min(n_attempts - 1, 32)
        pause_s = min(self.longest_s, self.first_s * self.factor**power)
        return timedelta(seconds=pause_s * (0.5 + 0.5 * dice.random()))

    def is_over(self, n_attempts: int, waited: timedelta) -> bool:
        """Whether a notification that failed so often, so long, is given up."""
        is_late = waited >= self.give_up_after and n_attempts >= self.min_attempts
        return is_late or n_attempts >= self.max_attempts


def outcome_of(answer: HttpResult, *, is_confirmed: bool, now: datetime) -> DeliveryResult:
    """Judge an answer by its status, and by whether the receiver itself gave it."""
    status, said = answer.status, f": {answer.said}" if answer.said else ""
    if status in OK and is_confirmed:
        return DeliveryResult(is_sent=True, status=status)
    if status in OK:
        return DeliveryResult(status=status, why=f"{status}, but not from such a receiver{said}")
    if status in REDIRECTS:
        why = f"{status}: it has moved to {answer.location[:120] or 'elsewhere'}; not followed"
        return DeliveryResult(is_final=status in MOVED, status=status, why=why)
    return DeliveryResult(
        is_final=status in FOR_GOOD and status not in PASSING,
        status=status,
        why=f"{status}{said}",
        retry_after=_asked(answer.retry_after, now=now),
    )


def _asked(text: str, *, now: datetime) -> timedelta | None:
    """Read Retry-After, seconds or a date; what cannot be read asks for nothing."""
    text = text.strip()
    if text.isdecimal() and len(text) < 10:
        return min(timedelta(seconds=int(text)), LONGEST_WAIT)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max(at - now, timedelta()), LONGEST_WAIT)


KIND = Delivery.Kind.UNDELIVERED
# One receiver that is gone is said once in so long, however much it was to be sent.
QUIET = timedelta(hours=1)
LONGEST = 300


def tell_others(delivery: Delivery, why: str, *, now: datetime) -> None:
    """Put word into the outbox for the other receivers of the route, and of the default one."""
    if delivery.kind == KIND:
        return
    text = f"Could not notify {delivery.receiver} ({delivery.get_kind_display().lower()}): {why}"
    group_key = f"undelivered {delivery.receiver_id}"
    recent = Delivery.objects.filter(kind=KIND, group_key=group_key, created_at__gt=now - QUIET)
    known = set(recent.values_list("receiver_id", flat=True))
    for other in _others(delivery):
        if other.pk not in known and KIND in traits_of(other).takes:
            Delivery.objects.create(
                receiver=other,
                kind=KIND,
                group_key=group_key,
                created_at=now,
                next_try_at=now,
                note=text[:LONGEST],
            ).alerts.set(delivery.alerts.all())


def _others(delivery: Delivery) -> Iterator[Receiver]:
    routes = Route.objects.filter(Q(pk=delivery.route_id) | Q(is_default=True))
    near = Receiver.objects.enabled().filter(routes__in=routes).distinct()
    yield from near.exclude(pk=delivery.receiver_id)


LONGEST_ERROR = 300
State = Delivery.State


def due(*, now: datetime, busy: Collection[int], limit: int) -> list[Delivery]:
    """Return what is to be sent now, the longest overdue first, none to busy receivers."""
    found = Delivery.objects.due(now).filter(receiver__is_enabled=True)
    found = found.exclude(receiver__in=busy).order_by("next_try_at", "pk")
    return list(found.select_related("receiver", "route")[:limit])


def claim(delivery: Delivery, *, by: str, lease: timedelta, now: datetime) -> bool:
    """Take a delivery if it is still as we read it; False where somebody was quicker."""
    as_read = Q(pk=delivery.pk, state=delivery.state, n_attempts=delivery.n_attempts)
    if delivery.state == State.SENDING:
        as_read &= Q(claimed_by=delivery.claimed_by, claimed_until=delivery.claimed_until)
    taken = Delivery.objects.filter(as_read).update(
        state=State.SENDING,
        n_attempts=F("n_attempts") + 1,
        claimed_by=by,
        claimed_until=now + lease,
    )
    if taken:
        delivery.state, delivery.claimed_by = State.SENDING, by
        delivery.n_attempts, delivery.claimed_until = delivery.n_attempts + 1, now + lease
    return bool(taken)


def extend(held: Collection[int], *, by: str, lease: timedelta, now: datetime) -> None:
    """Keep what we still send."""
    mine = Delivery.objects.filter(pk__in=held, state=State.SENDING, claimed_by=by)
    mine.update(claimed_until=now + lease)


def fix_body(delivery: Delivery, body: object) -> bool:
    """Fix what is sent, once and for all attempts; False where the delivery is no longer ours."""
    delivery.body = body
    return bool(_mine(delivery).update(body=body))


def _mine(delivery: Delivery) -> DeliveryQuerySet:
    return Delivery.objects.filter(
        pk=delivery.pk,
        state=State.SENDING,
        claimed_by=delivery.claimed_by,
        n_attempts=delivery.n_attempts,
    )


@transaction.atomic
def settle(
    delivery: Delivery,
    outcome: DeliveryResult,
    *,
    patience: RetryPolicy,
    dice: random.Random,
    now: datetime,
) -> str:
    """Write down how an attempt ended; gives the delivery's new state, or "" if not ours."""
    waited = now - delivery.created_at
    is_over = outcome.is_final or patience.is_over(delivery.n_attempts, waited)
    state = State.SENT if outcome.is_sent else State.DEAD if is_over else State.PENDING
    pause = patience.pause(delivery.n_attempts, dice=dice)
    changed = _mine(delivery).update(
        state=state,
        ended_at=None if state == State.PENDING else now,
        next_try_at=now + max(pause, outcome.retry_after or pause),
        claimed_by="",
        claimed_until=None,
        last_status=outcome.status,
        last_error=outcome.why[:LONGEST_ERROR],
    )
    if not changed:
        return ""
    _count(delivery.receiver_id, outcome, state, now=now)
    if state == State.DEAD:
        tell_others(delivery, outcome.why, now=now)
    return state


def _count(receiver: int, outcome: DeliveryResult, state: str, *, now: datetime) -> None:
    """Add the attempt to what the receiver is known for."""
    this = Receiver.objects.filter(pk=receiver)
    if outcome.is_sent:
        this.update(n_sent=F("n_sent") + 1, last_sent_at=now)
        return
    this.update(
        n_failed=F("n_failed") + 1,
        n_dead=F("n_dead") + int(state == State.DEAD),
        last_failed_at=now,
        last_error=outcome.why[:LONGEST_ERROR],
    )


LOCKED = "target: sealed with a key that is not set; see TRNWATCH_SEALING_KEY_FALLBACKS"


@dataclass(frozen=True, slots=True)
class DeliveryClient:
    """Sends notifications through one door, with links that begin with one address."""

    door: HttpClient
    base_url: str

    def attempt(self, delivery: Delivery, *, now: datetime) -> DeliveryResult | None:
        """Send a delivery that is ours once; None where it is no longer ours."""
        body: Body | None = delivery.body
        if body is None:
            body = CHANNELS[delivery.receiver.kind].render(self._notice(delivery, now=now))
            if not fix_body(delivery, body):
                return None
        return self.send(delivery.receiver, body, key=delivery.key, now=now)

    def send(self, receiver: Receiver, body: Body, *, key: str, now: datetime) -> DeliveryResult:
        """Send what was written; whatever goes wrong is an outcome too."""
        channel = CHANNELS[receiver.kind]
        if receiver.is_locked:
            return DeliveryResult(why=LOCKED)
        try:
            answer = channel.send(receiver, body, key=key, at=now, door=self.door)
        except AddressError as error:
            return DeliveryResult(is_final=True, why=str(error))
        except UnreachableError as error:
            return DeliveryResult(why=str(error))
        return outcome_of(answer, is_confirmed=channel.confirms(answer), now=now)

    def _notice(self, delivery: Delivery, *, now: datetime) -> Message:
        known = NotifiedState.objects.filter(
            receiver=delivery.receiver, alert__deliveries=delivery
        )
        labels = dict(known.order_by("since").values_list("alert_id", "labels"))
        return message_of(delivery, labels, base_url=self.base_url, now=now)


MOST_PER_POST = 500


@dataclass
class Refresher:
    """Knows which Alertmanagers are due, and tells them everything that lasts."""

    every: timedelta = timedelta(seconds=60)
    _next: dict[int, datetime] = field(default_factory=dict)

    def due(self, *, now: datetime) -> list[Receiver]:
        """Return the Alertmanagers that are due."""
        enabled = Receiver.objects.enabled().filter(kind=Receiver.Kind.ALERTMANAGER)
        return [each for each in enabled if now >= self._next.setdefault(each.pk, now)]

    def tell(self, receiver: Receiver, courier: DeliveryClient, *, now: datetime) -> None:
        """State all that lasts; meanwhile nothing else may be sent to this receiver."""
        self._next[receiver.pk] = now + self.every
        lasting = receiver.notified_states.filter(ended_at=None, alert__resolved_at=None).order_by(
            "-since"
        )
        states = list(lasting.select_related("alert__run", "alert__node")[:MOST_PER_POST])
        if not states:
            return
        body = [
            postable(
                item_of(each.alert, each.labels, base_url=courier.base_url, now=now),
                kind=Delivery.Kind.FIRING,
                now=now,
            )
            for each in states
        ]
        outcome = courier.send(receiver, body, key=f"refresh-{now.timestamp():.0f}", now=now)
        if not outcome.is_sent:
            known = Receiver.objects.filter(pk=receiver.pk)
            known.update(last_failed_at=now, last_error=outcome.why[:LONGEST_ERROR])


def remind(*, now: datetime) -> int:
    """Put reminders into the outbox for what fires and nobody has taken; gives how many."""
    lasting = NotifiedState.objects.filter(
        ended_at=None,
        alert__resolved_at=None,
        alert__acknowledged_at=None,
        receiver__is_enabled=True,
        route__repeat_s__gt=0,
    )
    due = [
        state
        for state in lasting.select_related("receiver", "route", "alert__run", "alert__node")
        if state.route is not None
        and traits_of(state.receiver).is_reminded
        and now - state.last_at >= timedelta(seconds=state.route.repeat_s)
    ]
    return sum(_remind(state, now=now) for state in due if not _is_silenced(state, now=now))


def _is_silenced(state: NotifiedState, *, now: datetime) -> bool:
    try:
        return bool(silences_of(state.alert, now=now))
    except MatcherError:
        return False


@transaction.atomic
def _remind(state: NotifiedState, *, now: datetime) -> bool:
    """Write one reminder, unless another sender has just done so."""
    as_read = NotifiedState.objects.filter(pk=state.pk, ended_at=None, last_at=state.last_at)
    if not as_read.update(last_at=now, n_repeats=F("n_repeats") + 1):
        return False
    kind = Delivery.Kind.REPEATED
    post(
        state.receiver,
        kind,
        state.alert,
        None,
        group_key=state.group_key,
        route=state.route,
        now=now,
    )
    return True
