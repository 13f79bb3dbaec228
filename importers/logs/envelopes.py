"""What surrounds a line of a log: compression, encoding, envelopes of collectors, prefixes.

Families of lines never see it: each line becomes its text, its moment, and who wrote it.
"""

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from math import isnan, nan
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import zstandard

# ---- Files: compression and encoding -------------------------------------------------------

# The first bytes of a compressed file, whatever its name.
COMPRESSED = (
    (b"\x1f\x8b", gzip.open),
    (b"\xfd7zXZ\x00", lzma.open),
    (b"BZh", bz2.open),
    (b"\x28\xb5\x2f\xfd", zstandard.open),
)
# What damaged data raises; bz2 has an OSError without a number.
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zstandard.ZstdError)
MARKS_OF_ORDER = (
    (codecs.BOM_UTF8, ""),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Text of Western alphabets in UTF-16 has a zero in nearly every second byte; UTF-8 has none.
SNIFFED_BYTES, LEAST_ZEROS, MOST_ZEROS = 4_096, 0.6, 0.05
CHUNK_BYTES = 1 << 16
# Progress bars rewrite one line for hours; a line longer than this is read in part.
MAX_LINE_BYTES = 1 << 20


class _Recoded(io.RawIOBase):
    """A file in another encoding, as UTF-8; reads a chunk at a time."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = self._file.read(CHUNK_BYTES)
            self._rest = self._decoder.decode(chunk, not chunk).encode("utf-8", "replace")
            if not chunk:
                break
        n = min(len(buffer), len(self._rest))
        buffer[:n], self._rest = self._rest[:n], self._rest[n:]
        return n

    def close(self) -> None:
        self._file.close()
        super().close()


def opened(path: Path) -> BinaryIO:
    """Open a log as UTF-8, compressed or not, in any encoding that its beginning shows."""
    with path.open("rb") as file:
        magic = file.read(6)
    unpack = next((each for start, each in COMPRESSED if magic.startswith(start)), None)
    raw = cast("BinaryIO", unpack(path, "rb")) if unpack else path.open("rb")
    buffered = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast("Any", raw))
    try:
        start = buffered.peek(SNIFFED_BYTES)[:SNIFFED_BYTES]
    except (OSError, *DAMAGED):
        start = b""
    encoding = encoding_of(start)
    return io.BufferedReader(_Recoded(buffered, encoding)) if encoding else buffered


def encoding_of(start: bytes) -> str:
    """Return the encoding of a file that begins so; empty for UTF-8 and its subsets."""
    for mark, encoding in MARKS_OF_ORDER:
        if start.startswith(mark):
            return encoding
    half = len(start) // 2
    even, odd = start[: 2 * half : 2].count(0), start[1 : 2 * half : 2].count(0)
    if odd > LEAST_ZEROS * half and even <= MOST_ZEROS * half:
        return "utf-16-le"
    return "utf-16-be" if even > LEAST_ZEROS * half and odd <= MOST_ZEROS * half else ""


def lines_of(file: BinaryIO) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the number of each line, its first ``MAX_LINE_BYTES``, and whether it is whole.

    A truncated compressed file ends where the data ends.
    """
    number = 0
    try:
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            is_whole = line.endswith(b"\n") or len(line) < MAX_LINE_BYTES
            yield number, line, is_whole
            while not line.endswith(b"\n") and len(line) == MAX_LINE_BYTES:
                line = file.readline(MAX_LINE_BYTES)
    except DAMAGED:
        yield number + 1, b"", False
    except OSError as error:
        # bz2 reports damaged data so; errors of the disk have a number.
        if error.errno is not None:
            raise
        yield number + 1, b"", False


# ---- Envelopes of collectors ---------------------------------------------------------------

# Where a collector's record has the line, its time, its host; containers hold more records.
# Docker, Kubernetes, Fluentd and Fluent Bit: log. CloudWatch, Vector, ECS, Logstash: message.
# journald: MESSAGE. logcli: line. CloudWatch Insights: @message. Google: textPayload.
# OpenTelemetry: body. Splunk: event, _raw.
MESSAGES = (
    "log", "message", "MESSAGE", "line", "@message", "msg", "textPayload", "jsonPayload", "body",
    "event", "_raw", "content",
)  # fmt: skip
STAMPS = (
    "time", "timestamp", "@timestamp", "__REALTIME_TIMESTAMP", "timeUnixNano", "ts", "date",
    "_time", "asctime", "datetime",
)  # fmt: skip
HOSTS = ("_HOSTNAME", "hostname", "host", "pod", "pod_name", "logStreamName", "node")
CONTAINERS = (
    "events", "logEvents", "data", "result", "results", "values", "hits", "_source", "record",
    "kubernetes", "resourceLogs", "scopeLogs", "logRecords",
)  # fmt: skip
# An object with one of these is a record of training itself, whatever else it has.
TRAINED = frozenset(
    ("step", "_step", "global_step", "iter", "iteration", "loss", "train/loss", "train_loss")
)
ENVELOPE = re.compile(
    rf'"(?:{"|".join(MESSAGES)}|values)"\s{{0,4}}:\s{{0,4}}["\[{{]'
    r'|"field"\s{0,4}:\s{0,4}"@message"'
)
# A record that is printed over several lines, as `aws logs get-log-events` does, and
# `get-query-results` with the name of the field on a line of its own.
FIELD_LINE = re.compile(
    r'\s{1,40}"(@?message|log|@?timestamp|field|value)":\s{1,4}(".*"|\d{10,13}),?\s*\Z'
)
# Fluent Bit's own print: [0] tag: [[1714564800.5, {}], {"log"=>"text"}]
RUBY = re.compile(
    r'\[\d{1,9}\] \S{1,300}: \[\[?(\d{10}\.\d{1,9}), .*?"(?:log|message)"=>"(.*?)"'
    r'(?:, "[^"]{1,100}"=>.*)?\}\]'
)
# Container runtimes cut lines at 16 KiB: P is a part, F its end. Docker's has no line end.
CUT = re.compile(r"(\S{1,40} std(?:out|err)) ([FP])[\w:]* ")
CUT_BYTES = 16_384
MAX_DEPTH = 4
MAX_STREAMS = 1_000
EARLIEST_S, LATEST_S = 946_684_800.0, 7_258_118_400.0  # the years 2000 to 2199


@dataclass(frozen=True, slots=True)
class Message:
    """A line as it was printed; what its envelope says of when (Unix seconds) and where."""

    text: str
    at_s: float = nan
    host: str = ""


class Envelopes:
    """Takes lines out of the envelopes of collectors, one file at a time."""

    def __init__(self, *, utc_offset_s: float = 0.0) -> None:
        self._utc_offset_s = utc_offset_s
        self._stamp_s = nan
        self._parts: dict[str, str] = {}
        self._field = ""

    def _moment(self, value: Any) -> float:
        return moment_of(value, utc_offset_s=self._utc_offset_s)

    def messages(self, line: bytes) -> Iterator[Message]:
        text = line.decode("utf-8", "replace")
        if "{" in text and ENVELOPE.search(text):
            messages = list(self._of_json(text, MAX_DEPTH))
            yield from messages or [Message(text)]
            return
        if "=>" in text and (ruby := RUBY.search(text)):
            yield Message(ruby[2].replace("\\n", "").replace('\\"', '"'), float(ruby[1]))
            return
        if field := FIELD_LINE.fullmatch(text):
            name = self._field if field[1] == "value" else field[1]
            self._field = field[2].strip('"') if name == "field" else ""
            if "timestamp" in name:
                self._stamp_s = self._moment(field[2].strip('"'))
            elif name in MESSAGES and (message := _decoded(field[2])) is not None:
                yield Message(str(message), self._stamp_s)
            return
        if cut := CUT.search(text, 0, 200):
            text = self._whole(cut[1][-6:], text, is_part=cut[2] == "P", start=cut.end())
        if text:
            yield Message(text)

    def _whole(self, stream: str, text: str, *, is_part: bool, start: int) -> str:
        """Join the parts of a line that was cut; empty until its end."""
        before = self._parts.pop(stream, "")
        whole = (before + text[start:] if before else text)[:MAX_LINE_BYTES]
        if is_part and len(self._parts) < MAX_STREAMS:
            self._parts[stream] = whole.rstrip("\n")
            return ""
        return whole

    def _of_json(self, text: str, depth: int) -> Iterator[Message]:
        """Yield the messages of a record; what stands before it stays before each of them."""
        brace = min((i for i in (text.find("{"), text.find("[{")) if i >= 0), default=-1)
        record = _decoded(text[brace:].rstrip(" \t\r\n,")) if brace >= 0 else None
        if record is None:
            return
        for message in self._walk(record, Message(""), depth):
            yield Message(text[:brace] + message.text, message.at_s, message.host)

    def _walk(self, record: Any, outer: Message, depth: int) -> Iterator[Message]:
        if not depth:
            return
        if isinstance(record, list):
            # Loki's pairs of nanoseconds and line.
            if len(record) == 2 and all(isinstance(each, str) for each in record):
                at_s = self._moment(record[0])
                yield Message(record[1], at_s, outer.host) if not isnan(at_s) else outer
                return
            # A row of CloudWatch Insights.
            if all(
                isinstance(each, dict) and {"field", "value"} <= each.keys() for each in record
            ):
                row = {str(each["field"]): each["value"] for each in record}
                yield from self._walk(row, outer, depth) if record else ()
                return
            for each in record:
                yield from self._walk(each, outer, depth)
            return
        if not isinstance(record, dict) or not TRAINED.isdisjoint(record):
            return
        at_s = next((s for key in STAMPS if not isnan(s := self._moment(record.get(key)))), nan)
        host = next((v for key in HOSTS if isinstance(v := record.get(key), str) and v), "")
        here = Message("", outer.at_s if isnan(at_s) else at_s, (host or outer.host)[:100])
        for key in MESSAGES:
            if (content := record.get(key)) is not None:
                yield from self._message(content, here, depth)
                if isinstance(content, str) or key != "log":
                    return
        for key in CONTAINERS:
            if isinstance(content := record.get(key), (dict, list)):
                yield from self._walk(content, here, depth)

    def _message(self, content: Any, here: Message, depth: int) -> Iterator[Message]:
        if isinstance(content, dict):
            if isinstance(content.get("stringValue"), str):
                content = content["stringValue"]
            elif not TRAINED.isdisjoint(content):
                content = json.dumps(content)
            else:
                yield from self._walk(content, here, depth - 1)
                return
        elif isinstance(content, list) and all(
            isinstance(b, int) and 0 <= b < 256 for b in content
        ):
            # journald writes text with control characters as numbers.
            content = bytes(content).decode("utf-8", "replace")
        if not isinstance(content, str):
            return
        if len(content) >= CUT_BYTES // 4 and len(content.encode()) >= CUT_BYTES:
            content = self._whole("docker", content, is_part=not content.endswith("\n"), start=0)
        elif "docker" in self._parts:
            content = self._whole("docker", content, is_part=False, start=0)
        if ENVELOPE.search(content):
            inner = list(self._of_json(content, depth - 1))
            if inner:
                for each in inner:
                    at_s = here.at_s if isnan(each.at_s) else each.at_s
                    yield Message(each.text, at_s, each.host or here.host)
                return
        yield Message(content, here.at_s, here.host)


def moment_of(value: Any, *, utc_offset_s: float = 0.0) -> float:
    """Parse ISO 8601, or Unix seconds down to nanoseconds by their size; else NaN."""
    if isinstance(value, (int, float)) or (isinstance(value, str) and UNIX.fullmatch(value)):
        at_s = float(value)
        # Seconds of this century are below 1e10; each finer unit has three digits more.
        while at_s > 1e11:
            at_s /= 1e3
        return at_s if EARLIEST_S <= at_s < LATEST_S else nan
    if isinstance(value, str) and (time := TIMES[0].match(value)):
        return _unix_s(time, year=1970, utc_offset_s=utc_offset_s)
    return nan


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


# ---- Prefixes ------------------------------------------------------------------------------

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTH = "|".join(MONTHS)
CLOCK = r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<frac>\d{1,9}))?"
ZONE = r"(?P<zone> ?(?:Z|UTC)\b|[ ]?[+-]\d\d:?\d\d\b)?"
ISO = rf"(?P<year>\d{{4}})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]{CLOCK}{ZONE}"
TIMES = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        # ISO 8601, Python's logging, CloudWatch, container runtimes.
        rf"\[?{ISO}(?P<colon>:?)\]?\s*",
        # The C library's, as the kernel's and horovodrun's.
        rf"(?:LOG\s+)?\[?(?:[A-Z][a-z]{{2}}\s+)(?P<name>{MONTH})\s+(?P<day>\d{{1,2}})\s+"
        rf"{CLOCK}\s+(?P<year>\d{{4}})\]?\s*",
        # syslog and `ts`.
        rf"\[?(?P<name>{MONTH})\s+(?P<day>\d{{1,2}})\s+{CLOCK}\]?\s+",
        # absl and glog: severity, month and day, thread, source file.
        rf"\[?[IWEF](?P<month>\d\d)(?P<day>\d\d) {CLOCK}\s+(?:\d{{1,20}} )?"
        r"[\w.<>-]{1,80}:\d+\]\s*",
        # The runtime of Neuron: 2026-May-01 12:00:00.500
        rf"\[?(?P<year>\d{{4}})-(?P<name>{MONTH})-(?P<day>\d\d) {CLOCK}\]?\s*",
        # The month first: 05/01/2026, 05/01/26 (Rich), 05/01 (detectron2).
        rf"\[?(?P<month>\d\d)/(?P<day>\d\d)(?:/(?P<year>\d{{4}}|\d\d))? {CLOCK}\]?\s*",
        # Apache's: 01/May/2026:12:00:00 +0000
        rf"\[?(?P<day>\d\d)/(?P<name>{MONTH})/(?P<year>\d{{4}})[: ]{CLOCK}{ZONE}\]?\s*",
        # CloudWatch's and `ts %.s`: Unix seconds or milliseconds.
        r'\[?"?(?P<unix>\d{13}|\d{10}(?:\.\d{1,9})?)"?(?:\]\s?|,"?|\s)',
        # A time of day alone.
        rf"\[?{CLOCK}\]?(?=[\s|:>-])[\s|:>-]{{1,4}}",
    )
)
TIME_WITHIN = re.compile(ISO, re.ASCII)
WITHIN_CHARS = 160
TAGS = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        # mpirun and SageMaker: [1,3]<stdout>:, [1,mpirank:3,algo-2]<stdout>:; horovodrun:
        # [3]<stdout>:
        r"\[(?:\d{1,6},)?(?:mpirank:)?(?P<rank>\d{1,6})(?:,(?P<who>[\w.-]{1,100}))?\]"
        r"<std(?:out|err)>:\s?",
        # torchrun, and ranks in brackets.
        r"\[(?:[Rr]ank|default|local_rank)?[ :=]{0,2}(?P<rank>\d{1,6})\]:?\s?",
        # srun --label
        r"\s{0,8}(?P<rank>\d{1,6}):\s",
        r"[Rr]ank[ _:=]?(?P<rank>\d{1,6})[\]:,]?\s+",
        # Ray: (RayTrainWorker pid=1234, ip=10.0.0.7)
        r"\((?:[\w.:<>-]{1,200}(?:\(.{0,100}?\))? )?(?:pid|ip)=[\da-f.:]{1,40}"
        r"(?:, ip=(?P<who>[\da-f.:]{3,40}))?\)\s?",
        # Container runtimes, after the time.
        r"std(?:out|err) [FP](?::[\w:]{1,20})? ",
        # kubectl --prefix, torchtitan and other names in brackets.
        r"\[(?:(?P<who>pod/[\w./-]{1,200})|[A-Za-z][\w./-]{0,200})\]:?\s?",
        # logcli
        r'\{[\w.]{1,60}="[^}]{0,500}\}\s',
        # syslog and journalctl, after the time.
        r"(?P<who>[A-Za-z0-9][\w.-]{0,99}) (?:kernel|[\w./@-]{1,100}\[\d{1,10}\]):\s?",
        # docker compose, stern with a bar
        r"(?P<who>[A-Za-z][\w.-]{0,100})\s{1,40}[|\u203a]\s?",
        # pdsh and clush: a name with a digit, a dot or a hyphen
        r"(?=[\w-]{0,60}[\d.-])(?![\w.]{1,99}(?:Error|Exception|Warning):)(?P<who>[A-Za-z][\w.-]{0,100}):\s",
        # Python's logging: names and levels
        r"(?:[-|:>]\s{0,4})?(?:[\w.]{1,60}\s{0,2}[-|:]\s{0,2})?"
        r"(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)\b(?:\s{0,8}[-:>]|\s{0,8}\|(?!\|))?\s?",
    )
)
MAX_PREFIXES = 12
UNIX = re.compile(r"\d{9,19}(?:\.\d{0,9})?", re.ASCII)
# The time of a line of JSON: ISO 8601, or Unix seconds or milliseconds.
STAMP = re.compile(
    r'"[_@]?(?:timestamp|time|ts|datetime|created_at)"\s{0,4}:\s{0,4}"?([^",}]{1,40})', re.ASCII
)
FIRST_YEAR, LAST_YEAR = 2000, 2199
# Zones differ by quarters of an hour; a collector stamps a line within a minute.
ZONE_STEP_S, LATE_S = 900.0, 60.0


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prefix of a line: its time (Unix seconds, or NaN), source, rank, host and end.

    ``clock_s`` is a time of day without a date, in seconds.
    """

    at_s: float = nan
    source: str = ""
    rank: int | None = None
    end: int = 0
    host: str = ""
    clock_s: float = nan


def prefix_of(
    text: str, *, year: int, utc_offset_s: float = 0.0, outer: Message | None = None
) -> Prefix:
    """Parse the prefixes of a line; ``year`` and ``utc_offset_s`` are for times that lack them.

    The innermost time is nearest to the moment the line was printed. One with a zone around it
    says in which zone it is; ``outer`` is what an envelope says.
    """
    moments: list[tuple[float, bool]] = []
    if outer is not None and not isnan(outer.at_s):
        moments.append((outer.at_s, True))
    who, rank, clock_s = outer.host if outer else "", None, nan
    end = len(text) - len(text.lstrip())
    for _ in range(MAX_PREFIXES):
        if time := next((m for each in TIMES if (m := each.match(text, end))), None):
            if "day" not in time.re.groupindex and "unix" not in time.re.groupindex:
                clock_s = _day_s(time)
            elif not isnan(second := _unix_s(time, year=year, utc_offset_s=utc_offset_s)):
                moments.append((second, bool(_group(time, "zone") or _group(time, "unix"))))
            end = time.end()
        elif tag := next((m for each in TAGS if (m := each.match(text, end))), None):
            who = _group(tag, "who") or who
            rank = int(digits) if (digits := _group(tag, "rank")) else rank
            end = tag.end()
        else:
            break
    if not moments and (time := TIME_WITHIN.search(text, end, end + WITHIN_CHARS)):
        second = _unix_s(time, year=year, utc_offset_s=utc_offset_s)
        moments += [] if isnan(second) else [(second, True)]
    stamp = STAMP.search(text, end) if '"' in text and "{" in text else None
    if stamp and (not moments or outer):
        second = moment_of(stamp[1].strip(), utc_offset_s=utc_offset_s)
        moments += [] if isnan(second) else [(second, True)]
    return Prefix(_told(moments), f"{who}#{'' if rank is None else rank}", rank, end, who, clock_s)


def _told(moments: list[tuple[float, bool]]) -> float:
    """Return the moment that times tell, from the outermost to the innermost."""
    if not moments:
        return nan
    inner_s, has_zone = moments[-1]
    zoned_s = next((second for second, known in reversed(moments) if known), nan)
    if has_zone or isnan(zoned_s):
        return inner_s
    zone_s = round((zoned_s - inner_s) / ZONE_STEP_S) * ZONE_STEP_S
    return inner_s + zone_s if abs(zoned_s - inner_s - zone_s) <= LATE_S else zoned_s


def _group(match: re.Match[str], name: str) -> str:
    return match.groupdict().get(name) or ""


def _day_s(time: re.Match[str]) -> float:
    digits = time["frac"] or "0"
    seconds = 3600 * int(time["h"]) + 60 * int(time["m"]) + int(time["s"])
    return seconds + int(digits) / 10.0 ** len(digits)


def _unix_s(time: re.Match[str], *, year: int, utc_offset_s: float) -> float:
    """Return Unix seconds; NaN if the date does not exist."""
    fields: Mapping[str, Any] = time.groupdict()
    if text := fields.get("unix"):
        at_s = float(text)
        return at_s / 1e3 if at_s > 1e11 else at_s
    zone = timezone(timedelta(seconds=utc_offset_s))
    if text := (fields.get("zone") or "").strip():
        sign = -1 if text[0] == "-" else 1
        hours, minutes = ("0", "0") if text in ("Z", "UTC") else (text[1:3], text[-2:])
        zone = timezone(sign * timedelta(hours=int(hours) % 24, minutes=int(minutes)))
    month = MONTHS.index(fields["name"]) + 1 if fields.get("name") else int(fields["month"])
    written = str(fields.get("year") or year)
    try:
        moment = datetime(
            int(written) + (2000 if len(written) == 2 else 0),
            month,
            int(fields["day"]),
            int(fields["h"]),
            int(fields["m"]),
            int(fields["s"]),
            tzinfo=zone,
        )
    except ValueError:
        return nan
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        return nan
    digits = fields.get("frac") or "0"
    # Neuron's compiler writes milliseconds as six digits.
    is_ms = fields.get("colon") and len(digits) == 6 and digits.startswith("000")
    return moment.timestamp() + int(digits) / (1e3 if is_ms else 10.0 ** len(digits))
