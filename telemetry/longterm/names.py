"""What series are called in the long-term store: as exported, and as minutes beside them."""

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np

from telemetry.blocks import METRICS, FloatArray
from telemetry.exposition import HARDWARE
from telemetry.longterm.wire import series
from telemetry.numbers import numbers
from telemetry.steps import PHASES
from telemetry.store.packing import DTYPES, encode
from telemetry.store.rollups import N_STATS

# Minutes stand under names of their own, as Prometheus would name what a rule recorded: lowest,
# mean and highest of each minute, in the order in which the durable tier has them.
STATS = ("min_1m", "avg_1m", "max_1m")
assert len(STATS) == N_STATS  # noqa: S101
# A minute's value stands in its middle: no border of a range can take it for a neighbour's.
MIDDLE_S = 30

RUN_PHASE = "trnwatch_run_phase_seconds:avg_1m"
RUN_TOKENS = "trnwatch_run_step_tokens:avg_1m"
RUN_STEP = "trnwatch_run_steps:max_1m"
PHASE_NAMES = tuple(phase.removesuffix("_s") for phase in PHASES)


def minute_name(metric: str, stat: str) -> str:
    """Return what the minutes of a metric are called.

    >>> minute_name("efa_latency_s", "avg_1m")
    'trnwatch_efa_latency_seconds:avg_1m'
    """
    return f"{HARDWARE[metric].name}:{stat}"


@lru_cache(maxsize=8192)
def heads(
    metric: str, nodes: tuple[str, ...], n_parts: int, stat: str | None = None
) -> Sequence[bytes]:
    """Return the series of a metric, all parts of the first node first.

    ``stat`` names minutes; without it they are the seconds, as exported.
    """
    spec = HARDWARE[metric]
    name = spec.name if stat is None else minute_name(metric, stat)
    if METRICS[metric].part == "node":
        return [series(name, ((spec.labels[0], node),)) for node in nodes]
    by_node, by_part = spec.labels
    parts = [str(part) for part in range(n_parts)]
    return [series(name, ((by_node, node), (by_part, part))) for node in nodes for part in parts]


def as_exported(metric: str, values: FloatArray) -> FloatArray:
    """Round values as /metrics writes them: what is scraped and what is sent are the same."""
    packing = METRICS[metric].packing
    if packing == "exact":
        return np.asarray(values, float)
    return _exported(packing)[encode(values, packing)]


@cache
def _exported(packing: str) -> FloatArray:
    """Return every value that a packing knows, as written for Prometheus."""
    dtype = DTYPES[packing]
    codes = np.arange(1 << 8 * dtype.itemsize, dtype=dtype)
    return np.array([float(text) for text in numbers(codes, packing)])
