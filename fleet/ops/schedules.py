"""When beat sends what follows the clock."""

import time
from collections.abc import Callable
from datetime import datetime

from celery.schedules import schedstate, schedule

# Beat wakes 10 ms before a task is due (celery.beat), and would ask again and again until it is.
EARLY_S = 0.012


class EachSecond(schedule):
    """Due once in each second of the clock, ``after_s`` past its beginning.

    A period that counts from the last call drifts through the second. A tick is of the second in
    which it is played: sent at its end, it is nearly a second late already.
    """

    def __init__(self, after_s: float = 0.0, *, clock_s: Callable[[], float] = time.time) -> None:
        super().__init__(run_every=1.0)
        self._after_s, self._clock_s = after_s, clock_s

    def is_due(self, last_run_at: datetime) -> schedstate:
        now_s = self._clock_s() - self._after_s
        last_s = self.maybe_make_aware(last_run_at).timestamp() - self._after_s
        # Another second, whichever: the clock may have been set back.
        return schedstate(int(now_s) != int(last_s), 1.0 - now_s % 1.0 + EARLY_S)
