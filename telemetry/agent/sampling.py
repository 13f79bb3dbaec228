"""A sample on request: cores and EFA devices many times a second, for some seconds."""

from __future__ import annotations

import base64
import json
import sys
import threading
import zlib
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from telemetry.agent.clock import Clock, Moment
from telemetry.agent.sources import (
    DEVICE,
    MICROS,
    EfaCounters,
    Monitor,
    OpenFile,
    SysfsLayout,
    core_files,
    numbered,
)

# Whatever the server requests, the agent reads no faster, no longer and no more often.
MIN_EVERY_S, MAX_LENGTH_S, MIN_BETWEEN_S = 0.1, 60.0, 60.0
MAX_ROWS, MAX_BYTES = 1000, 500_000
# A core's utilization is a byte in steps of half a percent, the bytes of an EFA device are four.
FULL = 200
CORES, BYTES = "B", "I"
MISSING = {CORES: 0xFF, BYTES: 0xFFFF_FFFF}


class SampleTable:
    """What one source said: rows of values by part, each with when it was read.

    A part that appears later is missing in the rows before.
    """

    def __init__(self, name: str, code: str) -> None:
        """Give ``code`` CORES for utilization, or BYTES for what grew since the last row."""
        self.name = name
        self.note = ""
        self._code = code
        self._place: dict[str, int] = {}
        self._ms = array("I")
        self._rows: list[array[int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, ms: int, values: Mapping[str, int | None]) -> None:
        """Add a row read ``ms`` after the start; None is missing. Too many rows are left out."""
        if not values or len(self._rows) == MAX_ROWS:
            return
        for part in values:
            self._place.setdefault(part, len(self._place))
        missing = MISSING[self._code]
        row = array(self._code, [missing]) * len(self._place)
        for part, value in values.items():
            if value is not None:
                row[self._place[part]] = min(max(value, 0), missing - 1)
        self._ms.append(ms)
        self._rows.append(row)

    def head(self) -> dict[str, Any]:
        fields = {"name": self.name, "parts": [*self._place], "n": len(self._rows)}
        return {**fields, "note": self.note[:200]} if self.note else fields

    def packed(self) -> bytes:
        """Return the times, then the rows one after the other, as little-endian integers."""
        flat = array(self._code)
        for row in self._rows:
            flat.extend(row)
            flat.extend([MISSING[self._code]] * (len(self._place) - len(row)))
        ms = array("I", self._ms)
        if sys.byteorder == "big":
            ms.byteswap()
            flat.byteswap()
        return ms.tobytes() + flat.tobytes()


def encode_sample(
    number: object, at_s: float, every_s: float, length_s: float, tables: list[SampleTable]
) -> dict[str, Any]:
    """Return a sample as it is sent, or why there is none."""
    if not any(len(table) for table in tables):
        notes = "; ".join(dict.fromkeys(table.note for table in tables if table.note))
        return {"id": number, "reason": f"nothing to sample: {notes}"[:200]}
    packed = zlib.compress(b"".join(table.packed() for table in tables))
    if len(packed) > MAX_BYTES:
        reason = f"the sample has {len(packed)} bytes; at most {MAX_BYTES} are sent"
        return {"id": number, "reason": reason}
    return {
        "id": number,
        "at": round(at_s, 3),
        "every_s": every_s,
        "length_s": length_s,
        "tables": [table.head() for table in tables],
        "data": base64.b64encode(packed).decode(),
    }


def monitor_row(report: bytes) -> dict[str, int | None]:
    """Return each core's utilization in a report of neuron-monitor; empty if it has none."""
    row: dict[str, int | None] = {}
    try:
        for runtime in json.loads(report)["neuron_runtime_data"]:
            counters = runtime["report"]["neuroncore_counters"]
            for core, use in counters["neuroncores_in_use"].items():
                halves = round(2 * float(use["neuroncore_utilization"]))
                # Of several processes the one counts that uses the core.
                row[str(core)] = min(FULL, max(halves, row.get(str(core)) or 0))
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    return row


class CoreTimes:
    """The driver's time in use of each physical core, as utilization between two readings."""

    def __init__(self, root: Path) -> None:
        """Read below ``root``, the Neuron driver's folder."""
        folders = numbered(root, DEVICE)
        self._files: dict[tuple[int, int], OpenFile] = {}
        if folders:
            layout = SysfsLayout(folders[0][1])
            if layout.busy is not None:
                self._files = core_files(root, layout, layout.busy)
        self._before: dict[tuple[int, int], int] = {}
        self._before_s = 0.0

    def read(self, now_s: float) -> dict[str, int | None]:
        """Return utilization since the last reading by ``device.core``; empty at first."""
        now = {key: us for key, file in self._files.items() if (us := file.integer()) is not None}
        before, self._before = self._before, now
        period_us, self._before_s = (now_s - self._before_s) * MICROS, now_s
        if not before or period_us <= 0:
            return {}
        return {
            f"{device}.{core}": round(FULL * min(1.0, (us - before[device, core]) / period_us))
            if us >= before.get((device, core), us + 1)
            else None
            for (device, core), us in now.items()
        }


class Sampler:
    """Samples in a thread of its own, one at a time, beside the reports of each second."""

    def __init__(
        self,
        *,
        efa_sysfs: Path,
        neuron_sysfs: Path,
        no_monitor: str,
        is_refused: bool,
        clock: Clock,
        answer: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """``answer`` takes what is sent; ``no_monitor`` is why neuron-monitor is not started."""
        self._efa_sysfs = efa_sysfs
        self._neuron_sysfs = neuron_sysfs
        self._no_monitor = no_monitor
        self._is_refused = is_refused
        self._clock = clock
        self._answer = answer
        self._requested: object = None
        self._began_s = float("-inf")
        self._running: threading.Thread | None = None
        self._stopped = threading.Event()

    def request(self, request: object) -> None:
        """Take the sample that the server requests, once for each id."""
        if not isinstance(request, dict) or request.get("id") == self._requested:
            return
        number = self._requested = request.get("id")
        reason = self._reason_against(request)
        if reason:
            self._answer({"id": number, "reason": reason})
            return
        self._began_s = self._clock.now().up_s
        self._answer({"id": number, "state": "sampling"})
        every_s, length_s = float(request["every_s"]), float(request["length_s"])
        self._running = threading.Thread(
            target=self._run, args=(number, every_s, length_s), name="sampler", daemon=True
        )
        self._running.start()

    def wait(self) -> None:
        if self._running is not None:
            self._running.join()

    def stop(self) -> None:
        self._stopped.set()
        self.wait()

    def _reason_against(self, request: Mapping[str, Any]) -> str:
        is_busy = self._running is not None and self._running.is_alive()
        since_s = self._clock.now().up_s - self._began_s
        reasons = (
            (self._is_refused, "the agent runs with --refuse-samples"),
            (request.get("is_started"), "the agent was restarted while it sampled"),
            (is_busy, "the agent takes another sample"),
            (since_s < MIN_BETWEEN_S, f"requested again within {MIN_BETWEEN_S:.0f} s"),
        )
        if reason := next((reason for is_so, reason in reasons if is_so), ""):
            return reason
        try:
            every_s, length_s = float(request["every_s"]), float(request["length_s"])
        except (KeyError, TypeError, ValueError):
            return "every_s and length_s must be numbers"
        if every_s < MIN_EVERY_S or not every_s <= length_s <= MAX_LENGTH_S:
            longest = f"{MAX_LENGTH_S:g} s at most"
            return f"this agent samples each {MIN_EVERY_S:g} s or slower, for {longest}"
        return ""

    def _run(self, number: object, every_s: float, length_s: float) -> None:
        try:
            answer = self._sample(number, every_s, length_s)
        except Exception as error:  # a request must never stay without an answer
            answer = {"id": number, "reason": f"{type(error).__name__}: {error}"[:200]}
        if self._stopped.is_set():
            answer = {"id": number, "reason": "the agent was stopped while it sampled"}
        self._answer(answer)

    def _sample(self, number: object, every_s: float, length_s: float) -> dict[str, Any]:
        monitor = None
        if not self._no_monitor:
            monitor = Monitor(command=None, stdin=False, period_s=every_s, only_cores=True)
        efa = EfaCounters(self._efa_sysfs, all_every_s=float("inf"), only=("tx_bytes", "rx_bytes"))
        cores = CoreTimes(self._neuron_sysfs)
        by_monitor, by_driver = SampleTable("monitor", CORES), SampleTable("driver", CORES)
        sent, received = SampleTable("efa_tx", BYTES), SampleTable("efa_rx", BYTES)
        by_monitor.note = self._no_monitor
        start = self._clock.now()
        try:
            efa.read(start.up_s)
            cores.read(start.up_s)
            slot, n_slots = 1, round(length_s / every_s)
            while slot <= n_slots and not self._stopped.is_set():
                due_s = start.up_s + slot * every_s
                now_s = self._wait_until(due_s, monitor, by_monitor, start)
                ms = round(1000 * (now_s - start.up_s))
                by_driver.add(ms, cores.read(now_s))
                grown = _grown(efa.read(now_s))
                sent.add(ms, {part: tx for part, (tx, _) in grown.items()})
                received.add(ms, {part: rx for part, (_, rx) in grown.items()})
                # A slow machine leaves out what it is too late for.
                slot += 1 + max(0, int((now_s - due_s) / every_s))
            if monitor is not None and not by_monitor.note:
                silent = "no process used a core, or neuron-monitor reported none"
                by_monitor.note = monitor.problem or ("" if len(by_monitor) else silent)
        finally:
            if monitor is not None:
                monitor.stop()
        by_driver.note = "" if len(by_driver) else "the Neuron driver shows no core times"
        sent.note = received.note = "" if len(sent) else "no EFA devices"
        tables = [by_monitor, by_driver, sent, received]
        return encode_sample(number, start.wall_s, every_s, length_s, tables)

    def _wait_until(
        self, due_s: float, monitor: Monitor | None, table: SampleTable, start: Moment
    ) -> float:
        """Wait, and read reports meanwhile; return the time, never before ``due_s``."""
        while (now_s := self._clock.now().up_s) < due_s and not self._stopped.is_set():
            if monitor is None:
                self._stopped.wait(due_s - now_s)
                continue
            for report in monitor.lines(now_s, due_s - now_s):
                ms = round(1000 * (self._clock.now().up_s - start.up_s))
                table.add(ms, monitor_row(report))
        return now_s


def _grown(efa: Mapping[str, Any] | None) -> dict[str, tuple[int | None, int | None]]:
    """Return bytes sent and received by EFA device, over its ports; empty at first."""
    if efa is None or "period" not in efa:
        return {}
    counts: dict[str, tuple[int | None, int | None]] = {}
    for port in efa["devices"]:
        part, grown = str(port["index"]), port["increase"]
        tx, rx = counts.get(part, (None, None))
        more_tx, more_rx = grown.get("tx_bytes"), grown.get("rx_bytes")
        counts[part] = (
            tx if more_tx is None else (tx or 0) + more_tx,
            rx if more_rx is None else (rx or 0) + more_rx,
        )
    return counts
