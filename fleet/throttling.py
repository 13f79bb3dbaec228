"""How often one may knock: attempts to sign in, and requests per token, counted in Redis."""

import hashlib
import logging
from collections.abc import Mapping

from django.conf import settings
from redis import Redis
from redis.exceptions import RedisError

from telemetry.store.hot import HotStore

WINDOW_S = 300
PER_NAME_AND_ADDRESS = 5
PER_ADDRESS = 40
MINUTE_S = 60

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


def count_requests(
    hot: HotStore, n_by_token: Mapping[int, int], *, now_s: float
) -> Mapping[int, int]:
    """Count requests of tokens; how many each has left in this minute (negative: too many)."""
    minute = int(now_s // MINUTE_S)
    commands: list[tuple[object, ...]] = []
    for token, n_requests in n_by_token.items():
        key = f"rate:{token}:{minute}"
        commands += [("INCRBY", key, n_requests), ("EXPIRE", key, 2 * MINUTE_S)]
    answers = hot.ask_all(commands)[::2]
    limit = settings.INGEST_REQUESTS_PER_MINUTE
    return {token: limit - int(n) for token, n in zip(n_by_token, answers, strict=True)}
