"""What the agent reads and how it is encoded: reports, sysfs, columns, and its own health."""

from __future__ import annotations

import argparse
import base64
import json
import re
import socket
import sys
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from trnwatch.surroundings import instance_id, metadata_labels

from telemetry.agent import VERSION
from telemetry.agent.clock import Clock, Moment
from telemetry.agent.sampling import Sampler
from telemetry.agent.sources import EfaCounters, Monitor, NeuronSysfs, Probes
from telemetry.agent.spool import Frame, gzip_member, stored_gzip_member

# Marks the place of a number in a template; a report that contains it is sent as it is.
HOLE = b"\x7f"
# A measured number; numbers that count or identify hardware stay in the template.
NUMBER = re.compile(
    rb'(?<=":)(?<!index":)(?<!"pid":)(?<!"port":)(?<!"core":)(?<!"device":)(?<!_count":)'
    rb"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?=[,}])"
)
ESCAPED = re.compile(rb"\\.")
# Integers up to here are exact as 64-bit floats.
MAX_EXACT = 2.0**53
MAX_ROWS = 30
GUNZIP = 16 + zlib.MAX_WBITS

MONITOR, SYSFS = 0, 1
PATHS = {MONITOR: "/api/v1/ingest/neuron-monitor", SYSFS: "/api/v1/ingest/efa"}
# A problem that lasts, or comes and goes, is logged no more often than this.
LOG_EVERY_S = 600.0
# Labels are sent this often: they change rarely.
LABELS_EVERY_S = 60.0
# After so many periods without a report, sysfs is sent without one.
SILENT_PERIODS = 2.5
# The longest wait in one call, so that the agent notices a signal to stop.
MAX_BACKOFF_S = 1.0
# The probe that the server may request.
EFA_LATENCY = "efa_latency"


@dataclass(frozen=True)
class ReportRow:
    template: bytes
    numbers: array[float]


@dataclass(frozen=True)
class FrameGroup:
    """Frames for one request: sent one by one, or as columns if there is a row for each."""

    frames: list[Frame]
    rows: list[ReportRow]

    @property
    def is_columns(self) -> bool:
        """Whether the frames are sent as columns; a single one is not worth it."""
        return len(self.rows) > 1


def group_frames(frames: Sequence[Frame]) -> Iterator[FrameGroup]:
    """Split frames, in order, into groups of the same template or of none."""
    run = FrameGroup([], [])
    for frame in frames:
        row = _report_row(frame)
        template = run.rows[0].template if run.rows else None
        is_other = (row.template if row else None) != template
        if run.frames and (is_other or len(run.frames) == MAX_ROWS):
            yield run
            run = FrameGroup([], [])
        run.frames.append(frame)
        run.rows.extend([row] if row else [])
    if run.frames:
        yield run


