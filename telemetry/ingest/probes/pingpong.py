"""Rows of fi_pingpong: one message to and fro, so many times; the first also sets up."""

import math

from telemetry.ingest.probes.figures import MEGA, MICRO, above_zero, figure
from telemetry.ingest.probes.rows import PINGPONG, Failure, Probe, Row

COLUMNS = ("bytes", "#sent", "#ack", "total", "time", "mb/sec", "usec/xfer", "mxfers/sec")
FAILURES = ("fi_", "error", "failed")


class Pingpong:
    """Reads the lines of one output."""

    def __init__(self) -> None:
        self._has_header = False
        self._is_first = True

    def read(self, line: str, probe: Probe) -> bool:
        """Read a line; return whether it was understood."""
        words = line.split()
        if tuple(word.lower() for word in words) == COLUMNS:
            self._has_header = self._is_first = True
            probe.tool = PINGPONG
        elif self._has_header and (row := _row(words, is_first=self._is_first)):
            self._is_first = False
            probe.rows.append(row)
        elif self._has_header and line.lower().startswith(FAILURES):
            probe.failures.append(Failure(line.strip()[:300]))
        else:
            return False
        return True


def _row(words: list[str], *, is_first: bool) -> Row | None:
    """Make a row; the time is that of one way, as the table counts transfers.

    What the connection's set-up is in, the first row of a table, is no measure of the network.
    """
    if len(words) != len(COLUMNS):
        return None
    figures = [figure(word.removesuffix("s") if i == 4 else word) for i, word in enumerate(words)]
    size, rate, each_us = figures[0], figures[5], figures[6]
    if size is None or math.isnan(size) or each_us is None or rate is None:
        return None
    sent, ack = figures[1], figures[2]
    lost = None if sent is None or ack is None else max(0.0, sent - ack)
    return Row(
        size_bytes=size,
        time_s=above_zero(each_us) * MICRO,
        algbw_bytes_per_s=rate * MEGA,
        busbw_bytes_per_s=rate * MEGA,
        n_errors=None if lost is None or math.isnan(lost) else int(lost),
        is_warm_up=is_first,
    )
