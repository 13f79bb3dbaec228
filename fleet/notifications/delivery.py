"""Deliver notifications: claim what is due, send it, retry, remind, and report failures."""

import logging
import random
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from threading import Event

from django.db import close_old_connections, connection, transaction
from django.db.models import F, Q

from fleet.alerts.events import enqueue_delivery
from fleet.alerts.matchers import silences_of
from fleet.models import ConfigurationChange, Delivery, NotifiedState, Receiver, Route
from fleet.models.delivery import DeliveryQuerySet
from fleet.notifications.channels import CHANNELS, JSON, PATH, Body, encode, postable, watchdog
from fleet.notifications.http_client import (
    AddressError,
    HttpClient,
    HttpResult,
    Request,
    UnreachableError,
    host_of,
)
from fleet.notifications.messages import Draw, item_of, message_of
from telemetry.errors import LARGEST_SECOND, whole_number

log = logging.getLogger(__name__)
State = Delivery.State
OK = range(200, 300)
REDIRECTS = range(300, 400)
CLIENT_ERRORS = range(400, 500)
# Client errors that may pass, and redirects that are permanent.
TEMPORARY = frozenset({408, 425, 429})
MOVED = frozenset({301, 308})
# What a push service answers once a browser has ended its subscription.
GONE = frozenset({404, 410})
LONGEST_WAIT = timedelta(hours=1)
LONGEST_ERROR = 300
LOCKED = "target: sealed with a key that is not set; see TRNWATCH_SEALING_KEY_FALLBACKS"
# A receiver that hangs must not delay the others: each send waits in a thread of its own.
MOST_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """How an attempt ended; a final failure is not retried."""

    is_sent: bool = False
    is_final: bool = False
    status: int | None = None
    why: str = ""
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    first_s: float = 2.0
    longest_s: float = 60.0
    factor: float = 2.0
    give_up_after: timedelta = timedelta(hours=12)
    min_attempts: int = 5
    max_attempts: int = 1000

    def pause(self, n_attempts: int, *, rng: random.Random) -> timedelta:
        """Draw the pause after so many failed attempts: exponential backoff with jitter."""
        power = min(n_attempts - 1, 32)
        pause_s = min(self.longest_s, self.first_s * self.factor**power)
        return timedelta(seconds=pause_s * (0.5 + 0.5 * rng.random()))

    def is_over(self, n_attempts: int, waited: timedelta) -> bool:
        is_late = waited >= self.give_up_after and n_attempts >= self.min_attempts
        return is_late or n_attempts >= self.max_attempts


@dataclass
class NotificationSender:
    """Sends the outbox, one notification at a time per receiver; several may run in parallel."""

    client: "DeliveryClient"
    clock: Callable[[], datetime]
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    lease: timedelta = timedelta(seconds=20)
    refresher: "Refresher" = field(default_factory=lambda: Refresher())  # noqa: PLW0108
    rng: random.Random = field(default_factory=random.SystemRandom)
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="send")
        # By receiver: its running work, and the delivery that is claimed for it.
        self._busy: dict[int, Future[None]] = {}
        self._claimed: dict[int, int] = {}
        self._extended_at = self.clock()
        self._sent = Event()

    def wait(self, pause_s: float) -> None:
        """Wait until something was sent, at most ``pause_s``."""
        self._sent.wait(pause_s)
        self._sent.clear()

    def turn(self) -> None:
        """Start to send what is due to receivers that are not busy."""
        now = self.clock()
        self._busy = {pk: work for pk, work in self._busy.items() if not work.done()}
        self._claimed = {pk: held for pk, held in self._claimed.items() if pk in self._busy}
        if now - self._extended_at >= self.lease / 4:
            extend(self._claimed.values(), by=self.name, lease=self.lease, now=now)
            self._extended_at = now
        for delivery in due(now=now, busy=self._busy, limit=MOST_AT_ONCE):
            is_free = delivery.receiver_id not in self._busy
            if is_free and claim(delivery, by=self.name, lease=self.lease, now=now):
                self._claimed[delivery.receiver_id] = delivery.pk
                self._start(delivery.receiver_id, partial(self._deliver, delivery))
        for receiver in self.refresher.due(now=now):
            if receiver.pk not in self._busy:
                refresh = partial(self.refresher.refresh, receiver, self.client, now=now)
                self._start(receiver.pk, refresh)

    @property
    def is_idle(self) -> bool:
        return all(work.done() for work in self._busy.values())

    def stop(self, *, within_s: float) -> None:
        """Wait for sends in progress; another sender repeats those that do not end in time."""
        deadline = self.clock() + timedelta(seconds=within_s)
        for work in self._busy.values():
            left_s = (deadline - self.clock()).total_seconds()
            try:
                work.result(timeout=max(0.0, left_s))
            except TimeoutError:
                break
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, receiver: int, work: Callable[[], None]) -> None:
        future = self._threads.submit(_with_own_connection, work)
        self._busy[receiver] = future
        future.add_done_callback(lambda _: self._sent.set())

    def _deliver(self, delivery: Delivery) -> None:
        result: DeliveryResult | None
        try:
            result = self.client.attempt(delivery, now=self.clock())
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            log.exception("delivery %s cannot be rendered", delivery.pk)
            result = DeliveryResult(is_final=True, why=f"{type(error).__name__}: {error}")
        if result is None:
            return
        state = settle(
            delivery, result, retry_policy=self.retry_policy, rng=self.rng, now=self.clock()
        )
        if state == State.DEAD:
            log.error(
                "delivery %s to %s is given up: %s", delivery.pk, delivery.receiver, result.why
            )


