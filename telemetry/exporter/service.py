"""The families about the service itself: ticks, queue, ingest, live streams, memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.registry import Collector

from telemetry.exporter.exposition import Spec, add, counter, gauge
from telemetry.store.hot import HotStore

# By the name that HotStore.gauge and HotStore.count use.
GAUGES: Mapping[str, Spec] = {
    "tick_lateness_s": gauge(
        "trnwatch_tick_lateness_seconds",
        "How long after its second the latest tick was in the store.",
    ),
    "watched_at_s": gauge(
        "trnwatch_watched_timestamp_seconds",
        "When the fleet was last looked at for what is wrong, Unix time.",
    ),
    "stream_clients": gauge("trnwatch_stream_clients", "Browsers on the live stream."),
}
COUNTERS: Mapping[str, Spec] = {
    name: counter(f"trnwatch_{name}_total", about)
    for name, about in {
        "ticks": "Ticks of shards stored.",
        "ticks_late": "Ticks that were in the store late, or were made up for.",
        "ticks_raced": "Ticks that another worker had stored first.",
        "rules_failed": "Rules of runs that raised an exception, each second.",
        "ingest_reports": "Reports of real nodes taken.",
        "ingest_repeated": "Reports of real nodes that had come before.",
        "ingest_skewed": "Reports of real nodes whose clock was wrong and corrected.",
        "ingest_late": "Reports of real nodes too old to be kept.",
        "ingest_errors": "Deliveries of real nodes that were refused whole.",
        "ingest_lines_refused": "Lines of real nodes' deliveries that were refused.",
        "ingest_samples": "Samples that Prometheus wrote, of series that are used.",
        "ingest_series_ignored": "Series that Prometheus wrote and that are not used.",
        "ingest_step_reports": "Lines of training jobs taken.",
        "ingest_step_repeated": "Steps of training jobs that had come before.",
        "ingest_step_lines_refused": "Lines of training jobs that were refused.",
        "refused_blocks": "Blocks not stored: too old, or ahead of time.",
        "refused_steps": "Steps not stored: too old, or ahead of time.",
        "damaged_blocks": "Blocks in Redis that were damaged and are left out.",
        "damaged_steps": "Steps in Redis that were damaged and are left out.",
        "refused_for_room": "Blocks and steps not stored: too many shards, runs or steps.",
    }.items()
}
QUEUE = gauge("trnwatch_queue_tasks", "Tasks that wait for a worker.", "queue")
HOT_BYTES = gauge("trnwatch_hot_bytes", "Bytes that Redis holds in memory.")
SHARDS = gauge("trnwatch_shards", "Shards that the hot tier holds.")


@dataclass(frozen=True, eq=False, slots=True)
class ServiceCollector(Collector):
    """Collects what the service counts of itself; counters start at zero, gauges when first set.

    The figures are in Redis, so every web worker gives the same page.
    """

    hot: HotStore
    queues: Sequence[str] = ("celery",)

    def collect(self) -> Iterator[Metric]:
        gauges, counters = self.hot.gauges(), self.hot.counters()
        figures = {spec: gauges.get(name) for name, spec in GAUGES.items()}
        figures |= {spec: counters.get(name, 0.0) for name, spec in COUNTERS.items()}
        figures |= {HOT_BYTES: self.hot.bytes_used(), SHARDS: len(self.hot.shards())}
        waiting = QUEUE.family()
        for queue in self.queues:
            add(waiting, self.hot.queue_depth(queue), queue)
        yield waiting
        for spec, value in figures.items():
            family = spec.family()
            add(family, value)
            yield family
