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

from fleet.models import Delivery, Receiver
from fleet.notify.attempt import Courier
from fleet.notify.claims import claim, due, extend, settle
from fleet.notify.outcomes import Outcome, Patience
from fleet.notify.refreshing import Refresher

log = logging.getLogger(__name__)

# Hands sleep on sockets: a receiver that hangs must not keep others waiting.
MOST_AT_ONCE = 32


@dataclass
class Sender:
    """Sends the outbox; several may run side by side."""

    courier: Courier
    clock: Callable[[], datetime]
    patience: Patience = field(default_factory=Patience)
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

    def _attempted(self, delivery: Delivery) -> Outcome | None:
        try:
            return self.courier.attempt(delivery, now=self.clock())
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            log.exception("delivery %s cannot be put in words", delivery.pk)
            return Outcome(is_final=True, why=f"{type(error).__name__}: {error}")

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