def _with_own_connection(work: Callable[[], None]) -> None:
    close_old_connections()
    try:
        work()
    except Exception:
        # A result that cannot be recorded now: sent again when the claim has expired.
        log.exception("sending failed")
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class DeliveryClient:
    """Renders and sends notifications; links in them begin with ``base_url``."""

    http: HttpClient
    base_url: str
    draw: Draw | None = None

    def attempt(self, delivery: Delivery, *, now: datetime) -> DeliveryResult | None:
        """Send a claimed delivery once; None where the claim is lost.

        The body is rendered at the first attempt and stored: later ones send the same bytes.
        """
        body: Body | None = delivery.body
        if body is None:
            known = NotifiedState.objects.filter(
                receiver=delivery.receiver, alert__deliveries=delivery
            )
            labels = dict(known.order_by("since").values_list("alert_id", "labels"))
            message = message_of(delivery, labels, base_url=self.base_url, now=now, draw=self.draw)
            body = CHANNELS[delivery.receiver.kind].render(message)
            delivery.body = body
            if not _claimed(delivery).update(body=body):
                return None
        return self.send(delivery.receiver, body, key=delivery.key, now=now)

    def send(self, receiver: Receiver, body: Body, *, key: str, now: datetime) -> DeliveryResult:
        """Send a rendered body; failures are results too.

        A browser that has ended its subscription is removed, with all that waits for it.
        """
        channel = CHANNELS[receiver.kind]
        if receiver.is_locked:
            return DeliveryResult(why=LOCKED)
        try:
            answer = channel.send(receiver, body, key=key, at=now, client=self.http)
        except AddressError as error:
            return DeliveryResult(is_final=True, why=str(error))
        except UnreachableError as error:
            return DeliveryResult(why=str(error))
        if receiver.kind == Receiver.Kind.PUSH and answer.status in GONE:
            Receiver.objects.filter(pk=receiver.pk).delete()
            why = f"{answer.status}: this browser has ended its subscription, so it was removed"
            text = f"removed device {receiver}: {why}"[:LONGEST_ERROR]
            ConfigurationChange.objects.create(at=now, by="trnwatch", text=text)
            return DeliveryResult(is_final=True, status=answer.status, why=why)
        return result_of(answer, is_confirmed=channel.confirms(answer), now=now)


def result_of(answer: HttpResult, *, is_confirmed: bool, now: datetime) -> DeliveryResult:
    """Judge an answer by its status, and by whether the receiver itself gave it."""
    status, text = answer.status, f": {answer.text}" if answer.text else ""
    if status in OK and is_confirmed:
        return DeliveryResult(is_sent=True, status=status)
    if status in OK:
        return DeliveryResult(status=status, why=f"{status}, but not from such a receiver{text}")
    if status in REDIRECTS:
        there = host_of(answer.location)[:120] or "elsewhere"
        why = f"{status}: it has moved to {there}; not followed"
        return DeliveryResult(is_final=status in MOVED, status=status, why=why)
    return DeliveryResult(
        is_final=status in CLIENT_ERRORS and status not in TEMPORARY,
        status=status,
        why=f"{status}{text}",
        retry_after=_retry_after(answer.retry_after, now=now),
    )


