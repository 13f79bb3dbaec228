"""The sender: takes what is due from the outbox and sends it, one thing at a time per receiver."""

import logging
import random
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from threading import Event

from django.db import close_old_connections, connection

from fleet.models import Delivery, NotifiedState, Receiver, SenderHeartbeat
from fleet.notifications.channels import JSON, PATH, encode, watchdog
from fleet.notifications.delivery import (
    OK,
    DeliveryClient,
    DeliveryResult,
    Refresher,
    RetryPolicy,
    claim,
    due,
    extend,
    remind,
    settle,
)
from fleet.notifications.http_client import AddressError, HttpClient, Request, UnreachableError

log = logging.getLogger(__name__)

# Hands sleep on sockets: a receiver that hangs must not keep others waiting.
MOST_AT_ONCE = 32


@dataclass
class NotificationSender:
    """Sends the outbox; several may run side by side."""

    courier: DeliveryClient
    clock: Callable[[], datetime]
    patience: RetryPolicy = field(default_factory=RetryPolicy)
    lease: timedelta = timedelta(seconds=20)
    refresher: Refresher = field(default_factory=Refresher)
    dice: random.Random = field(default_factory=random.SystemRandom)
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        """Have hands ready."""
        self._hands = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="send")
        self._busy: dict[int, Future[None]] = {}
        self._held: dict[int, int] = {}
        self._extended_at = self.clock()
        self._news = Event()

    def wait(self, pause_s: float) -> None:
        """Wait until something was sent and so another may be, but no longer than a pause."""
        self._news.wait(pause_s)
        self._news.clear()

    def turn(self) -> None:
        """Start whatever is due and can be."""
        now = self.clock()
        self._busy = {pk: work for pk, work in self._busy.items() if not work.done()}
        self._held = {pk: held for pk, held in self._held.items() if pk in self._busy}
        self._keep_claims(now)
        for delivery in due(now=now, busy=self._busy, limit=MOST_AT_ONCE):
            is_free = delivery.receiver_id not in self._busy
            if is_free and claim(delivery, by=self.name, lease=self.lease, now=now):
                self._held[delivery.receiver_id] = delivery.pk
                self._start(delivery.receiver_id, partial(self._carry, delivery))
        for receiver in self.refresher.due(now=now):
            if receiver.pk not in self._busy:
                self._start(receiver.pk, partial(self._refresh, receiver))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being sent."""
        return all(work.done() for work in self._busy.values())

    def stop(self, *, within_s: float) -> None:
        """Wait a little for what is being sent; what is not, another sender sends again."""
        deadline = self.clock() + timedelta(seconds=within_s)
        for work in self._busy.values():
            left_s = (deadline - self.clock()).total_seconds()
            try:
                work.result(timeout=max(0.0, left_s))
            except TimeoutError:
                break
        self._hands.shutdown(wait=False, cancel_futures=True)

    def _start(self, receiver: int, work: Callable[[], None]) -> None:
        done = self._hands.submit(_with_own_connection, work)
        self._busy[receiver] = done
        done.add_done_callback(lambda _: self._news.set())

    def _keep_claims(self, now: datetime) -> None:
        """Make the claims last as long as the work does."""
        if now - self._extended_at >= self.lease / 4:
            extend(self._held.values(), by=self.name, lease=self.lease, now=now)
            self._extended_at = now

    def _carry(self, delivery: Delivery) -> None:
        """Send one delivery and write down how it went."""
        outcome = self._attempted(delivery)
        if outcome is None:
            return
        state = settle(delivery, outcome, patience=self.patience, dice=self.dice, now=self.clock())
        if state == Delivery.State.DEAD:
            log.error(
                "delivery %s to %s is given up: %s", delivery.pk, delivery.receiver, outcome.why
            )

    def _attempted(self, delivery: Delivery) -> DeliveryResult | None:
        try:
            return self.courier.attempt(delivery, now=self.clock())
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            log.exception("delivery %s cannot be put in words", delivery.pk)
            return DeliveryResult(is_final=True, why=f"{type(error).__name__}: {error}")

    def _refresh(self, receiver: Receiver) -> None:
        self.refresher.tell(receiver, self.courier, now=self.clock())


def _with_own_connection(work: Callable[[], None]) -> None:
    """Work in a thread that has a connection of its own to the database."""
    close_old_connections()
    try:
        work()
    except Exception:
        # What cannot be written down now is sent again when its claim has ended.
        log.exception("sending failed")
    finally:
        connection.close()


@dataclass
class Heartbeat:
    """Calls one address, at most once in a while."""

    url: str
    every: timedelta
    door: HttpClient
    base_url: str
    beat_at: datetime | None = None
    error: str = ""
    _tried_at: datetime | None = None

    def beat(self, *, now: datetime) -> bool:
        """Call if it is time; whether it was, and was answered."""
        if not self.url or (self._tried_at is not None and now - self._tried_at < self.every):
            return False
        self._tried_at = now
        try:
            answer = self.door.post(self._request(now))
        except (AddressError, UnreachableError) as error:
            self.error = str(error)
            return False
        if answer.status not in OK:
            self.error = f"{answer.status} {answer.said}".strip()
            return False
        self.beat_at, self.error = now, ""
        return True

    def _request(self, now: datetime) -> Request:
        """Call, or keep the Watchdog of an Alertmanager firing."""
        if self.url.endswith(PATH):
            return Request(self.url, encode(watchdog(base_url=self.base_url, now=now)), dict(JSON))
        return Request(self.url, b"")


FORGET_EVERY = timedelta(hours=1)
LONGEST_ERROR = 300


@dataclass
class PeriodicJobs:
    """Everything that is done every few seconds."""

    name: str
    started_at: datetime
    keep_vigil: Callable[[datetime], bool]
    heartbeat: Heartbeat
    keep_days: int
    _forgot_at: datetime | None = None

    def do(self, *, now: datetime) -> None:
        """Do each of them once."""
        is_watched = self.keep_vigil(now)
        if is_watched:
            self.heartbeat.beat(now=now)
        SenderHeartbeat.objects.update_or_create(
            name=self.name,
            defaults={
                "started_at": self.started_at,
                "seen_at": now,
                "is_watched": is_watched,
                "beat_at": self.heartbeat.beat_at,
                "beat_error": self.heartbeat.error[:LONGEST_ERROR],
            },
        )
        remind(now=now)
        if self._forgot_at is None or now - self._forgot_at >= FORGET_EVERY:
            forget(before=now - timedelta(days=self.keep_days))
            SenderHeartbeat.objects.filter(seen_at__lt=now - FORGET_EVERY).delete()
            self._forgot_at = now


def forget(*, before: datetime) -> None:
    """Let go of what arrived, or was dropped by hand, long ago; what is dead waits for people."""
    done = (Delivery.State.SENT, Delivery.State.DROPPED)
    Delivery.objects.filter(state__in=done, ended_at__lt=before).delete()
    NotifiedState.objects.filter(ended_at__lt=before).delete()
