"""A process that streams one scrape and prints its memory and CPU as JSON."""

import json
import os
import time
from pathlib import Path

import django
from django.conf import settings

django.setup()

from django.utils import timezone  # noqa: E402 - models can be imported only from here on

from fleet.metrics.collectors import fleet_registry  # noqa: E402
from fleet.metrics.node_collectors import NeuronCollector  # noqa: E402
from telemetry.exporter.exposition import stream_page  # noqa: E402
from telemetry.store.hot import open_store  # noqa: E402

KIB = 1024


def memory_bytes(what: str) -> int:
    """Return what this process holds of memory now (VmRSS), or held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{what}:")]
    return int(line.split()[1]) * KIB


def main() -> None:
    """Write both pages piece by piece, keeping none."""
    hot = open_store(settings.REDIS_URL, keep_s=settings.HOT_KEEP_S)
    hot.ping()
    Path("/proc/self/clear_refs").write_text("5")
    before, cpu_s = memory_bytes("VmRSS"), time.process_time()
    n_series = n_bytes = longest = 0
    now = timezone.now()
    for collector in (fleet_registry(hot, now=now), NeuronCollector(hot, now=now)):
        for piece in stream_page(collector.collect()):
            n_series += piece.count(b"\n") - piece.count(b"\n#") - piece.startswith(b"#")
            n_bytes += len(piece)
            longest = max(longest, len(piece))
    result = {
        "n_series": n_series,
        "n_bytes": n_bytes,
        "longest_piece": longest,
        "cpu_s": time.process_time() - cpu_s,
        "before": before,
        "peak": memory_bytes("VmHWM"),
        "pid": os.getpid(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
