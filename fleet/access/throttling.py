"""Rate limits: attempts to sign in, and requests per token, counted in Redis."""

import hashlib
import ipaddress
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from django.conf import settings
from redis.exceptions import RedisError

from telemetry.store.hot import HotStore, hot_store
from telemetry.units import MINUTE_S

# Attempts to sign in per window. Why these: docs/decisions/0023.
WINDOW_S = 300
PER_ACCOUNT_AND_NETWORK = 5
PER_NETWORK = 40
PER_ACCOUNT = 20
PER_DEVICE = 5
MAX_LOCAL_COUNTS = 10_000
# The braces keep the keys of one script in one slot of a Redis Cluster.
KEY_PREFIX = "{signin}:"
# Both scripts run as a whole, so attempts at the same moment see each other.
COUNT = """
local wait_s = 0
for i, key in ipairs(KEYS) do
  if tonumber(redis.call('GET', key) or '0') >= tonumber(ARGV[i + 1]) then
    wait_s = math.max(wait_s, redis.call('TTL', key), 1)
  end
end
if wait_s > 0 then return wait_s end
for _, key in ipairs(KEYS) do
  if redis.call('INCR', key) == 1 then redis.call('EXPIRE', key, ARGV[1]) end
end
return 0
"""
UNCOUNT = """
redis.call('DEL', KEYS[1])
for i = 2, #KEYS do
  if tonumber(redis.call('GET', KEYS[i]) or '0') > 0 then redis.call('DECR', KEYS[i]) end
end
"""
# Requests that a process may keep to itself, as a share of the limit.
MAX_UNREPORTED_RATIO = 0.005

log = logging.getLogger(__name__)


class SignInAttempt:
    """One attempt to sign in, counted before the password is checked.

    Counters hold for `WINDOW_S` from their first attempt; refused attempts are not counted, so
    they do not prolong a wait. A browser that has signed in to this account before (`device`) is
    counted separately: attackers who guess passwords cannot lock it out.
    The counters are in Redis, for all processes; while it does not answer, each process counts
    for itself.

    Parameters
    ----------
    account : the name as the sign-in form reads it; an unknown one is counted like any other
    address : the client's IP address
    device : the identity from a valid device cookie of this account, or nothing
    """

    def __init__(self, account: str, address: str, *, device: str = "") -> None:
        who, network = _hashed(account.casefold()), _hashed(network_of(address))
        # The first counter is the caller's own: a successful sign-in clears it.
        self._limits = (
            {f"{KEY_PREFIX}device:{_hashed(device)}": PER_DEVICE}
            if device
            else {
                f"{KEY_PREFIX}account:{who}:network:{network}": PER_ACCOUNT_AND_NETWORK,
                f"{KEY_PREFIX}network:{network}": PER_NETWORK,
                f"{KEY_PREFIX}account:{who}": PER_ACCOUNT,
            }
        )

    def wait_s(self) -> int:
        """Count the attempt; return 0 if it is allowed, else the seconds to wait."""
        try:
            return int(self._run(COUNT, WINDOW_S, *self._limits.values()))
        except RedisError:
            log.warning("Redis does not answer: this process counts sign-in attempts by itself.")
            return local_counts.count(self._limits)

    def succeeded(self) -> None:
        """Clear the client's own counter, and uncount this attempt in the shared ones."""
        try:
            self._run(UNCOUNT)
        except RedisError:
            local_counts.uncount(list(self._limits))

    def _run(self, script: str, *arguments: int) -> Any:
        hot = hot_store()
        return hot.execute("EVAL", script, len(self._limits), *self._limits, *arguments)


