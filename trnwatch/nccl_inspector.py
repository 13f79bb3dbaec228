"""NCCL Inspector's records of this process: collectives and other communication on GPU nodes.

The profiler plugin of NCCL writes one JSON object per line to ``<host>-pid<pid>.log`` in
``NCCL_INSPECTOR_DUMP_DIR``. Formats 4.0 to 4.3 are read: up to 4.2 each record names its
communicator, from 4.3 on a ``dump_stats`` line names that of the records that follow.
"""

import json
import os
import re
import socket
from collections import Counter, deque
from collections.abc import Mapping
from typing import IO, Any, Optional

from trnwatch.runtime_trace import (
    MAX_EVENTS_PER_CORE,
    Execution,
    Interval,
    RuntimeTrace,
    RuntimeTraceError,
    number_of,
    union_length,
)

SOURCE = "NCCL Inspector"
INTERVAL = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
MAX_INTERVAL_S = 10.0
# A record is in the file this long after its dump at the latest.
WRITTEN_AFTER_S = 0.5
MAX_BYTES, MAX_LINE_BYTES = 8_000_000, 1_000_000
# This line marks lost records: it is not JSON.
LOST = b"?\n"
KNOWN = ("coll_perf", "p2p_perf", "dump_stats", "proxy_trace")
DROPPED = ("coll_dropped_since_last_dump", "p2p_dropped_since_last_dump")
# Operations that exchange gradients and parameters; any other is other communication.
EXCHANGE = ("AllReduce", "ReduceScatter", "AllGather", "Reduce", "Broadcast")
# Words in a communicator's name, in this order: gradients, or other communication.
WORDS = re.compile("[a-z]+")
DATA = frozenset(("data", "dp", "ddp", "fsdp", "hsdp", "replicate", "shard"))
MODEL = frozenset(
    ("tensor", "pipeline", "expert", "context", "sequence", "model", "tp", "pp", "ep", "cp", "sp")
)
# The steps of a script without reports are those of the communicator with most of these.
MIN_RECORDS = 24


def inspector_trace(env: Mapping[str, str], *, on_request: bool = False) -> RuntimeTrace:
    """Return a trace that reads this process's records instead of the Neuron runtime's."""
    job = env.get("SLURM_JOBID") or env.get("SLURM_JOB_ID") or "unknown-jobid"
    folder = env.get("NCCL_INSPECTOR_DUMP_DIR") or f"nccl-inspector-{job}"
    path = os.path.join(folder, f"{socket.gethostname()}-pid{os.getpid()}.log")  # noqa: PTH118
    interval_s, problem = dump_interval_s(env), ""
    if interval_s > MAX_INTERVAL_S:
        problem = (
            f"{INTERVAL} must be 0 to {MAX_INTERVAL_S * 1e6:.0f}, so that records come in time"
        )
    return RuntimeTrace(
        lambda: InspectorFile.found(path),
        events=InspectorEvents(interval_s),
        absent=f"{SOURCE} has not written {path}",
        problem=problem,
        on_request=on_request,
    )


def dump_interval_s(env: Mapping[str, str]) -> float:
    """Return how often records are written, in seconds; infinite if only at the end."""
    try:
        micros = int(env.get(INTERVAL, "-1"))
    except ValueError:
        micros = -1
    return micros / 1e6 if micros >= 0 else float("inf")


