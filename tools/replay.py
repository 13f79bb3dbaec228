"""Stand in for neuron-monitor: print a recording's reports over and over, one every period.

`python3 tools/replay.py FILE [PERIOD_S]`; standard library only.
"""

import itertools
import sys
import time
from pathlib import Path


def replay(path: Path, period_s: float) -> None:
    """Print until the reader closes the pipe."""
    began_s = time.monotonic()
    for n, line in enumerate(itertools.cycle(path.read_bytes().splitlines()), 1):
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
        time.sleep(max(0.0, began_s + n * period_s - time.monotonic()))


if __name__ == "__main__":
    try:
        replay(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
    except (BrokenPipeError, KeyboardInterrupt):
        sys.stderr.close()
