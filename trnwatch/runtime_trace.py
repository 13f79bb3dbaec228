"""What the Neuron runtime, or NCCL, did in each step: executing, at barriers, in collectives.

``libnrt.so.1``, the runtime's library that the training process has loaded, records trace events
and returns them as JSON (``nrt/nrt_sys_trace.h``). A process sees the events of its own cores
only. Nothing here loads the runtime, waits for it, or raises into training.
"""

import ctypes
import json
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, Protocol

LIBRARY = "libnrt.so.1"
# Event types of the runtime and the field of a step that each becomes.
FIELDS = {
    "nc_exec_running": "executing_s",
    "cc_exec_barrier": "barrier_s",
    "cc_running": "collective_trace_s",
}
MAX_EVENTS_PER_CORE = 50_000
KEEP_S = 120.0
# Reading events may take this share of a process's time; above it the trace pauses.
MAX_SHARE_OF_TIME = 0.01
# A server may ask for a trace of this length at most.
MAX_REQUEST_S = 600.0
ON_REQUEST = "on request"
# A clock this far from the wall clock counts from another origin, such as the start of the device.
MAX_CLOCK_DIFFERENCE_S = 3600.0

Interval = tuple[float, float]
Execution = tuple[float, float, Any, Optional[int]]  # began at, ended at, model, its number
Clock = tuple[Any, Any]


class RuntimeTraceError(Exception):
    """Says why the runtime's trace cannot be read."""


class EventCapture(Protocol):
    """Captures events from ``start`` to ``stop``; ``fetch`` returns each once, as text."""

    def start(self) -> None: ...
    def fetch(self) -> bytes: ...
    def stop(self) -> None: ...


class EventIntervals(Protocol):
    """What the fetched events show; ``state`` is sent to the server while they arrive."""

    state: str

    def read_until_s(self, now_s: float) -> float:
        """Return the moment up to which a fetch at ``now_s`` returns all events."""

    def read(self, text: bytes, now_s: float) -> bool:
        """Take the events of one fetch; return whether none were lost."""

    def forget(self, before_s: float) -> None: ...
    def new_executions(self) -> list[Execution]: ...
    def seconds(self, began_at_s: float, ended_at_s: float) -> Mapping[str, float]: ...


