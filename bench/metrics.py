"""`/metrics` beside prometheus-client's own writer, on the same families in the same run."""

import gzip
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from django.conf import settings
from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from bench.table import print_table
from fleet.views.metrics import fleet_families
from telemetry.families import FamilyCollector, text
from telemetry.simulate.plan import Plan, RunSpec
from telemetry.simulate.shard import play, start_clock
from telemetry.store.hot import open_store

SPEC = RunSpec(
    name="wide",
    model="llama2-70b",
    instance="trn2.48xlarge",
    nodes=320,
    tp=32,
    seq_len=4096,
    global_batch=5120,
    compile_s=0,
)
REPEATS = 7
PER = 100_000


class Made(Collector):
    """Families made beforehand, so that only the writing is measured."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield them."""
        yield from self._families


def measure(_: Mapping[str, str]) -> None:
    """Write the page of 320 nodes with both, and print what each took."""
    append_a_tick()
    page, families = text(fleet_families()), fleet_families()
    n_series = sum(not line.startswith(b"#") for line in page.splitlines())
    made = Made(list(FamilyCollector(families).collect()))
    whole_s = cpu_s(lambda: text(fleet_families())) / n_series * PER
    peer_s = cpu_s(lambda: generate_latest(made)) / n_series * PER
    packed_s = cpu_s(lambda: gzip.compress(page, compresslevel=1)) / n_series * PER
    print_table(
        f"/metrics, {n_series:,} series, {len(page) / 1e6:.1f} MB; per {PER:,} series",
        [
            ("store to text", f"{whole_s * 1e3:.0f} ms"),
            ("generate_latest, writing alone", f"{peer_s * 1e3:.0f} ms"),
            ("ours / generate_latest", f"1 / {peer_s / whole_s:.1f}"),
            ("gzip, where the scraper asks for it", f"{packed_s * 1e3:.0f} ms more"),
            ("same bytes", "yes" if generate_latest(made) == text(families) else "NO"),
        ],
    )


def append_a_tick() -> None:
    """Put one tick of training nodes into the store."""
    now = int(time.time())
    plan = Plan(run=SPEC, seed=1, epoch_s=now - 600)
    hot = open_store(settings.REDIS_URL)
    for shard in plan.shards:
        clock = play(plan, shard, start_clock(plan), now - 1, every_s=60).clock
        hot.append(play(plan, shard, clock, now).span.blocks())


def cpu_s(work: Callable[[], object]) -> float:
    """Return the median CPU seconds of doing some work."""
    took = []
    for _ in range(REPEATS):
        before_s = time.process_time()
        work()
        took.append(time.process_time() - before_s)
    return statistics.median(took)
