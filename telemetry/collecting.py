"""The same families for any registry of prometheus-client."""

from collections.abc import Iterable, Iterator

import numpy as np
from prometheus_client import samples
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from telemetry.families import Exemplar, HistogramFamily, MetricFamily, Spec


class FamilyCollector(Collector):
    """Nothing is counted in this process, so every web worker gives the same answer."""

    def __init__(self, families: Iterable[MetricFamily]) -> None:
        """Give what these families hold."""
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield one family per metric that has a series."""
        for family in self._families:
            if isinstance(family, HistogramFamily):
                yield from _histogram(family)
                continue
            metric = _metric(family.spec)
            for sample in family.samples():
                metric.add_sample(
                    family.spec.name,
                    dict(zip(family.spec.labels, sample.labels, strict=True)),
                    float(sample.value),
                    exemplar=_exemplar(sample.exemplar),
                )
            if metric.samples:
                yield metric


def _histogram(family: HistogramFamily) -> Iterator[Metric]:
    """Yield the client's own kind of histogram, where there is any."""
    edges = [*map(floatToGoString, family.edges), "+Inf"]
    metric = HistogramMetricFamily(family.spec.name, family.spec.help, labels=family.spec.labels)
    for labels, counts, total in family.held:
        buckets = list(zip(edges, np.cumsum(counts).tolist(), strict=True))
        metric.add_metric(labels, buckets=buckets, sum_value=total)
    if metric.samples:
        yield metric


def _metric(spec: Spec) -> Metric:
    """Return an empty metric; a counter whose name does not say so is of no known kind."""
    suffix = {"counter": "_total", "info": "_info"}.get(spec.kind, "")
    is_named_so = spec.name.endswith(suffix)
    return Metric(
        spec.name.removesuffix(suffix), spec.help, spec.kind if is_named_so else "unknown"
    )


def _exemplar(exemplar: Exemplar | None) -> samples.Exemplar | None:
    if exemplar is None:
        return None
    return samples.Exemplar(dict(exemplar.labels), exemplar.value, exemplar.at_s)
