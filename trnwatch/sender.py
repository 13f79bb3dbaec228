"""The thread that sends: it waits for the server, so that training never does."""

import random
import threading
import time
from collections import deque
from typing import Any, Callable, Optional, Union

from trnwatch.complaints import warn_once
from trnwatch.identity import Identity
from trnwatch.steps import Record
from trnwatch.wire import ReportConnection, encode_line

EVERY_S = 1.0
HEARTBEAT_EVERY_S = 10.0
MAX_RECORDS = 10_000
MAX_LINES = 500
MAX_LOSS = 1e9
MAX_BACKOFF_S = 30.0
# The server said that it will never take this; asking again changes nothing.
TOO_LARGE = 413
REJECTED = (400, TOO_LARGE, 415, 422)


class ReportSender:
    """A queue of records with a thread behind it; when full it loses its oldest, counted."""

    def __init__(
        self,
        server: str,
        token: Callable[[], str],
        identity: Identity,
        *,
        boot: str,
        ca_file: str = "",
        every_s: float = EVERY_S,
        most_records: int = MAX_RECORDS,
    ) -> None:
        self._wire = ReportConnection(server, ca_file=ca_file)
        self._token = token
        self._identity = identity
        self._boot = boot
        self._every_s = every_s
        self._queue: deque[Union[Record, dict[str, Any]]] = deque(maxlen=most_records)
        self._unsent: list[bytes] = []
        self._n_unsent_steps = 0
        self._introduced: Optional[Identity] = None
        self._introducing = identity
        self._end: Optional[dict[str, Any]] = None
        self._has_end = self._is_over = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trnwatch", daemon=True)
        self._failures = 0
        self._said_at_s = float("-inf")
        self.n_dropped = self._n_told = 0

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def put(self, record: Union[Record, dict[str, Any]]) -> None:
        """Take a record; this is all that training waits for."""
        if len(self._queue) == self._queue.maxlen:
            self.n_dropped += 1
        self._queue.append(record)

    def introduce(self, identity: Identity) -> None:
        """Say anew what the run is."""
        self._identity = identity

    def finish(self, *, failed: bool, reason: str, within_s: float) -> None:
        """Send what is left and the end of it all, for no longer than ``within_s``."""
        self._end = {"at": time.time(), "failed": failed, "reason": reason}
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(within_s)

    def _run(self) -> None:
        """Send every second or so, for as long as the process lives."""
        while True:
            is_last = self._end is not None
            self._flush()
            if self._is_over or (is_last and self._failures > 1):
                self._wire.close()
                return
            self._wake.wait(self._pause_s())
            self._wake.clear()

    def _pause_s(self) -> float:
        """Return how long to wait: longer and longer while the server is away."""
        if not self._failures:
            return self._every_s
        wait_s = min(MAX_BACKOFF_S, self._every_s * 2.0**self._failures)
        return wait_s * random.uniform(0.5, 1.0)

    def _flush(self) -> None:
        """Send what there is, as long as it gets through."""
        while lines := self._lines():
            if not self._sent(lines):
                return

    def _lines(self) -> list[bytes]:
        """Return what goes next; what did not get through goes again, as it was."""
        if self._unsent:
            return self._unsent
        self._introducing = self._identity
        is_known = self._introduced is self._introducing
        lines = [] if is_known else [self._introduction(self._introducing)]
        steps: list[bytes] = []
        while self._queue and len(steps) < MAX_LINES:
            steps += self._told(self._queue.popleft())
        has_news = self.n_dropped > self._n_told and (steps or self._end is not None)
        if has_news or time.monotonic() - self._said_at_s > HEARTBEAT_EVERY_S:
            lines.append(self._said("beat", at=time.time(), n_dropped=self.n_dropped))
            self._n_told = self.n_dropped
        self._has_end = self._end is not None and not self._queue and not self._is_over
        end = [self._said("end", **(self._end or {}))] if self._has_end else []
        self._unsent, self._n_unsent_steps = [*lines, *steps, *end], len(steps)
        return self._unsent

    def _sent(self, lines: list[bytes]) -> bool:
        """Send lines; whether the server has them, or never will."""
        try:
            status, answer = self._wire.post(lines, self._token())
        except Exception as error:
            self._failures += 1
            warn_once("the server does not answer (%s); reports are kept for now", error)
            return False
        is_taken = status == 200 and "accepted" in answer
        # What has no words of trnwatch's was said by something between: it may pass.
        if not is_taken and not (status in REJECTED and (answer or status == TOO_LARGE)):
            self._failures += 1
            warn_once("the server says %s: %s", status, answer.get("detail") or "nothing of ours")
            return False
        n_refused = int(answer.get("n_refused") or 0) if is_taken else self._n_unsent_steps
        if n_refused:
            # Of what else is refused, nothing is lost.
            self.n_dropped += min(n_refused, self._n_unsent_steps)
            warn_once("the server refuses reports: %s", answer.get("refused") or answer)
        self._failures, self._unsent = 0, []
        self._introduced, self._said_at_s = self._introducing, time.monotonic()
        self._is_over = self._is_over or self._has_end
        return True

    def _introduction(self, me: Identity) -> bytes:
        """Return what the run is."""
        about = dict(me.about, run=me.run, session=me.session, at=time.time())
        return encode_line(dict(about, kind="run"))

    def _told(self, record: Union[Record, dict[str, Any]]) -> list[bytes]:
        """Return a step or a compile as a line, or none where it cannot be told."""
        try:
            if isinstance(record, dict):
                return [self._said("compile", **record)]
            return [self._step(record)]
        except Exception as error:
            self.n_dropped += 1
            warn_once("something cannot be told: %s", error)
            return []

    def _step(self, record: Record) -> bytes:
        """Return one step as a line."""
        number, ended_at, step_s, exchanges, parts, tokens, loss = record
        names = ("input_s", "checkpoint_s", "other_s")
        said = {name: None if part is None else round(part, 6) for name, part in zip(names, parts)}
        if exchanges is not None:
            said["collective_s"] = [round(seconds, 6) for seconds in exchanges.seconds]
            said["arrived_at"] = [round(moment, 6) for moment in exchanges.arrived_at]
        return self._said(
            "step",
            step=int(number),
            ended_at=round(ended_at, 6),
            step_s=max(round(step_s, 6), 1e-6),
            tokens=tokens,
            # A loss that is no number any more is not told: the server takes numbers only.
            loss=loss if loss is not None and abs(loss) < MAX_LOSS else None,
            **said,
        )

    def _said(self, kind: str, **said: Any) -> bytes:
        """Return a line of this worker."""
        me = self._identity
        who = {
            "run": me.run,
            "session": me.session,
            "boot": self._boot if me.session == "auto" else None,
            "worker": me.worker,
            "node": me.node,
            "rank": me.rank,
            "stage": me.stage,
            "group": me.group or None,
            "n_workers": me.n_workers,
        }
        return encode_line({"kind": kind, **who, **said})
