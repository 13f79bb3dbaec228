"""Delivery from the spool to the server: in order, one request at a time, with backoff."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote

from trnwatch.wire import MIN_BACKOFF_S, TOO_LARGE, ServerConnection, ServerResponse, backoff_s

from telemetry.agent.clock import Clock
from telemetry.agent.reports import (
    MONITOR,
    PATHS,
    FrameGroup,
    Health,
    encode_columns_body,
    encode_lines,
    group_frames,
    zstd,
)
from telemetry.agent.spool import Frame, Spool, gzip_member

MAX_LINES = 120
MAX_BYTES = 512_000
# While a backlog waits, requests follow each other at least this quickly.
CATCH_UP_S = 1.0
MAX_RETRY_AFTER_S = 600.0


class AgentSender(threading.Thread):
    def __init__(
        self,
        spool: Spool,
        wire: ServerConnection,
        health: Health,
        clock: Clock,
        *,
        every_s: float,
        node: str | None = None,
        jitter: Callable[[], float] = random.random,
        on_response: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> None:
        """Send at most every ``every_s``; ``jitter`` (0 to 1) spreads the retries of a fleet.

        ``node`` is its name where reports do not give it. ``on_response`` takes what the server
        answers: it may request a probe or a sample.
        """
        super().__init__(name="sender", daemon=True)
        self._spool = spool
        self._wire = wire
        self._health = health
        self._clock = clock
        self._every_s = every_s
        self._query = f"?node={quote(node, safe='')}" if node else ""
        self._jitter = jitter
        self._on_response = on_response
        self._max_lines = MAX_LINES
        self._n_failed = 0
        self._takes_columns = self._takes_zstd = False
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.is_set():
            self._spool.wait(1.0)
            began_s = time.monotonic()
            rest_s = self.deliver_safely()
            spent_s = time.monotonic() - began_s
            is_behind = self._spool.n_waiting >= self._max_lines
            every_s = min(self._every_s, CATCH_UP_S) if is_behind else self._every_s
            self._is_over.wait(max(rest_s, every_s - spent_s, 0.0))

    def stop(self, within_s: float) -> None:
        """Deliver waiting frames, for ``within_s`` at most, then stop."""
        until_s = time.monotonic() + within_s
        self._is_over.set()
        self.join(within_s)
        while not self.is_alive() and self._spool.n_waiting and time.monotonic() < until_s:
            if self.deliver():
                break

    def deliver_safely(self) -> float:
        """Deliver; an unexpected error is reported and retried, so that this thread survives."""
        try:
            rest_s = self.deliver()
        except Exception as error:
            self._n_failed += 1
            self._health.problem("sender", f"sender: {type(error).__name__}: {error}")
            return self.backoff_s(ServerResponse(0))
        self._health.problem("sender", "")
        return rest_s

    def deliver(self) -> float:
        """Send one request and return how many seconds to wait before the next."""
        try:
            frames = self._spool.next_frames(max_frames=self._max_lines, max_bytes=MAX_BYTES)
        except OSError as error:
            self._health.problem("spool", f"spool: {error}")
            return MIN_BACKOFF_S
        for run in self._runs(frames):
            response = self._send(run)
            if response.is_accepted:
                self._record_delivery(run.frames, response)
                continue
            if response.is_rejected:
                if run.is_columns:
                    # The server may have been downgraded: send the reports one by one.
                    self._takes_columns = False
                elif response.status == TOO_LARGE and len(run.frames) > 1:
                    self._max_lines = max(1, len(run.frames) // 2)
                else:
                    self._health.add("n_refused", len(run.frames))
                    self._health.problem(f"refused {run.frames[0].kind}", f"refused: {response}")
                    self._spool.mark_delivered(run.frames[-1].seq)
                return 0.0
            self._n_failed += 1
            self._health.problem("server", f"server: {response}")
            return self.backoff_s(response)
        return 0.0

    def backoff_s(self, response: ServerResponse) -> float:
        """Return the seconds to wait after a failed request, at least the server's Retry-After."""
        asked_s = min(response.retry_after_s or 0.0, MAX_RETRY_AFTER_S)
        return backoff_s(self._n_failed, asked_s=asked_s, jitter=self._jitter)

    def _runs(self, frames: list[Frame]) -> Iterator[FrameGroup]:
        """Split frames into requests: as columns where reports share a template, if accepted."""
        if not frames:
            return
        if not self._takes_columns or frames[0].kind != MONITOR or len(frames) == 1:
            yield FrameGroup(frames, [])
            return
        yield from group_frames(frames)

    def _send(self, run: FrameGroup) -> ServerResponse:
        now, frames = self._clock.now(), run.frames
        health = self._health.summary(n_waiting=max(0, self._spool.n_waiting - len(frames)))
        headers = {"X-Trnwatch-At": f"{now.wall_s:.6f}", "X-Trnwatch-Up": f"{now.up_s:.6f}"}
        if run.is_columns:
            # They are seconds old: the server may batch them with requests of other nodes.
            headers["Prefer"] = "wait=1"
            pack: Callable[[bytes], bytes] = gzip_member
            if zstd is not None and self._takes_zstd:
                headers["Content-Encoding"], pack = "zstd", zstd
            write = partial(encode_columns_body, run, pack=pack)
        else:
            # Their lines are in gzip since they were spooled.
            write = partial(encode_lines, frames)
        packed = write(self._spool.stream, health, self._clock, now)
        try:
            return self._wire.post(PATHS[frames[0].kind] + self._query, packed, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return ServerResponse(0, {"detail": f"{type(error).__name__}: {error}"[:160]})

    def _record_delivery(self, frames: list[Frame], response: ServerResponse) -> None:
        self._n_failed = 0
        self._max_lines = min(MAX_LINES, 2 * self._max_lines)
        self._health.problem("server", "")
        takes = response.body.get("takes") or ()
        self._takes_columns, self._takes_zstd = "columns" in takes, "zstd" in takes
        self._on_response(response.body)
        n_refused, problem = int(response.body.get("n_refused") or 0), ""
        self._health.add("n_refused", n_refused)
        if n_refused:
            problem = "refused: the server does not say why"
            with suppress(LookupError, TypeError):
                first = response.body["refused"][0]
                problem = ": ".join(filter(None, ("refused", first.get("field"), first["reason"])))
        # Of each kind of lines: those of another kind that are accepted say nothing of it.
        self._health.problem(f"refused {frames[0].kind}", problem)
        self._spool.mark_delivered(frames[-1].seq)


class TokenFile:
    """The bearer token: from a file, read again so that it can be rotated, or given once."""

    def __init__(self, *, file: str | None, secret: str | None) -> None:
        self._file = file
        self._secret = secret

    def read(self) -> str:
        """Return the token; raises OSError or ValueError if there is no valid one."""
        secret = self._secret or ""
        if self._file:
            with open(self._file, encoding="ascii") as file:  # noqa: PTH123
                secret = file.read()
        secret = secret.strip()
        if not secret.isprintable() or not secret.isascii() or not secret:
            msg = (
                "token: empty or not printable ASCII. Copy it again from trnwatch's page of tokens"
            )
            raise ValueError(msg)
        return secret