def _retry_after(text: str, *, now: datetime) -> timedelta | None:
    """Parse Retry-After, seconds or a date; None where it is neither."""
    text = text.strip()
    wait_s = whole_number(text, most=LARGEST_SECOND)
    if wait_s is not None:
        return min(timedelta(seconds=wait_s), LONGEST_WAIT)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max(at - now, timedelta()), LONGEST_WAIT)


def due(*, now: datetime, busy: Collection[int], limit: int) -> list[Delivery]:
    """List what is to be sent now, the longest overdue first, nothing to busy receivers."""
    rows = Delivery.objects.due(now).sendable()
    rows = rows.exclude(receiver__in=busy).order_by("next_try_at", "pk")
    return list(rows.select_related("receiver", "route")[:limit])


def claim(delivery: Delivery, *, by: str, lease: timedelta, now: datetime) -> bool:
    """Claim a delivery if it is unchanged since it was read; False if another sender has it."""
    as_read = Q(pk=delivery.pk, state=delivery.state, n_attempts=delivery.n_attempts)
    if delivery.state == State.SENDING:
        as_read &= Q(claimed_by=delivery.claimed_by, claimed_until=delivery.claimed_until)
    is_claimed = Delivery.objects.filter(as_read).update(
        state=State.SENDING,
        n_attempts=F("n_attempts") + 1,
        claimed_by=by,
        claimed_until=now + lease,
    )
    if is_claimed:
        delivery.state, delivery.claimed_by = State.SENDING, by
        delivery.n_attempts, delivery.claimed_until = delivery.n_attempts + 1, now + lease
    return bool(is_claimed)


def extend(claimed: Collection[int], *, by: str, lease: timedelta, now: datetime) -> None:
    """Extend the leases of what is still being sent."""
    mine = Delivery.objects.filter(pk__in=claimed, state=State.SENDING, claimed_by=by)
    mine.update(claimed_until=now + lease)


def _claimed(delivery: Delivery) -> DeliveryQuerySet:
    """Select a delivery if this claim of it still holds."""
    return Delivery.objects.filter(
        pk=delivery.pk,
        state=State.SENDING,
        claimed_by=delivery.claimed_by,
        n_attempts=delivery.n_attempts,
    )


@transaction.atomic
def settle(
    delivery: Delivery,
    result: DeliveryResult,
    *,
    retry_policy: RetryPolicy,
    rng: random.Random,
    now: datetime,
) -> str:
    """Record how an attempt ended; return the new state, or "" where the claim is lost."""
    waited = now - delivery.created_at
    is_over = result.is_final or retry_policy.is_over(delivery.n_attempts, waited)
    state = State.SENT if result.is_sent else State.DEAD if is_over else State.PENDING
    pause = retry_policy.pause(delivery.n_attempts, rng=rng)
    error = result.why[:LONGEST_ERROR]
    changed = _claimed(delivery).update(
        state=state,
        ended_at=None if state == State.PENDING else now,
        next_try_at=now + max(pause, result.retry_after or pause),
        claimed_by="",
        claimed_until=None,
        last_status=result.status,
        last_error=error,
    )
    if not changed:
        return ""
    receiver = Receiver.objects.filter(pk=delivery.receiver_id)
    if result.is_sent:
        receiver.update(n_sent=F("n_sent") + 1, last_sent_at=now)
    else:
        receiver.update(
            n_failed=F("n_failed") + 1,
            n_dead=F("n_dead") + int(state == State.DEAD),
            last_failed_at=now,
            last_error=error,
        )
    if state == State.DEAD:
        report_failure(delivery, result.why, now=now)
    return state


# A failing receiver is logged at most this often, however many deliveries fail.
REPORT_EVERY = timedelta(hours=1)


def report_failure(delivery: Delivery, why: str, *, now: datetime) -> None:
    """Notify the other receivers of the route and of the default route of a failed delivery."""
    kind = Delivery.Kind.UNDELIVERED
    if delivery.kind == kind:
        return
    text = f"Could not notify {delivery.receiver} ({delivery.get_kind_display().lower()}): {why}"
    group_key = f"undelivered {delivery.receiver_id}"
    recent = Delivery.objects.filter(
        kind=kind, group_key=group_key, created_at__gt=now - REPORT_EVERY
    )
    notified = set(recent.values_list("receiver_id", flat=True))
    routes = Route.objects.filter(Q(pk=delivery.route_id) | Q(is_default=True))
    others = Receiver.objects.enabled().filter(routes__in=routes).distinct()
    for other in others.exclude(pk=delivery.receiver_id):
        if other.pk not in notified and Receiver.Kind(other.kind).takes(kind):
            Delivery.objects.create(
                receiver=other,
                kind=kind,
                group_key=group_key,
                created_at=now,
                next_try_at=now,
                note=text[:LONGEST_ERROR],
            ).alerts.set(delivery.alerts.all())