def encode_columns(
    rows: Sequence[ReportRow],
    *,
    stream: str,
    seq: Sequence[int],
    at_s: Sequence[float],
    health: Mapping[str, Any],
) -> bytes:
    """Return reports of one template as one line; a constant number is sent once."""
    table = [*zip(*(row.numbers for row in rows))]
    varies = [i for i, column in enumerate(table) if column.count(column[0]) < len(column)]
    more = array("d", (row.numbers[i] for row in rows[1:] for i in varies))
    fields = {
        "stream": stream,
        "seq": seq,
        "at": [round(moment_s, 6) for moment_s in at_s],
        "template": rows[0].template.decode(),
        "once": _base64(rows[0].numbers),
        "varies": varies,
        "more": _base64(more),
        "agent": health,
    }
    return (
        json.dumps({"columns": fields}, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    )


def _report_row(frame: Frame) -> ReportRow | None:
    """Split a report into template and numbers; None if that would not be exact."""
    text = b"{" + zlib.decompress(frame.tail, GUNZIP).rstrip()
    parts = NUMBER.split(text)
    if len(parts) < 3 or HOLE in text:
        return None
    numbers = array("d", map(float, parts[1::2]))
    if max(numbers) > MAX_EXACT or min(numbers) < -MAX_EXACT:
        return None
    template = HOLE.join(parts[::2])
    return ReportRow(template, numbers) if _is_sound(template) else None


_sound_templates: set[bytes] = set()


def _is_sound(template: bytes) -> bool:
    """Whether a template is UTF-8 with no hole inside a string: quotes pair up between holes."""
    if template in _sound_templates:
        return True
    try:
        template.decode()
    except UnicodeDecodeError:
        return False
    if any(ESCAPED.sub(b"", part).count(b'"') % 2 for part in template.split(HOLE)):
        return False
    if len(_sound_templates) > 8:
        _sound_templates.clear()
    _sound_templates.add(template)
    return True


def _base64(numbers: array[float]) -> str:
    """Encode numbers as little-endian 64-bit floats in Base64."""
    if sys.byteorder == "big":
        numbers = array("d", numbers)
        numbers.byteswap()
    return base64.b64encode(numbers).decode()


def encode_tail(report: bytes | None, sysfs: Mapping[str, Any]) -> bytes:
    """Return the end of a line: sysfs data, and the report as received, not parsed."""
    text = json.dumps(sysfs, separators=(",", ":"))[1:-1].encode()
    if report is None:
        return text + b"}\n"
    return text + (b"," if text else b"") + b'"report":' + report + b"}\n"


def encode_head(frame: Frame, stream: str, at_s: float, health: Mapping[str, Any] | None) -> bytes:
    """Return the beginning of a line, which is known only when it is sent."""
    fields: dict[str, Any] = {"at": round(at_s, 6), "seq": frame.seq, "stream": stream}
    if health is not None:
        fields["agent"] = health
    return json.dumps(fields, separators=(",", ":"))[:-1].encode() + b","


def encode_lines(
    frames: Sequence[Frame], stream: str, health: Mapping[str, Any], clock: Clock, now: Moment
) -> bytes:
    """Return frames as one gzip body; the last line carries the agent's health."""
    pieces = []
    for frame in frames:
        at_s = clock.wall_of(frame.made, frame.boot, now=now)
        is_last = frame is frames[-1]
        pieces.append(
            stored_gzip_member(encode_head(frame, stream, at_s, health if is_last else None))
        )
        pieces.append(frame.tail)
    return b"".join(pieces)


def _zstd() -> Callable[[bytes], bytes] | None:
    """Return the standard library's compressor (Python 3.14), or an installed one, if any."""
    for module in ("compression.zstd", "zstandard"):
        with suppress(ImportError):
            compress: Callable[[bytes], bytes] = import_module(module).compress
            return compress
    return None


# Smaller than gzip by a tenth, in half the time.
zstd = _zstd()


def encode_columns_body(
    run: FrameGroup,
    stream: str,
    health: Mapping[str, Any],
    clock: Clock,
    now: Moment,
    *,
    pack: Callable[[bytes], bytes] = gzip_member,
) -> bytes:
    """Return frames of one template as a packed body of one line."""
    at_s = [clock.wall_of(frame.made, frame.boot, now=now) for frame in run.frames]
    seq = [frame.seq for frame in run.frames]
    return pack(encode_columns(run.rows, stream=stream, seq=seq, at_s=at_s, health=health))


class Health:
    """Counts and problems since the agent started; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {"n_dropped": 0, "n_refused": 0, "n_skipped": 0}
        self._problems: dict[str, str] = {}
        self._logged_s: dict[str, float] = {}
        self._open_problems: set[str] = set()
        # Whether the agent was asked to end: its restart is planned, and its silence is not news.
        self.is_stopping = False
        # Answers to what the server requests, by kind: sent until it requests it no more.
        self.answers: dict[str, Mapping[str, Any]] = {}
        self._sent_answers: dict[str, Mapping[str, Any]] = {}
        # What the surroundings say of the node, and when it was last sent.
        self.labels: Mapping[str, str] = {}
        self._labels_sent_s = float("-inf")

    def read_metadata(self) -> None:
        """Add the labels that the instance's metadata give; it may take seconds."""
        self.labels = {**metadata_labels(), **self.labels}

    def add(self, name: str, n: int = 1) -> None:
        with self._lock:
            self._counts[name] += n

    def set(self, name: str, n: int) -> None:
        with self._lock:
            self._counts[name] = n

    def problem(self, part: str, text: str) -> None:
        """Set the problem of one part of the agent; an empty text clears it."""
        with self._lock:
            if text:
                self._problems[part] = text[:200]
            else:
                self._problems.pop(part, None)
            news = self._log_line(part, text)
        if news:
            with suppress(OSError, ValueError):
                sys.stderr.write(f"trnwatch-agent: {news}\n")
                sys.stderr.flush()

    def _log_line(self, part: str, text: str) -> str:
        """Return the line to log when a problem starts, lasts or ends; empty for none."""
        if not text:
            was_open = part in self._open_problems
            self._open_problems.discard(part)
            return f"{part}: recovered" if was_open else ""
        now_s = time.monotonic()
        if now_s - self._logged_s.get(part, -LOG_EVERY_S) < LOG_EVERY_S:
            return ""
        self._logged_s[part] = now_s
        self._open_problems.add(part)
        return text[:200]

    def answer(self, kind: str, answer: Mapping[str, Any]) -> None:
        with self._lock:
            self.answers[kind] = answer

    def forget_answer(self, kind: str) -> None:
        """Drop an answer that the server has; one that was not sent yet stays."""
        with self._lock:
            if kind in self.answers and self.answers[kind] is self._sent_answers.get(kind):
                del self.answers[kind]

    def summary(self, *, n_waiting: int) -> dict[str, Any]:
        """Return the health object that is sent to the server."""
        with self._lock:
            problem = "; ".join(self._problems.values())[:200]
            fields: dict[str, Any] = {"version": VERSION, "n_waiting": n_waiting, **self._counts}
            self._sent_answers = dict(self.answers)
            fields.update(self._sent_answers)
            if self.is_stopping:
                fields["stopping"] = True
            if self.labels and time.monotonic() - self._labels_sent_s >= LABELS_EVERY_S:
                self._labels_sent_s = time.monotonic()
                fields["labels"] = self.labels
            return {**fields, "problem": problem} if problem else fields


Line = tuple[int, Moment, bytes]


def _why_no_monitor(options: argparse.Namespace) -> str:
    """Return why no second neuron-monitor is started for a sample; empty if one is."""
    given = {"--command": options.command, "--stdin": options.stdin}
    given["--no-monitor"] = options.no_monitor
    used = next((name for name, value in given.items() if value), None)
    return f"the agent runs with {used}: no neuron-monitor was started" if used else ""


class Collector:
    """Reads the monitor, sysfs and probes, and yields the tails of lines."""

    def __init__(
        self,
        options: argparse.Namespace,
        clock: Clock,
        health: Health,
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read what the options name; ``pause`` waits so many seconds between two probes."""
        self._clock = clock
        self._health = health
        self._period_s: float = options.period
        self._node: str | None = options.node
        self._efa = EfaCounters(options.efa_sysfs)
        self._neuron = NeuronSysfs(options.neuron_sysfs)
        self._probes = Probes(
            file=options.probe_file,
            command=options.probe_command,
            every_s=options.probe_every,
            pause=pause,
        )
        self._refuses_probes: bool = options.refuse_probes
        self._monitor: Monitor | None = None
        if not options.no_monitor:
            self._monitor = Monitor(
                command=options.command, stdin=options.stdin, period_s=options.period
            )
        self._sampler = Sampler(
            efa_sysfs=options.efa_sysfs,
            neuron_sysfs=options.neuron_sysfs,
            no_monitor=_why_no_monitor(options),
            is_refused=options.refuse_samples,
            clock=clock,
            answer=lambda answer: health.answer("sample", answer),
        )
        self._requested: object = None
        self._last_report_s = clock.now().up_s
        self._last_sysfs_s = float("-inf")

    @property
    def is_over(self) -> bool:
        """Whether the source of reports has ended for good."""
        return self._monitor is not None and self._monitor.is_over

    def lines(self) -> Iterator[Line]:
        """Wait for at most ``MAX_BACKOFF_S`` and yield what was read."""
        now_s = self._clock.now().up_s
        wait_s = self._wait_s(now_s)
        if self._monitor is None:
            self._clock.sleep(wait_s)
            reports = []
        else:
            reports = self._monitor.lines(now_s, wait_s)
            self._health.set("n_skipped", self._monitor.n_skipped)
            self._health.problem("monitor", self._monitor.problem)
        moment = self._clock.now()
        for n_later in range(len(reports) - 1, -1, -1):
            sysfs = {} if n_later else self._read_sysfs(moment, alone=False)
            # Queued reports were made one period apart.
            earlier_s = n_later * self._period_s
            made = Moment(moment.wall_s - earlier_s, moment.up_s - earlier_s)
            yield MONITOR, made, encode_tail(reports[-1 - n_later], sysfs)
        if reports:
            self._last_report_s = moment.up_s
        elif not self.is_over and moment.up_s - self._last_sysfs_s >= self._period_s:
            silent_s = moment.up_s - self._last_report_s
            is_silent = self._monitor is None or silent_s >= SILENT_PERIODS * self._period_s
            if is_silent:
                yield from self._sysfs_line(moment)

    def last_lines(self) -> Iterator[Line]:
        """Yield a line that can tell that the agent ends, whenever the last one was."""
        yield from self._sysfs_line(self._clock.now())

    def _sysfs_line(self, moment: Moment) -> Iterator[Line]:
        if sysfs := self._read_sysfs(moment, alone=True):
            name = self._node or instance_id() or socket.gethostname().partition(".")[0]
            instance = {"instance": {"instance_id": name}}
            yield SYSFS, moment, encode_tail(None, {**instance, **sysfs})

    def stop(self) -> None:
        self._sampler.stop()
        if self._monitor is not None:
            self._monitor.stop()

    def take_requests(self, response: Mapping[str, Any]) -> None:
        """Do what the server's response to a report requests: a probe, a sample, or nothing."""
        for kind, take in (("probe", self._request_probe), ("sample", self._sampler.request)):
            if isinstance(request := response.get(kind), dict):
                take(request)
            else:
                self._health.forget_answer(kind)

    def _request_probe(self, request: Mapping[str, Any]) -> None:
        """Run the probe that the server requests, once for each id; the command is our own."""
        number = request.get("id")
        if number == self._requested:
            return
        self._requested = number

        def answer(fields: Mapping[str, Any]) -> None:
            self._health.answer("probe", {"id": number, **fields})

        if self._refuses_probes:
            answer({"reason": "the agent runs with --refuse-probes"})
        elif request.get("name") != EFA_LATENCY:
            answer({"reason": f"this agent knows the probe {EFA_LATENCY} only"})
        else:
            self._probes.request(self._clock.now().up_s, answer)

    def wait_for_answers(self) -> None:
        self._probes.wait()
        self._sampler.wait()

    def _wait_s(self, now_s: float) -> float:
        """Return how many seconds to wait for a report before sysfs is read without one."""
        patient_until_s = self._last_report_s + SILENT_PERIODS * self._period_s
        due_s = self._last_sysfs_s + self._period_s
        until_s = due_s if self._monitor is None else max(due_s, patient_until_s)
        return min(max(until_s - now_s, 0.0), MAX_BACKOFF_S)

    def _read_sysfs(self, moment: Moment, *, alone: bool) -> dict[str, Any]:
        """Read EFA and Neuron sysfs, with probed latencies; ``alone`` adds core utilization."""
        self._last_sysfs_s = moment.up_s
        fields: dict[str, Any] = {}
        efa = self._efa.read(moment.up_s)
        if efa:
            latencies = self._probes.read(moment.up_s)
            self._health.problem("probe", self._probes.problem)
            for device in efa["devices"]:
                if device["device"] in latencies:
                    device["latency_s"] = latencies[device["device"]]
            fields["efa"] = efa
        neuron = self._neuron.read(moment.up_s, cores=alone)
        if neuron:
            fields["neuron"] = neuron
        return fields
