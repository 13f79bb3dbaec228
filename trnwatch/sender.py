"""Sending of reports in a thread of its own: queue and retries."""

import gzip
import json
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any, Callable, Optional, Union

from trnwatch.identity import Identity
from trnwatch.log import warn_once
from trnwatch.runtime_trace import RuntimeTrace, number_of
from trnwatch.step_finder import StepFinder
from trnwatch.steps import Record
from trnwatch.surroundings import OF_NODES
from trnwatch.wire import ServerConnection, backoff_s

PATH = "/api/v1/ingest/steps"
TIMEOUT_S = 10.0
EVERY_S = 1.0
HEARTBEAT_EVERY_S = 10.0
# The runtime reports an execution when it is over, up to a step later than the host asked for it.
TRACE_DELAY_S = 1.0
MAX_RECORDS = 10_000
MAX_LINES = 500
NO_PARTS = (None, None, None)
# Losses are of 32 bit; larger ones are infinite.
MAX_LOSS = 3.4e38


class ReportSender:
    """A bounded queue and its sending thread; a full queue drops and counts its oldest."""

    def __init__(
        self,
        server: str,
        token: Callable[[], str],
        identity: Identity,
        *,
        ca_file: str = "",
        trace: Optional[RuntimeTrace] = None,
        finder: Optional[StepFinder] = None,
        activity: Callable[[], str] = lambda: "",
        every_s: float = EVERY_S,
        max_records: int = MAX_RECORDS,
    ) -> None:
        self._wire = ServerConnection(server, token=token, ca_file=ca_file, timeout_s=TIMEOUT_S)
        self._identity = identity
        self._boot, self._newest_step = new_boot(), 0
        self._trace = trace
        self._finder = finder
        self._activity = activity
        self._does, self._does_since_s = "", time.monotonic()
        self._every_s = every_s
        self._queue: deque[Union[Record, dict[str, Any]]] = deque(maxlen=max_records)
        self._unsent: list[bytes] = []
        self._n_unsent_steps = 0
        self._sent_identity: Optional[Identity] = None
        self._sending_identity = identity
        self._is_held = self.has_begun = False
        self._end: Optional[dict[str, Any]] = None
        self._has_end = self._is_over = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trnwatch", daemon=True)
        self._failures = 0
        self._last_sent_s = float("-inf")
        self.n_dropped = self._n_dropped_sent = 0

    def start(self) -> None:
        self._thread.start()

    def put(self, record: Union[Record, dict[str, Any]]) -> None:
        """Queue a record; this is all that training waits for."""
        if len(self._queue) == self._queue.maxlen:
            self.n_dropped += 1
        self._queue.append(record)

    def hold(self, *, is_held: bool) -> None:
        """Send nothing while held, except with the end."""
        self._is_held = is_held

    def update_identity(self, identity: Identity) -> None:
        """Send the run's facts again with the next request."""
        self._identity = identity

    def finish(self, *, failed: bool, reason: str, within_s: float) -> None:
        """Send the queued records and the end of the run, for ``within_s`` seconds at most."""
        self._end = {"at": time.time(), "failed": failed, "reason": reason}
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(within_s)

    def _run(self) -> None:
        if not self._identity.is_named:
            # A callback holds what is sent until its framework has said the run's name.
            self._wake.wait(self._every_s)
        while True:
            is_last = self._end is not None
            self._flush()
            if self._is_over or (is_last and self._failures > 1):
                self._wire.close()
                if self._trace is not None:
                    self._trace.stop()
                return
            pause_s = self._every_s
            if self._failures:
                pause_s = backoff_s(self._failures, least_s=pause_s)
            self._wake.wait(pause_s)
            self._wake.clear()

    def _flush(self) -> None:
        # Once a second is enough to say for how long the worker has done the same.
        does = self._activity()
        if does != self._does:
            self._does, self._does_since_s = does, time.monotonic()
        if self._trace is not None:
            self._trace.poll()
            if self._finder is not None:
                for number, began_at_s, ended_at_s in self._finder.take(
                    self._trace.new_executions()
                ):
                    self.put(
                        (number, ended_at_s, ended_at_s - began_at_s, None, NO_PARTS, None, None)
                    )
        if self._is_held and self._end is None:
            return
        self.has_begun = True
        while lines := self._lines():
            if not self._send(lines):
                return

    def _lines(self) -> list[bytes]:
        """Return the next lines to send; lines that failed are sent again unchanged."""
        if self._unsent:
            return self._unsent
        me = self._sending_identity = self._identity
        lines = []
        if self._sent_identity is not me:
            facts = dict(me.about, kind="run", run=me.run, session=me.session, at=time.time())
            if me.labels:
                of_job = {name: me.labels[name] for name in me.labels if name not in OF_NODES}
                facts.update(labels=of_job, node=me.node, node_labels=dict(me.labels))
            lines.append(encode_line(facts))
        steps: list[bytes] = []
        while self._queue and len(steps) < MAX_LINES and self._is_due(self._queue[0]):
            record = self._queue.popleft()
            try:
                if isinstance(record, dict):
                    steps.append(self._worker_line("compile", **record))
                else:
                    steps.append(self._step(record))
            except Exception as error:
                self.n_dropped += 1
                warn_once("a report cannot be encoded: %s", error)
        has_new_drops = self.n_dropped > self._n_dropped_sent and (steps or self._end is not None)
        if has_new_drops or time.monotonic() - self._last_sent_s > HEARTBEAT_EVERY_S:
            trace = None if self._trace is None else self._trace.state
            lines.append(
                self._worker_line(
                    "beat",
                    at=time.time(),
                    n_dropped=self.n_dropped,
                    runtime_trace=trace,
                    activity=self._does or None,
                    activity_s=round(time.monotonic() - self._does_since_s, 1),
                )
            )
            self._n_dropped_sent = self.n_dropped
        self._has_end = self._end is not None and not self._queue and not self._is_over
        end = [self._worker_line("end", **(self._end or {}))] if self._has_end else []
        self._unsent, self._n_unsent_steps = [*lines, *steps, *end], len(steps)
        return self._unsent

    def _is_due(self, record: Union[Record, dict[str, Any]]) -> bool:
        """Hold a traced step until the executions that it started have been read as well."""
        if self._trace is None or isinstance(record, dict) or self._end is not None:
            return True
        return self._trace.has_read(record[1] + TRACE_DELAY_S)

    def _send(self, lines: list[bytes]) -> bool:
        """Send lines; return whether they are finished: accepted, or rejected for good."""
        headers = {"X-Trnwatch-At": f"{time.time():.3f}"}
        if hasattr(time, "CLOCK_BOOTTIME"):
            # Shows the server when this machine's wall clock was set.
            headers["X-Trnwatch-Up"] = f"{time.clock_gettime(time.CLOCK_BOOTTIME):.3f}"
        try:
            response = self._wire.post(PATH, gzip.compress(b"\n".join(lines), 1), headers)
        except Exception as error:
            self._failures += 1
            warn_once("the server is unreachable (%s); reports are queued", error)
            return False
        body = response.body
        if not response.is_accepted and not response.is_rejected:
            self._failures += 1
            warn_once("the server responds %s", response)
            return False
        n_refused = self._n_unsent_steps
        if response.is_accepted:
            n_refused = int(body.get("n_refused") or 0)
        if n_refused:
            # Only steps count as dropped: other refused lines, such as heartbeats, carry no data.
            self.n_dropped += min(n_refused, self._n_unsent_steps)
            warn_once("the server refuses reports: %s", body.get("refused") or dict(body))
        wanted_s = number_of(body.get("trace_s"))
        if self._trace is not None and wanted_s is not None:
            self._trace.request(wanted_s)
        self._failures, self._unsent, self._last_sent_s = 0, [], time.monotonic()
        # The server may have lost the run's facts, as with a database that was restored.
        self._sent_identity = None if body.get("wants_run") else self._sending_identity
        self._is_over = self._is_over or self._has_end
        return True

    def _step(self, record: Record) -> bytes:
        number, ended_at, step_s, collectives, parts, tokens, loss = record
        if number < self._newest_step:
            # Training begins again, from a checkpoint or at 0, in the same process.
            self._boot = new_boot()
        self._newest_step = number
        names = ("input_s", "checkpoint_s", "other_s")
        fields: dict[str, Any] = {
            name: None if part is None else round(part, 6) for name, part in zip(names, parts)
        }
        if collectives is not None:
            fields["collective_s"] = [round(seconds, 6) for seconds in collectives.seconds]
            fields["arrived_at"] = [round(moment, 6) for moment in collectives.arrived_at]
        if self._trace is not None:
            fields.update(self._trace.fields_of(ended_at - step_s, ended_at))
        return self._worker_line(
            "step",
            step=int(number),
            ended_at=round(ended_at, 6),
            step_s=max(round(step_s, 6), 1e-6),
            tokens=tokens,
            loss=None if loss is None else number_or_name(loss),
            **fields,
        )

    def _worker_line(self, kind: str, **fields: Any) -> bytes:
        me = self._identity
        who = {
            "run": me.run,
            "session": me.session,
            "boot": self._boot,
            "worker": me.worker,
            "node": me.node,
            "rank": me.rank,
            "stage": me.stage,
            "group": me.group or None,
            "n_workers": me.n_workers,
        }
        return encode_line({"kind": kind, **who, **fields})


def new_boot() -> str:
    """Return a random id of one start of this process."""
    return uuid.uuid4().hex[:16]


def number_or_name(loss: float) -> Union[float, str]:
    """Return a loss for JSON, which has no numbers that are not finite."""
    if math.isnan(loss):
        return "NaN"
    if abs(loss) > MAX_LOSS:
        return "Infinity" if loss > 0 else "-Infinity"
    return loss


def encode_line(fields: Mapping[str, object]) -> bytes:
    """Encode one line; fields that are None are left out."""
    known = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(known, separators=(",", ":"), allow_nan=False).encode()