MOST_PER_POST = 500


@dataclass
class Refresher:
    """Sends the open alerts to Alertmanagers again and again, before they expire there."""

    every: timedelta = timedelta(seconds=60)
    _next: dict[int, datetime] = field(default_factory=dict)

    def due(self, *, now: datetime) -> list[Receiver]:
        enabled = Receiver.objects.enabled().filter(kind=Receiver.Kind.ALERTMANAGER)
        return [each for each in enabled if now >= self._next.setdefault(each.pk, now)]

    def refresh(self, receiver: Receiver, client: DeliveryClient, *, now: datetime) -> None:
        """Send all open alerts; the receiver must be idle."""
        self._next[receiver.pk] = now + self.every
        open_ = receiver.notified_states.filter(ended_at=None, alert__resolved_at=None)
        newest = open_.order_by("-since").select_related("alert__run", "alert__node")
        body = [
            postable(
                item_of(each.alert, each.labels, base_url=client.base_url, now=now),
                is_resolved=False,
                now=now,
            )
            for each in newest[:MOST_PER_POST]
        ]
        if not body:
            return
        result = client.send(receiver, body, key=f"refresh-{now.timestamp():.0f}", now=now)
        if not result.is_sent:
            Receiver.objects.filter(pk=receiver.pk).update(
                last_failed_at=now, last_error=result.why[:LONGEST_ERROR]
            )


def remind(*, now: datetime) -> int:
    """Enqueue reminders of alerts that fire unacknowledged; return their number."""
    open_ = NotifiedState.objects.filter(
        ended_at=None,
        alert__resolved_at=None,
        alert__acknowledged_at=None,
        receiver__is_enabled=True,
        route__repeat_s__gt=0,
    )
    return sum(
        _remind(state, now=now)
        for state in open_.select_related("receiver", "route", "alert__run", "alert__node")
        if state.route is not None
        and not Receiver.Kind(state.receiver.kind).groups_itself
        and now - state.last_at >= timedelta(seconds=state.route.repeat_s)
        and not silences_of(state.alert, now=now)
    )


@transaction.atomic
def _remind(state: NotifiedState, *, now: datetime) -> bool:
    """Enqueue one reminder, unless another sender has just done so."""
    as_read = NotifiedState.objects.filter(pk=state.pk, ended_at=None, last_at=state.last_at)
    if not as_read.update(last_at=now, n_repeats=F("n_repeats") + 1):
        return False
    enqueue_delivery(
        state.receiver,
        Delivery.Kind.REPEATED,
        state.alert,
        None,
        group_key=state.group_key,
        route=state.route,
        now=now,
    )
    return True


@dataclass
class Heartbeat:
    """Posts to one URL at intervals, so that an outside service notices when this stops."""

    url: str
    every: timedelta
    http: HttpClient
    base_url: str
    beat_at: datetime | None = None
    error: str = ""
    _tried_at: datetime | None = None

    def beat(self, *, now: datetime) -> bool:
        """Post if it is due; return whether it was posted and the answer was good."""
        if not self.url or (self._tried_at is not None and now - self._tried_at < self.every):
            return False
        self._tried_at = now
        request = Request(self.url, b"")
        if self.url.endswith(PATH):
            body = encode(watchdog(base_url=self.base_url, now=now))
            request = Request(self.url, body, dict(JSON))
        try:
            answer = self.http.post(request)
        except (AddressError, UnreachableError) as error:
            self.error = str(error)
            return False
        if answer.status not in OK:
            self.error = f"{answer.status} {answer.text}".strip()
            return False
        self.beat_at, self.error = now, ""
        return True


def delete_old(*, before: datetime) -> None:
    """Delete what was sent or dropped before; dead deliveries wait for a person."""
    done = (State.SENT, State.DROPPED)
    Delivery.objects.filter(state__in=done, ended_at__lt=before).delete()
    NotifiedState.objects.filter(ended_at__lt=before).delete()
