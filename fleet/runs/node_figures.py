"""What the newest blocks say of each node in a few figures: all nodes of a block at once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan

import numpy as np

from telemetry.blocks import Block, FloatArray


@dataclass(frozen=True, slots=True)
class LatestFigures:
    """One node in one block; None where nothing was reported."""

    utilization_mean: float | None
    utilization_min: float | None
    utilization_max: float | None
    hbm_bytes_per_s: float | None
    device_memory_used_bytes: float | None
    efa_latency_max_s: float | None
    ecc_uncorrected: int | None


NO_FIGURES = LatestFigures(None, None, None, None, None, None, None)


def latest_figures(blocks: Iterable[Block]) -> Mapping[tuple[str, str], LatestFigures]:
    """Return what blocks say of their nodes, by shard and node.

    Notes
    -----
    Parts that report nothing (NaN) are left out of means, sums and extremes; a node none of
    whose parts report a metric has None for it.
    """
    return {
        (block.shard, name): vitals
        for block in blocks
        for name, vitals in zip(block.nodes, _vitals(block), strict=True)
    }


def _vitals(block: Block) -> Iterable[LatestFigures]:
    cores = _values(block, "core_utilization_ratio")
    errors = np.hstack([_values(block, f"{kind}_ecc_uncorrected") for kind in ("mem", "sram")])
    columns = (
        _known(_sum(cores) / np.maximum(_count(cores), 1)),
        _known(_extreme(cores, np.fmin)),
        _known(_extreme(cores, np.fmax)),
        _known(_sum(_values(block, "hbm_bandwidth_bytes_per_s"))),
        _known(_sum(_values(block, "device_memory_used_bytes"))),
        _known(_extreme(_values(block, "efa_latency_s"), np.fmax)),
        [None if total is None else int(total) for total in _known(_sum(errors))],
    )
    return [LatestFigures(*row) for row in zip(*columns, strict=True)]


def _values(block: Block, metric: str) -> FloatArray:
    """Return one metric: (n_nodes, n_parts), of no parts where the block lacks it."""
    values = block.values.get(metric)
    return np.zeros((len(block.nodes), 0)) if values is None else values.astype(float)


def _count(values: FloatArray) -> FloatArray:
    return np.asarray(np.isfinite(values).sum(axis=1), dtype=float)


def _sum(values: FloatArray) -> FloatArray:
    """Sum over parts: (n_nodes,), NaN where no part reports."""
    total = np.where(np.isfinite(values), values, 0.0).sum(axis=1)
    return np.asarray(np.where(_count(values) > 0, total, np.nan))


def _extreme(values: FloatArray, pick: np.ufunc) -> FloatArray:
    """Return the lowest or highest part: (n_nodes,), NaN where no part reports."""
    return np.asarray(pick.reduce(values, axis=1, initial=np.nan))


def _known(values: FloatArray) -> list[float | None]:
    """Return plain numbers, None for NaN."""
    return [None if isnan(value) else value for value in values.tolist()]
