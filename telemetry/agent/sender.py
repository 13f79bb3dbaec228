"""From the spool to the server: in order, one request at a time, patient while it is away."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from telemetry.agent.clock import Clock
from telemetry.agent.reports import (
    MONITOR,
    PATHS,
    FrameGroup,
    Health,
    encode_columns_body,
    encode_lines,
    group_frames,
)
from telemetry.agent.spool import Frame, Spool
from telemetry.agent.wire import ServerConnection, ServerResponse

MAX_LINES = 120
MAX_BYTES = 512_000
# With much to make up for, requests follow each other at least this quickly.
CATCH_UP_S = 1.0
FIRST_REST_S, LONGEST_REST_S, LONGEST_ASKED_S = 1.0, 30.0, 600.0


class AgentSender(threading.Thread):
    """Delivers what the spool holds."""

    def __init__(
        self,
        spool: Spool,
        wire: ServerConnection,
        health: Health,
        clock: Clock,
        *,
        every_s: float,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Send at most every ``every_s``; ``chance`` (0 to 1) spreads the tries of a fleet."""
        super().__init__(name="sender", daemon=True)
        self._spool = spool
        self._wire = wire
        self._health = health
        self._clock = clock
        self._every_s = every_s
        self._chance = chance
        self._most_lines = MAX_LINES
        self._n_failed = 0
        self._takes_columns = False
        self._is_over = threading.Event()

    def run(self) -> None:
        """Deliver until told to stop."""
        while not self._is_over.is_set():
            self._spool.wait(1.0)
            began_s = time.monotonic()
            rest_s = self.delivered()
            spent_s = time.monotonic() - began_s
            is_behind = self._spool.n_waiting >= self._most_lines
            every_s = min(self._every_s, CATCH_UP_S) if is_behind else self._every_s
            self._is_over.wait(max(rest_s, every_s - spent_s, 0.0))

    def stop(self, within_s: float) -> None:
        """Stop, but first try to deliver what waits; it takes no longer than ``within_s``."""
        until_s = time.monotonic() + within_s
        self._is_over.set()
        self.join(within_s)
        while not self.is_alive() and self._spool.n_waiting and time.monotonic() < until_s:
            if self.deliver():
                break

    def delivered(self) -> float:
        """Deliver, and outlive whatever goes wrong: without this thread all would be spooled."""
        try:
            rest_s = self.deliver()
        except Exception as error:
            self._n_failed += 1
            self._health.problem("sender", f"sender: {type(error).__name__}: {error}")
            return self.rest_s(ServerResponse(0, {}))
        self._health.problem("sender", "")
        return rest_s

    def deliver(self) -> float:
        """Send one request's worth, and return how long to rest before the next, seconds."""
        try:
            frames = self._spool.next_frames(most=self._most_lines, most_bytes=MAX_BYTES)
        except OSError as error:
            self._health.problem("spool", f"spool: {error}")
            return FIRST_REST_S
        for run in self._runs(frames):
            answer = self._send(run)
            if answer.is_taken:
                self._taken(run.frames, answer)
                continue
            if answer.is_hopeless:
                return self._hopeless(run, answer)
            self._n_failed += 1
            self._health.problem("server", f"server: {answer}")
            return self.rest_s(answer)
        return 0.0

    def rest_s(self, answer: ServerResponse) -> float:
        """Return how long to leave the server alone after it did not take something."""
        longest_s = min(LONGEST_REST_S, FIRST_REST_S * (1 << min(self._n_failed, 10)))
        asked_s = min(answer.retry_after_s or 0.0, LONGEST_ASKED_S)
        return max(asked_s, longest_s / 2) + self._chance() * longest_s / 2.0

    def _runs(self, frames: list[Frame]) -> Iterator[FrameGroup]:
        """Split what is to be sent: reports that are alike may go as columns, if they are read."""
        if not frames:
            return
        if not self._takes_columns or frames[0].kind != MONITOR or len(frames) == 1:
            yield FrameGroup(frames, [])
            return
        yield from group_frames(frames)

    def _send(self, run: FrameGroup) -> ServerResponse:
        """Send frames and return the answer."""
        now, frames = self._clock.now(), run.frames
        said = self._health.said(n_waiting=max(0, self._spool.n_waiting - len(frames)))
        write = (
            partial(encode_columns_body, run) if run.is_columns else partial(encode_lines, frames)
        )
        packed = write(self._spool.stream, said, self._clock, now)
        headers = {"X-Trnwatch-At": f"{now.wall_s:.6f}", "X-Trnwatch-Up": f"{now.up_s:.6f}"}
        if run.is_columns:
            # They are seconds old: the server may serve them together with those of others.
            headers["Prefer"] = "wait=1"
        return self._wire.post(PATHS[frames[0].kind], packed, headers)

    def _taken(self, frames: list[Frame], answer: ServerResponse) -> None:
        """Note what was delivered."""
        self._n_failed = 0
        self._most_lines = min(MAX_LINES, 2 * self._most_lines)
        self._health.problem("server", "")
        self._takes_columns = "columns" in (answer.told.get("takes") or ())
        refused = answer.told.get("refused") or []
        self._health.add("n_refused", int(answer.told.get("n_refused") or 0))
        with suppress(LookupError, TypeError):
            self._health.problem("refused", f"refused: {refused[0]['reason']}")
        self._spool.delivered(frames[-1].seq)

    def _hopeless(self, run: FrameGroup, answer: ServerResponse) -> float:
        """Give up lines that will never be taken, one by one where only the lot is too large."""
        frames = run.frames
        if run.is_columns:
            # The server may be an older one than it was: it gets them as they are.
            self._takes_columns = False
            return 0.0
        if answer.status == 413 and len(frames) > 1:
            self._most_lines = max(1, len(frames) // 2)
            return 0.0
        self._health.add("n_refused", len(frames))
        self._health.problem("refused", f"refused: {answer}")
        self._spool.delivered(frames[-1].seq)
        return 0.0