class InspectorFile:
    """The growing file of records; it may be truncated or replaced."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: IO[bytes] = open(path, "rb")  # noqa: PTH123, SIM115 - open until stop
        self._partial = b""

    @classmethod
    def found(cls, path: str) -> "Optional[InspectorFile]":
        try:
            return cls(path)
        except FileNotFoundError:
            return None

    def start(self) -> None:
        """Begin near the end of a long file."""
        size = os.fstat(self._file.fileno()).st_size
        self._file.seek(max(0, size - MAX_BYTES // 2))

    def fetch(self) -> bytes:
        """Return the whole lines since the last call; ``LOST`` where some are missing."""
        text = self._partial + self._read()
        size = os.fstat(self._file.fileno()).st_size
        if size < self._file.tell():
            self._file.seek(0)
            text = LOST + self._read()
        elif self._is_replaced():
            self._file.close()
            self._file = open(self._path, "rb")  # noqa: PTH123, SIM115 - open until stop
            text += b"\n" + LOST + self._read()
        whole, newline, self._partial = text.rpartition(b"\n")
        if len(self._partial) > MAX_LINE_BYTES:
            raise RuntimeTraceError(f"{self._path} has a line of more than {MAX_LINE_BYTES} bytes")
        return whole + newline

    def _read(self) -> bytes:
        text = self._file.read(MAX_BYTES)
        if len(text) < MAX_BYTES:
            return text
        self._file.seek(0, os.SEEK_END)
        return text + b"\n" + LOST

    def _is_replaced(self) -> bool:
        """Whether the path names another file; a removed file is still written to."""
        try:
            return not os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))  # noqa: PTH116
        except FileNotFoundError:
            return False

    def stop(self) -> None:
        self._file.close()


class InspectorEvents:
    """Intervals of a process's communication, on the wall clock."""

    state = f"on: {SOURCE}"

    def __init__(self, interval_s: float) -> None:
        self._delay_s = interval_s + WRITTEN_AFTER_S
        self._exchanges: deque[Interval] = deque(maxlen=MAX_EVENTS_PER_CORE)
        self._others: deque[Interval] = deque(maxlen=MAX_EVENTS_PER_CORE)
        self._executions: deque[tuple[Any, Execution]] = deque(maxlen=MAX_EVENTS_PER_CORE)
        self._communicator: Mapping[str, Any] = {}
        self._finds_steps_by: Any = None
        self._has_others = False
        self._n_read = 0

    def read_until_s(self, now_s: float) -> float:
        return now_s - self._delay_s

    def read(self, text: bytes, now_s: float) -> bool:
        """Take the lines of one fetch; return whether no record was lost.

        Raises RuntimeTraceError if the records are unknown or have no times.
        """
        n_lost = n_known = 0
        unknown = ""
        for line in text.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                n_lost += 1
                continue
            if not isinstance(record, dict) or not any(key in record for key in KNOWN):
                unknown = ", ".join(sorted(record)) if isinstance(record, dict) else str(record)
                continue
            n_known += 1
            n_lost += not self._add(record)
        self._n_read += n_known
        if not self._n_read and (unknown or n_lost > 1):
            raise RuntimeTraceError(f"{SOURCE}'s records have unknown fields: {unknown[:80]}")
        return not n_lost and not unknown

    def _add(self, record: Mapping[str, Any]) -> bool:
        """Take one record; return False if it, or one before it, is lost."""
        header = record.get("header")
        if isinstance(header, dict):
            self._communicator = header
        stats = record.get("dump_stats")
        if isinstance(stats, dict):
            return not any(stats.get(name) for name in DROPPED)
        for kind in ("coll", "p2p"):
            operation = record.get(f"{kind}_perf")
            if isinstance(operation, dict):
                return bool(self._communicator) and self._add_operation(kind, operation)
        return True

    def _add_operation(self, kind: str, operation: Mapping[str, Any]) -> bool:
        took_us = number_of(operation.get(f"{kind}_exec_time_us"))
        began_us = kernel_began_us(kind, operation)
        if took_us is None or began_us is None:
            return False
        interval = (began_us / 1e6, (began_us + took_us) / 1e6)
        name = str(operation.get(kind))
        if name in EXCHANGE and not is_model_parallel(self._communicator):
            self._exchanges.append(interval)
            number = operation.get(f"{kind}_sn")
            model = (name, operation.get(f"{kind}_msg_size_bytes"))
            execution = (*interval, model, number if isinstance(number, int) else None)
            self._executions.append((self._communicator.get("id"), execution))
        else:
            self._others.append(interval)
            self._has_others = True
        return True

    def new_executions(self) -> list[Execution]:
        """Return and forget the exchanges of the communicator that has most of them."""
        if self._finds_steps_by is None:
            if len(self._executions) < MIN_RECORDS:
                return []
            counts = Counter(communicator for communicator, _ in self._executions)
            self._finds_steps_by = counts.most_common(1)[0][0]
        executions = [each for name, each in self._executions if name == self._finds_steps_by]
        self._executions.clear()
        return sorted(executions, key=lambda each: each[:2])

    def forget(self, before_s: float) -> None:
        for intervals in (self._exchanges, self._others):
            while intervals and intervals[0][1] < before_s:
                intervals.popleft()

    def seconds(self, began_at_s: float, ended_at_s: float) -> Mapping[str, float]:
        """Return the time of a step in exchanges and in other communication; empty without any.

        A kernel waits for its peers itself, so there is no barrier apart from the collective.
        ``other_comm_s`` is left out until such communication was seen: it may not be recorded.
        """
        exchanges = _within(self._exchanges, began_at_s, ended_at_s)
        if not exchanges:
            return {}
        seconds = {"barrier_s": 0.0, "collective_trace_s": round(union_length(exchanges), 6)}
        if self._has_others:
            others = _within(self._others, began_at_s, ended_at_s)
            seconds["other_comm_s"] = round(union_length(others), 6)
        return seconds


def _within(intervals: "deque[Interval]", since_s: float, until_s: float) -> list[Interval]:
    overlapping = []
    for start, stop in reversed(intervals):
        if start < until_s and stop > since_s:
            overlapping.append((max(since_s, start), min(until_s, stop)))
        elif stop < since_s - MAX_INTERVAL_S:
            # Records of communicators come in turns, but each within the interval.
            break
    return overlapping


def is_model_parallel(communicator: Mapping[str, Any]) -> bool:
    """Whether a communicator, by its name, carries activations instead of gradients."""
    words = set(WORDS.findall(str(communicator.get("comm_name", "")).lower()))
    return not words & DATA and bool(words & MODEL)


def kernel_began_us(kind: str, operation: Mapping[str, Any]) -> Optional[float]:
    """Return when the operation's kernel began; raises RuntimeTraceError without any times."""
    times = operation.get("event_trace_ts")
    if not isinstance(times, dict):
        raise RuntimeTraceError(
            f"{SOURCE}'s records have no times: set NCCL_INSPECTOR_DUMP_VERBOSE=1"
        )
    channels = times.get("kernel_events")
    channels = channels if isinstance(channels, list) else ()
    kernels = [channel for channel in channels if isinstance(channel, dict)]
    began = [number_of(kernel.get("kernel_start_ts")) for kernel in kernels]
    known = [moment for moment in began if moment]
    return min(known) if known else number_of(times.get(f"{kind}_start_ts"))
