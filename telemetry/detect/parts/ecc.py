"""Memory errors that could not be corrected: counted up on a device within the last minutes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.detect.finding import Finding
from telemetry.detect.rules import RULES

RULE = "ecc_uncorrected"
# How long a finding outlives the last error where its alert asks for more: by so many of the gaps
# between errors, within these seconds.
GAPS, HOLD_S = 3.0, (RULES[RULE].limits["hold_s"], 3 * 3600.0)
ECC_METRICS = ("mem_ecc_uncorrected", "sram_ecc_uncorrected")


def uncorrected(counts: Span, *, run: str | None = None) -> list[Finding]:
    """Find the nodes whose uncorrected ECC counts rose within the span.

    Parameters
    ----------
    counts : Span
        ECC_METRICS at two or more moments, oldest first. Two ticks ten minutes apart will do; how
        far they lie apart is how long a finding outlives the last error.
    run : str, optional
        The run that the nodes train.

    Returns
    -------
    One finding per node, of the device that counted most.

    Notes
    -----
    A count that stood there when watching began is history, not news: only a rise is a finding.
    A count that fell was reset, and counts from zero again.
    """
    metrics = [metric for metric in ECC_METRICS if metric in counts.values]
    if not metrics or len(counts.ticks) < 2:
        return []
    rises = np.stack([rise(counts.values[metric]) for metric in metrics])
    sick = np.flatnonzero(rises.sum(axis=(0, 1, 3)) > 0)
    return [_finding(counts, metrics, rises[:, :, row], int(row), run=run) for row in sick]


def is_settled(
    evidence: Mapping[str, Any], count: float, *, quiet_s: float, lasted_s: float
) -> bool:
    """Tell whether memory has been quiet for long enough that an open alert may end.

    Parameters
    ----------
    evidence : as the finding had it
    count : errors that the node has counted so far
    quiet_s, lasted_s : seconds
        Since nothing has been found, and from the first error until then.

    Notes
    -----
    Errors may come minutes or hours apart, and each alone would be found, forgotten and found
    again. They are over after three times the usual gap between two of them; of a single error
    nobody knows the gap. A count that fell was reset: the device was reset or replaced.
    """
    before = evidence.get("count_before")
    if before is None or count < before:
        return True
    n_errors = count - float(before)
    gap_s = lasted_s / (n_errors - 1) if n_errors > 1 else np.inf
    return bool(quiet_s >= np.clip(GAPS * gap_s, *HOLD_S))


def counted(counts: Span, node: str) -> float | None:
    """Return how many errors a node has counted by the newest moment that it told; None: never."""
    row = counts.nodes.index(node)
    held = [counts.values[metric][:, row] for metric in ECC_METRICS if metric in counts.values]
    each = np.concatenate(held, axis=1) if held else np.zeros((0, 0))
    told = np.flatnonzero(np.isfinite(each).any(axis=1))
    return float(np.nansum(each[told[-1]])) if told.size else None


def rise(count: FloatArray) -> FloatArray:
    """Return by how much a count rose from each moment to the next: (n - 1, ...), never negative.

    Where a moment is missing the rise appears at the next one that is not; a fall is a reset.
    """
    held = count.copy()
    for i in range(1, len(held)):
        held[i] = np.where(np.isnan(held[i]), held[i - 1], held[i])
    step = np.diff(held, axis=0)
    return np.nan_to_num(np.where(step < 0, held[1:], step), nan=0.0)


def _finding(
    counts: Span, metrics: list[str], rises: FloatArray, row: int, *, run: str | None
) -> Finding:
    """Describe one node; ``rises`` is (n_metrics, n_moments - 1, n_devices)."""
    node = counts.nodes[row]
    by_device = rises.sum(axis=(0, 1))
    device = int(np.argmax(by_device))
    metric = metrics[int(np.argmax(rises[:, :, device].sum(axis=1)))]
    first = int(np.flatnonzero(rises.sum(axis=(0, 2)))[0])
    return Finding(
        rule=RULE,
        cause=RULE,
        severity=RULES[RULE].severity,
        run=run,
        node=node,
        device=device,
        onset_s=float(counts.ticks[first + 1]),
        score=float(by_device.sum()),
        evidence={
            "n_errors": float(by_device.sum()),
            "count_before": (counted(counts, node) or 0.0) - float(by_device.sum()),
            "culprit": _culprit(by_device, device, metric),
            "devices": {str(i): float(by_device[i]) for i in np.flatnonzero(by_device)},
            "window": [float(counts.ticks[0]), float(counts.ticks[-1])],
            "charts": [{"metric": metric, "node": node, "device": device}],
        },
    )


def _culprit(by_device: FloatArray, device: int, metric: str) -> dict[str, Any]:
    """Set the errors of the worst device beside those of the node's others."""
    others = np.delete(by_device, device)
    return {
        "metric": metric,
        "value": float(by_device[device]),
        "peers_median": float(np.median(others)) if others.size else None,
        "n_peers": int(others.size),
        "unit": "count",
    }
