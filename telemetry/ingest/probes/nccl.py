"""Rows of nccl-tests: each size twice, out of place and in place; GB means a thousand million."""

import math
import re

from telemetry.ingest.probes.figures import GIGA, MICRO, above_zero, figure
from telemetry.ingest.probes.rows import NCCL, Failure, Probe, Row

HEADER = re.compile(r"#\s+size\s+count\s+type\b", re.I)
MEAN = re.compile(r"#\s{0,4}Avg bus bandwidth\s{0,8}:\s{0,8}([0-9.]{1,20})", re.I)
WRONG = re.compile(r"#\s{0,4}Out of bounds values\s{0,8}:\s{0,8}([0-9]{1,12})", re.I)
FAILURES = ("test nccl failure", "test cuda failure", "test failure", "nccl error")
N_RUN = 4
N_HEADS = (2, 3, 4, 5)


class Nccl:
    """Reads the lines of one output; comments begin with a hash, rows do not."""

    def __init__(self) -> None:
        self._has_header = False

    def read(self, line: str, probe: Probe) -> bool:
        """Read a line; return whether it was understood."""
        if HEADER.search(line):
            self._has_header, probe.tool = True, NCCL
        elif mean := MEAN.search(line):
            probe.mean_busbw_bytes_per_s = above_zero(figure(mean[1])) * GIGA
        elif wrong := WRONG.search(line):
            probe.n_wrong = int(wrong[1])
        elif any(words in line.lower() for words in FAILURES):
            probe.failures.append(Failure(line.strip()[:300]))
        elif self._has_header and (rows := _rows(line.split())):
            probe.rows.extend(rows)
        else:
            return line.lstrip().startswith("#")
        return True


def _rows(words: list[str]) -> list[Row]:
    """Make two rows of a line: size, count, type, operation, root, then four figures twice.

    Operations without reduction or root leave out their columns.
    """
    n_head = len(words) - 2 * N_RUN
    if n_head not in N_HEADS:
        return []
    size = figure(words[0])
    runs = [
        [figure(word) for word in words[start : start + N_RUN]]
        for start in (n_head, n_head + N_RUN)
    ]
    if size is None or math.isnan(size) or any(value is None for run in runs for value in run):
        return []
    return [
        Row(
            size_bytes=size,
            time_s=above_zero(time_us) * MICRO,
            algbw_bytes_per_s=math.nan if algbw is None else algbw * GIGA,
            busbw_bytes_per_s=math.nan if busbw is None else busbw * GIGA,
            n_errors=None if wrong is None or math.isnan(wrong) else int(wrong),
            element=words[2] if n_head > 2 else "",
            in_place=bool(place),
        )
        for place, (time_us, algbw, busbw, wrong) in enumerate(runs)
    ]
