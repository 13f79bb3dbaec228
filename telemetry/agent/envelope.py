"""What is sent: each report in an envelope that says when it was made, numbered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from telemetry.agent.clock import Clock, Moment
from telemetry.agent.columns import Run, columns
from telemetry.agent.frames import Frame, packed, stored

MONITOR, BESIDE = 0, 1
PATHS = {MONITOR: "/api/v1/ingest/neuron-monitor", BESIDE: "/api/v1/ingest/efa"}


def tail(report: bytes | None, beside: Mapping[str, Any]) -> bytes:
    """Return the end of a line: what was read, the report as it came, not parsed."""
    text = json.dumps(beside, separators=(",", ":"))[1:-1].encode()
    if report is None:
        return text + b"}\n"
    return text + (b"," if text else b"") + b'"report":' + report + b"}\n"


def head(frame: Frame, stream: str, at_s: float, health: Mapping[str, Any] | None) -> bytes:
    """Return the beginning of a line, which is only known when it is sent."""
    said: dict[str, Any] = {"at": round(at_s, 6), "seq": frame.seq, "stream": stream}
    if health is not None:
        said["agent"] = health
    return json.dumps(said, separators=(",", ":"))[:-1].encode() + b","


def body(
    frames: Sequence[Frame], stream: str, health: Mapping[str, Any], clock: Clock, now: Moment
) -> bytes:
    """Return frames as one gzip body; the last line carries how the agent is doing."""
    pieces = []
    for frame in frames:
        at_s = clock.wall_of(frame.made, frame.boot, now=now)
        is_last = frame is frames[-1]
        pieces.append(stored(head(frame, stream, at_s, health if is_last else None)))
        pieces.append(frame.tail)
    return b"".join(pieces)


def columns_body(
    run: Run, stream: str, health: Mapping[str, Any], clock: Clock, now: Moment
) -> bytes:
    """Return frames of one template as one gzip body of one line."""
    at_s = [clock.wall_of(frame.made, frame.boot, now=now) for frame in run.frames]
    seq = [frame.seq for frame in run.frames]
    return packed(columns(run.rows, stream=stream, seq=seq, at_s=at_s, health=health))