class RuntimeLibrary:
    """The functions of ``libnrt`` that capture and fetch trace events; raise RuntimeTraceError."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._options = ctypes.c_void_p()

    @classmethod
    def loaded(cls, name: str = LIBRARY) -> "Optional[RuntimeLibrary]":
        """Return the library if this process has loaded it; never loads it."""
        try:
            return cls(ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW))
        except OSError:
            return None

    def start(self) -> None:
        config = ctypes.c_void_p()
        self._call("config_allocate", ctypes.byref(config))
        try:
            self._call("config_set_defaults", config, is_checked=False)
            most = ctypes.c_uint64(MAX_EVENTS_PER_CORE)
            self._call("config_set_max_events_per_nc", config, most, is_checked=False)
            for name in self._event_types():
                is_used = ctypes.c_bool(name.decode(errors="replace") in FIELDS)
                self._call("config_set_capture_enabled_for_event_type", config, name, is_used)
            self._call("start", config)
        finally:
            self._call("config_free", config, is_checked=False)

    def _event_types(self) -> list[bytes]:
        names, count = ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_size_t()
        self._call("get_event_types", ctypes.byref(names), ctypes.byref(count))
        try:
            return [names[place] or b"" for place in range(count.value)]
        finally:
            self._call("free_event_types", names, count, is_checked=False)

    def stop(self) -> None:
        self._call("stop")

    def fetch(self) -> bytes:
        """Return the events since the last call, as JSON."""
        text, size = ctypes.c_char_p(), ctypes.c_size_t()
        self._call("fetch_events", ctypes.byref(text), ctypes.byref(size), None)
        try:
            return ctypes.string_at(text, size.value) if text else b""
        finally:
            if text:
                self._call("buffer_free", text, is_checked=False)

    def _call(self, name: str, *arguments: Any, is_checked: bool = True) -> None:
        try:
            function = getattr(self._library, "nrt_sys_trace_" + name)
        except AttributeError as error:
            raise RuntimeTraceError(
                f"{LIBRARY} has no nrt_sys_trace_{name}: the Neuron runtime is too old"
            ) from error
        status = function(*arguments)
        if is_checked and status != 0:
            raise RuntimeTraceError(f"nrt_sys_trace_{name} failed with status {status}")


class RuntimeTrace:
    """Collects events and returns the times of a step.

    ``library`` returns what captures the events, or None while the process has not loaded it;
    ``absent`` says so. After an error the trace is over, and ``problem`` says why. With
    ``on_request`` events are collected only while `request` asks for them.
    """

    def __init__(
        self,
        library: Callable[[], Optional[EventCapture]] = RuntimeLibrary.loaded,
        *,
        events: Optional[EventIntervals] = None,
        absent: str = f"{LIBRARY} is not loaded in this process",
        problem: str = "",
        on_request: bool = False,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.thread_time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_library = library
        self._absent = absent
        self._library: Optional[EventCapture] = None
        self._clock, self._timer, self._monotonic = clock, timer, monotonic
        self._on_request = on_request
        self._wanted_until_s = float("-inf")
        self._events: EventIntervals = _Events() if events is None else events
        self._paused_until_s = float("-inf")
        self._covered_since_s = float("inf")
        self._covered: deque[Interval] = deque()
        self._read_until_s = float("-inf")
        self.problem = problem

    @property
    def state(self) -> str:
        """State of the trace: ``on``, with its source if it is another, or why there is none.

        ``on request`` where nothing is known to be wrong.
        """
        if self.problem:
            return self.problem[:200]
        if self._on_request and (self._covered or not self._is_wanted):
            return ON_REQUEST
        return (self._events.state if self._covered else self._absent)[:200]

    @property
    def _is_wanted(self) -> bool:
        return not self._on_request or self._monotonic() < self._wanted_until_s

    def request(self, seconds: float) -> None:
        """Collect events for so long from now on, where they are collected on request."""
        self._wanted_until_s = self._monotonic() + min(seconds, MAX_REQUEST_S)

    def has_read(self, until_s: float) -> bool:
        """Whether the events up to this moment were read, or will not come."""
        is_over = bool(self.problem) or self._library is None
        return is_over or not self._covered or self._read_until_s >= until_s

    def poll(self) -> None:
        """Read the events since the last call; start the trace once the runtime is loaded."""
        if self.problem:
            return
        try:
            self._poll()
        except Exception as error:
            self.stop()
            self.problem = str(error) or type(error).__name__

    def _poll(self) -> None:
        if not self._is_wanted:
            if self._library is not None:
                self._library.stop()
                self._library = None
            return
        began_s, now_s = self._timer(), self._clock()
        self._read_until_s = self._events.read_until_s(now_s)
        if self._library is None:
            if now_s < self._paused_until_s:
                return
            library = self._find_library()
            if library is None:
                return
            library.start()
            self._library, self._covered_since_s = library, now_s
            return
        is_complete = self._events.read(self._library.fetch(), now_s)
        self._events.forget(now_s - KEEP_S)
        if not is_complete:
            # The runtime dropped events, so what came before this moment is not known.
            self._covered_since_s = now_s
        if self._covered and self._covered[-1][0] == self._covered_since_s:
            self._covered.pop()
        self._covered.append((self._covered_since_s, self._read_until_s))
        while self._covered and self._covered[0][1] < now_s - KEEP_S:
            self._covered.popleft()
        cost_s = self._timer() - began_s
        if cost_s > MAX_SHARE_OF_TIME * max(1.0, now_s - self._covered_since_s):
            self._library.stop()
            self._library = None
            self._paused_until_s = now_s + cost_s / MAX_SHARE_OF_TIME

    def fields_of(self, began_at_s: float, ended_at_s: float) -> Mapping[str, float]:
        """Return the seconds of a step in each state, means over this process's cores.

        Empty if the trace does not cover the step. ``collective_trace_s`` may overlap with
        compute: the events do not say.
        """
        if not any(since <= began_at_s and ended_at_s <= until for since, until in self._covered):
            return {}
        return self._events.seconds(began_at_s, ended_at_s)

    def new_executions(self) -> list[Execution]:
        """Return the executions of one core since the last call, on the wall clock."""
        return self._events.new_executions()

    def stop(self) -> None:
        library, self._library = self._library, None
        if library is not None:
            try:
                library.stop()
            except RuntimeTraceError as error:
                self.problem = str(error)


class _Events:
    """Intervals of the runtime's events, by event type and clock.

    Each physical core counts time from an origin of its own; a logical core (``nc_idx``) may
    consist of several. A clock is therefore named by both.
    """

    state = "on"

    def __init__(self) -> None:
        self._open: dict[tuple[str, Any, Any], tuple[Clock, float, Any]] = {}
        self._executions: deque[tuple[Clock, Execution]] = deque(maxlen=MAX_EVENTS_PER_CORE)
        self._intervals: dict[tuple[str, Clock], deque[Interval]] = {}
        self._offset_s: dict[Clock, float] = {}

    def read_until_s(self, now_s: float) -> float:
        return now_s

    def read(self, text: bytes, now_s: float) -> bool:
        """Take the events of one fetch; return whether none were lost.

        Raises RuntimeTraceError if the JSON is unknown.
        """
        events = _event_list(text)
        used = [event for event in events if isinstance(event, dict) and _name(event) in FIELDS]
        if events and not any(isinstance(event, dict) and _name(event) for event in events):
            raise RuntimeTraceError(f"the runtime's events have unknown fields: {_keys(events)}")
        moments = [(moment, event) for event in used if (moment := _moment_s(event)) is not None]
        n_by_core: dict[Any, int] = {}
        newest: dict[Clock, float] = {}
        for at_s, event in sorted(moments, key=lambda each: each[0]):
            core = event.get("nc_idx", 0)
            n_by_core[core] = n_by_core.get(core, 0) + 1
            if (ended := self._add(event, at_s)) is not None:
                newest[ended[0]] = ended[1]
        for clock, ended_at_s in newest.items():
            # How far a clock is from the wall clock: no event is newer than its fetch.
            behind_s = now_s - ended_at_s
            if clock not in self._offset_s:
                is_wall_clock = abs(behind_s) < MAX_CLOCK_DIFFERENCE_S
                self._offset_s[clock] = 0.0 if is_wall_clock else behind_s
            elif self._offset_s[clock]:
                self._offset_s[clock] = min(self._offset_s[clock], behind_s)
        return max(n_by_core.values(), default=0) < MAX_EVENTS_PER_CORE

    def _add(self, event: Mapping[str, Any], at_s: float) -> Optional[tuple[Clock, float]]:
        """Take one event; return the clock and the end of an interval that it completes."""
        name, core, data = _name(event), event.get("nc_idx", 0), event.get("data")
        data = data if isinstance(data, dict) else {}
        clock = (core, data.get("device_core_idx"))
        key = (name, core, event.get("tracking_id", event.get("id")))
        duration_ns = number_of(event.get("duration_ns"))
        if duration_ns is not None:
            since_s, until_s = at_s, at_s + duration_ns / 1e9
        elif event.get("phase") == "stop" and key in self._open:
            (clock, since_s, data), until_s = self._open.pop(key), at_s
        else:
            if event.get("phase") == "start":
                self._open[key] = clock, at_s, data
            return None
        if name == "nc_exec_running":
            number = data.get("exec_id")
            known = number if isinstance(number, int) else None
            self._executions.append((clock, (since_s, until_s, data.get("model_id"), known)))
        self._intervals.setdefault((name, clock), deque()).append((since_s, until_s))
        return clock, until_s

    def new_executions(self) -> list[Execution]:
        """Return and forget the executions of the core with the lowest number."""
        first = min((clock for clock, _ in self._executions), key=repr, default=None)
        executions = [
            (since_s + self._offset_s[clock], until_s + self._offset_s[clock], model, number)
            for clock, (since_s, until_s, model, number) in self._executions
            if clock == first
        ]
        self._executions.clear()
        return sorted(executions, key=lambda each: each[:2])

    def forget(self, before_s: float) -> None:
        if len(self._open) > MAX_EVENTS_PER_CORE:
            self._open.clear()
        for (_, clock), intervals in self._intervals.items():
            while intervals and intervals[0][1] + self._offset_s[clock] < before_s:
                intervals.popleft()

    def seconds(self, began_at_s: float, ended_at_s: float) -> Mapping[str, float]:
        """Return the mean over logical cores of the time in each state; empty without any."""
        cores = {core for _, (core, _) in self._intervals}
        totals, n_cores = dict.fromkeys(FIELDS.values(), 0.0), 0
        for core in cores:
            executing = self._within("nc_exec_running", core, began_at_s, ended_at_s)
            if not executing:
                continue
            n_cores += 1
            barrier = self._within("cc_exec_barrier", core, began_at_s, ended_at_s)
            collective = self._within("cc_running", core, began_at_s, ended_at_s)
            totals["executing_s"] += union_length(executing)
            totals["barrier_s"] += union_length(barrier)
            # A barrier inside a collective counts as the barrier.
            totals["collective_trace_s"] += union_length([*barrier, *collective]) - union_length(
                barrier
            )
        return {name: round(total / n_cores, 6) for name, total in totals.items() if n_cores}

    def _within(self, name: str, core: Any, since_s: float, until_s: float) -> list[Interval]:
        return [
            (max(since_s, start + offset_s), min(until_s, stop + offset_s))
            for (each, clock), intervals in self._intervals.items()
            if each == name and clock[0] == core
            for offset_s in (self._offset_s[clock],)
            for start, stop in intervals
            if start + offset_s < until_s and stop + offset_s > since_s
        ]


def _event_list(text: bytes) -> list[Any]:
    """Return the events of the runtime's JSON: a list, or an object with ``events``."""
    if not text.strip(b"\0 \n"):
        return []
    try:
        document = json.loads(text.rstrip(b"\0"))
    except ValueError as error:
        raise RuntimeTraceError(f"the runtime's events are not JSON: {error}") from error
    events = document.get("events") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise RuntimeTraceError(f"the runtime's JSON has no list of events: {_keys([document])}")
    return events


def _name(event: Mapping[str, Any]) -> str:
    return str(event.get("event_type") or event.get("name") or "")


def _moment_s(event: Mapping[str, Any]) -> Optional[float]:
    """Return when an event began or ended, on its own clock.

    The device's clock comes first: both ends of an event have it, and it is the more exact.
    """
    data = event.get("data")
    device = data.get("nc_timestamp_ns") if isinstance(data, dict) else None
    for value in (device, event.get("timestamp_ns"), event.get("start_ts")):
        if (number := number_of(value)) is not None:
            return number / 1e9
    return None


def number_of(value: Any) -> Optional[float]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else None


def union_length(intervals: Iterable[Interval]) -> float:
    """Return the total length of a union of intervals."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def _keys(found: list[Any]) -> str:
    first = found[0] if found else None
    return ", ".join(sorted(map(str, first))[:20]) if isinstance(first, dict) else repr(first)[:80]
