"""Bytes per report of a node that sends ten reports at a time as columns."""

from collections.abc import Callable, Sequence

from telemetry.agent.clock import Moment
from telemetry.agent.reports import MONITOR, encode_columns, encode_tail, group_frames
from telemetry.agent.spool import Frame, gzip_member

TEN = 10


def as_columns(
    lines: Sequence[bytes],
    stream: str,
    now_s: float,
    *,
    pack: Callable[[bytes], bytes] = gzip_member,
) -> bytes:
    """Return the last ten seconds' reports as the body of a request."""
    some = [lines[turn % len(lines)] for turn in range(TEN)]
    at_s = [now_s - TEN + 1 + turn for turn in range(TEN)]
    frames = [
        Frame(
            MONITOR,
            int(1e3 * s),
            Moment(s, s),
            bytes(16),
            gzip_member(encode_tail(line.rstrip(), {})),
        )
        for line, s in zip(some, at_s, strict=True)
    ]
    [run] = group_frames(frames)
    seq = [frame.seq for frame in frames]
    line = encode_columns(run.rows, stream=stream, seq=seq, at_s=at_s, health={"version": "bench"})
    return pack(line)
