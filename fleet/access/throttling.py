"""How often one may knock: attempts to sign in, and requests per token, counted in Redis."""

import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from threading import Lock

from django.conf import settings
from redis import Redis
from redis.exceptions import RedisError

from telemetry.store.hot import HotStore

WINDOW_S = 300
PER_NAME_AND_ADDRESS = 5
PER_ADDRESS = 40
MINUTE_S = 60
# Requests that a process may keep to itself, as a share of the limit.
MAX_UNTOLD_RATIO = 0.005

log = logging.getLogger(__name__)


class Attempts:
    """Failed attempts to sign in under a name from an address, in the last five minutes.

    Without Redis nothing is counted and everybody may try: people must get in just then.
    """

    def __init__(self, name: str, address: str) -> None:
        """Count for this name and address."""
        who = hashlib.sha256(f"{name.casefold()}\n{address}".encode()).hexdigest()[:32]
        self._limits = {
            f"signin:{who}": PER_NAME_AND_ADDRESS,
            f"signin:from:{address}": PER_ADDRESS,
        }

    def wait_s(self) -> int:
        """Return for how long no further attempt is looked at; 0 is a free way."""
        try:
            with Redis.from_url(settings.REDIS_URL) as redis:
                counts = redis.mget(list(self._limits))
                over = [
                    key
                    for (key, limit), n in zip(self._limits.items(), counts, strict=True)
                    if int(n or 0) >= limit
                ]
                return max((max(1, int(redis.ttl(key))) for key in over), default=0)
        except RedisError:
            log.warning("Redis does not answer: attempts to sign in are not counted.")
            return 0

    def note(self) -> None:
        """Count one failed attempt."""
        try:
            with Redis.from_url(settings.REDIS_URL) as redis, redis.pipeline() as pipe:
                for key in self._limits:
                    pipe.incr(key)
                    pipe.expire(key, WINDOW_S)
                pipe.execute()
        except RedisError:
            log.warning("Redis does not answer: an attempt to sign in was not counted.")

    def forget(self) -> None:
        """Forget the attempts of this name and address, after one that worked."""
        try:
            with Redis.from_url(settings.REDIS_URL) as redis:
                redis.delete(next(iter(self._limits)))
        except RedisError:
            log.warning("Redis does not answer: attempts to sign in are not forgotten.")


class RequestGate:
    """Requests per token and minute, of all processes together.

    Each process counts for itself and reports to Redis after some requests, so that a busy
    endpoint need not ask for every one; the limit may be overrun by that many per process.
    Threads may share a gate: one lock guards its counts.
    """

    def __init__(self, setting: str = "INGEST_REQUESTS_PER_MINUTE") -> None:
        """Start with nobody counted; the setting names the limit."""
        self._setting = setting
        self._lock = Lock()
        self._minute = 0
        self._untold: Counter[str] = Counter()
        self._total: Counter[str] = Counter()

    def left(self, hot: HotStore, n_by_token: Mapping[str, int], *, now_s: float) -> Counter[str]:
        """Count requests; how many each token has left in this minute (negative: too many)."""
        limit: int = getattr(settings, self._setting)
        minute = int(now_s // MINUTE_S)
        with self._lock:
            if minute != self._minute:
                self._minute, self._untold, self._total = minute, Counter(), Counter()
            is_first = any(token not in self._total for token in n_by_token)
            self._untold.update(n_by_token)
            if is_first or self._untold.total() > limit * MAX_UNTOLD_RATIO:
                self._tell(hot)
            return Counter(
                {token: limit - self._total[token] - self._untold[token] for token in n_by_token}
            )

    def _tell(self, hot: HotStore) -> None:
        """Add our counts to those of all processes and learn the sum. The caller holds the lock."""
        commands: list[tuple[object, ...]] = []
        for token, n_requests in self._untold.items():
            key = f"rate:{token}:{self._minute}"
            commands += [("INCRBY", key, n_requests), ("EXPIRE", key, 2 * MINUTE_S)]
        answers = hot.ask_all(commands)[::2]
        self._total.update(dict.fromkeys(self._untold, 0))
        for token, n_requests in zip(self._untold, answers, strict=True):
            self._total[token] = int(n_requests)
        self._untold.clear()


class Seldom:
    """Whether it is time again for something that should not be done too often."""

    def __init__(self, *, every_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Be due at once, and then at most every ``every_s``."""
        self._every_s = every_s
        self._monotonic = monotonic
        self._last_s = -math.inf

    def is_due(self) -> bool:
        """Whether it is time, which then starts anew."""
        now_s = self._monotonic()
        if now_s - self._last_s < self._every_s:
            return False
        self._last_s = now_s
        return True
