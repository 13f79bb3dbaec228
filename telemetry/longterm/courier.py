"""What brings batches to a long-term store: side by side, again and again, never too many."""

import logging
import random
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Event

from telemetry.longterm.batches import Batch
from telemetry.longterm.endpoint import Answer, Endpoint, UnreachableError
from telemetry.longterm.wire import HEADERS

log = logging.getLogger(__name__)

TOO_MANY = 429
LONGEST_PAUSE_S = 30.0
LONGEST_ASKED_S = 300.0
TELL_S = 2.0


class StoppedError(Exception):
    """Told to stop before everything was delivered."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of samples: taken by the store, or refused by it for good."""

    sent: int = 0
    dropped: int = 0
    retries: int = 0
    why: str = ""

    def __add__(self, other: "Delivered") -> "Delivered":
        """Sum up; the last reason holds."""
        return Delivered(
            self.sent + other.sent,
            self.dropped + other.dropped,
            self.retries + other.retries,
            other.why or self.why,
        )


@dataclass
class Courier:
    """Delivers batches over a few lanes, each until the store has taken or refused it.

    A store that is away or busy (no answer, 429, 5xx) is tried again, after as long as it asks
    for or ever longer pauses; nothing else is fetched meanwhile, so memory stays bounded. A
    refusal (any other answer) is final: the samples are dropped, counted and logged.
    """

    endpoint: Endpoint
    told: Event
    lanes: int = 4
    first_pause_s: float = 0.5
    headers: dict[str, str] = field(default_factory=lambda: dict(HEADERS))
    dice: random.Random = field(default_factory=random.SystemRandom)
    on_trouble: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        """Have a thread for each lane."""
        self._pool = ThreadPoolExecutor(self.lanes, thread_name_prefix="long-term")
        self._trouble = ""

    def close(self) -> None:
        """Let go of threads and connections; to be called when nothing is under way."""
        self._pool.shutdown(cancel_futures=True)
        self.endpoint.close()

    def deliver(self, batches: Iterator[Batch]) -> Delivered:
        """Deliver all, at most one batch per lane made and not yet delivered.

        Raises
        ------
        StoppedError
            Told to stop; what was not delivered is to be delivered again.
        """
        total, under_way = Delivered(), set[Future[Delivered]]()
        try:
            for batch in batches:
                under_way.add(self._pool.submit(self._carry, batch))
                while len(under_way) >= self.lanes:
                    total, under_way = self._collect(total, under_way)
            while under_way:
                total, under_way = self._collect(total, under_way)
            return total
        finally:
            # Whatever happens, no batch of this slice outlives it: its order must hold.
            wait(under_way)

    def _collect(
        self, total: Delivered, under_way: set[Future[Delivered]]
    ) -> tuple[Delivered, set[Future[Delivered]]]:
        """Add what has been delivered; what stands in the way is told every few seconds."""
        done, rest = wait(under_way, timeout=TELL_S, return_when=FIRST_COMPLETED)
        if self._trouble:
            self.on_trouble(self._trouble)
            self._trouble = ""
        return sum((each.result() for each in done), total), rest

    def _carry(self, batch: Batch) -> Delivered:
        """Deliver one batch; one that is refused is tried once more, moment by moment.

        A store refuses a batch whole where it has some of its samples already, or finds them
        too old: what is new and fine must not be lost with them.
        """
        outcome = self._insist(batch)
        if outcome.dropped and batch.n_times > 1:
            parts = sum((self._insist(part) for part in batch.by_time()), Delivered())
            outcome = Delivered(retries=outcome.retries) + parts
        if outcome.dropped:
            log.error(
                "%d samples were refused by %s: %s",
                outcome.dropped,
                self.endpoint.shown,
                outcome.why,
            )
        return outcome

    def _insist(self, batch: Batch) -> Delivered:
        """Post a batch until it is taken or refused."""
        body, n_tries = batch.body(), 0
        while not self.told.is_set():
            n_tries += 1
            try:
                answer = self.endpoint.post("", body, self.headers)
            except UnreachableError as error:
                self._pause(str(error), "", n_tries)
                continue
            if answer.status < 300:
                return Delivered(sent=batch.n_samples, retries=n_tries - 1)
            why = f"{answer.status} {answer.said}"
            if not _is_passing(answer):
                return Delivered(dropped=batch.n_samples, retries=n_tries - 1, why=why)
            self._pause(f"{self.endpoint.shown}: {why}", answer.retry_after, n_tries)
        raise StoppedError

    def _pause(self, why: str, asked: str, n_tries: int) -> None:
        """Wait as long as the store asks for, else ever longer, not all lanes at once."""
        self._trouble = why
        longer_s = min(LONGEST_PAUSE_S, self.first_pause_s * 2 ** min(n_tries - 1, 16))
        pause_s = longer_s * self.dice.uniform(0.5, 1.0)
        self.told.wait(max(pause_s, min(asked_s(asked), LONGEST_ASKED_S)))


def _is_passing(answer: Answer) -> bool:
    """Whether the same may be taken later: the store is busy, or has trouble of its own."""
    return answer.status == TOO_MANY or answer.status >= 500


def asked_s(retry_after: str) -> float:
    """Return how long a store asks to be left alone, by seconds or by date; 0 if it does not."""
    try:
        if retry_after.strip().isdecimal():
            return float(retry_after)
        moment = parsedate_to_datetime(retry_after)
    except ValueError:
        return 0.0
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())