class LocalCounts:
    """Sign-in attempts of this process, while Redis does not answer."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = Lock()
        self._counts: dict[str, tuple[int, float]] = {}

    def count(self, limits: Mapping[str, int]) -> int:
        """Do in memory what the script `COUNT` does in Redis."""
        now_s = self._monotonic()
        with self._lock:
            if len(self._counts) > MAX_LOCAL_COUNTS:
                longest = sorted(self._counts.items(), key=lambda item: item[1][1])
                self._counts = dict(longest[-MAX_LOCAL_COUNTS // 2 :])
            counts = {key: self._counts.get(key, (0, 0.0)) for key in limits}
            counts = {
                k: kept if kept[1] > now_s else (0, now_s + WINDOW_S) for k, kept in counts.items()
            }
            over = [ends_s - now_s for key, (n, ends_s) in counts.items() if n >= limits[key]]
            if not over:
                self._counts |= {key: (n + 1, ends_s) for key, (n, ends_s) in counts.items()}
            return math.ceil(max(over, default=0))

    def uncount(self, keys: Sequence[str]) -> None:
        """Do in memory what the script `UNCOUNT` does in Redis."""
        with self._lock:
            self._counts.pop(keys[0], None)
            for key in keys[1:]:
                n, ends_s = self._counts.get(key, (0, 0.0))
                if n:
                    self._counts[key] = (n - 1, ends_s)


local_counts = LocalCounts()


def network_of(address: str) -> str:
    """Return the network that one client controls: an IPv4 address, a /64 of IPv6, or loopback."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_loopback:
        return "loopback"
    return str(ip) if ip.version == 4 else f"{int(ip) >> 64:x}/64"


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class RequestGate:
    """Requests per token and minute, of all processes together.

    Each process counts locally and reports to Redis after some requests, so that not every
    request needs a round trip; each process may exceed the limit by that many. Thread-safe.
    """

    def __init__(self, setting: str = "INGEST_REQUESTS_PER_MINUTE") -> None:
        self._setting = setting
        self._lock = Lock()
        self._minute = 0
        self._unreported: Counter[str] = Counter()
        self._total: Counter[str] = Counter()

    def left(self, hot: HotStore, n_by_token: Mapping[str, int], *, now_s: float) -> Counter[str]:
        """Count requests; return what each token has left in this minute, below 0: too many."""
        limit: int = getattr(settings, self._setting)
        minute = int(now_s // MINUTE_S)
        with self._lock:
            if minute != self._minute:
                self._minute, self._unreported, self._total = minute, Counter(), Counter()
            is_first = any(token not in self._total for token in n_by_token)
            self._unreported.update(n_by_token)
            if is_first or self._unreported.total() > limit * MAX_UNREPORTED_RATIO:
                self._report(hot)
            return Counter(
                {
                    token: limit - self._total[token] - self._unreported[token]
                    for token in n_by_token
                }
            )

    def _report(self, hot: HotStore) -> None:
        """Add the local counts to Redis and read the totals; call with the lock held."""
        commands: list[tuple[object, ...]] = []
        for token, n_requests in self._unreported.items():
            key = f"rate:{token}:{self._minute}"
            commands += [("INCRBY", key, n_requests), ("EXPIRE", key, 2 * MINUTE_S)]
        answers = hot.execute_all(commands)[::2]
        self._total.update(dict.fromkeys(self._unreported, 0))
        for token, n_requests in zip(self._unreported, answers, strict=True):
            self._total[token] = int(n_requests)
        self._unreported.clear()


class WorkBudget:
    """CPU seconds that requests of one token may take in a minute, in this process. Thread-safe.

    Limits of one request bound what it costs; this bounds what many cost together, so that the
    web process has time for its readers.
    """

    def __init__(
        self,
        setting: str = "INGEST_CPU_S_PER_MINUTE",
        *,
        monotonic: Callable[[], float] = time.monotonic,
        thread_time: Callable[[], float] = time.thread_time,
    ) -> None:
        self._setting = setting
        self._monotonic, self._thread_time = monotonic, thread_time
        self._lock = Lock()
        # By token: when its minute began, and what it took since.
        self._spent: dict[str, tuple[float, float]] = {}

    def wait_s(self, token: str) -> int:
        """Return how many seconds a token must wait; 0: it has CPU time left."""
        now_s, limit_s = self._monotonic(), float(getattr(settings, self._setting))
        with self._lock:
            began_s, spent_s = self._minute(token, now_s)
        return math.ceil(began_s + MINUTE_S - now_s) if spent_s >= limit_s else 0

    @contextmanager
    def spend(self, token: str) -> Iterator[None]:
        """Count the CPU time of this thread for a token."""
        before_s = self._thread_time()
        try:
            yield
        finally:
            used_s, now_s = self._thread_time() - before_s, self._monotonic()
            with self._lock:
                began_s, spent_s = self._minute(token, now_s)
                self._spent[token] = began_s, spent_s + used_s

    def _minute(self, token: str, now_s: float) -> tuple[float, float]:
        """Return when a token's minute began, and what it took since; a new one if it is over."""
        began_s, spent_s = self._spent.get(token, (now_s, 0.0))
        return (began_s, spent_s) if now_s - began_s < MINUTE_S else (now_s, 0.0)


class RateLimiter:
    def __init__(self, *, every_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._monotonic = monotonic
        self._last_s = -math.inf

    def is_due(self) -> bool:
        """Whether it is time again; if so, the interval restarts."""
        now_s = self._monotonic()
        if now_s - self._last_s < self._every_s:
            return False
        self._last_s = now_s
        return True
