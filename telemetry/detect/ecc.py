"""Memory errors that could not be corrected: counted up on a device within the last minutes."""

import numpy as np

from telemetry.blocks import FloatArray, Span
from telemetry.detect.finding import Finding
from telemetry.detect.rules import RULES

RULE = "ecc_uncorrected"
ECC_METRICS = ("mem_ecc_uncorrected", "sram_ecc_uncorrected")


def uncorrected(counts: Span, *, run: str | None = None) -> list[Finding]:
    """Find the devices whose uncorrected ECC counts rose within the span.

    Parameters
    ----------
    counts : Span
        ECC_METRICS at two or more moments, oldest first; two ticks ten minutes apart will do, and
        decide how long a finding lasts. A count that fell was reset: it counts from zero again.
    run : name of the run that the nodes train, if any

    Notes
    -----
    A count that stood there when watching began is history, not news: only a rise is a finding.
    """
    found = []
    for metric in ECC_METRICS:
        if metric not in counts.values:
            continue
        risen = _risen(counts.values[metric])
        for row, device in zip(*np.nonzero(risen.sum(axis=0) > 0), strict=True):
            found.append(_finding(counts, metric, risen[:, row, device], row, int(device), run))
    return found


def _risen(values: FloatArray) -> FloatArray:
    """Return by how much each count rose since the last moment it was reported, NaN or fall aside."""
    held = values.copy()
    for i in range(1, len(held)):
        held[i] = np.where(np.isnan(held[i]), held[i - 1], held[i])
    rise = np.diff(held, axis=0)
    rise = np.where(rise < 0, held[1:], rise)
    return np.nan_to_num(rise, nan=0.0)


def _finding(
    counts: Span, metric: str, rise: FloatArray, row: int, device: int, run: str | None
) -> Finding:
    """Describe one device that counted uncorrected errors."""
    node = counts.nodes[row]
    first = int(np.flatnonzero(rise)[0])
    return Finding(
        rule=RULE,
        cause=RULE,
        severity=RULES[RULE].severity,
        run=run,
        node=node,
        device=device,
        onset_s=float(counts.ticks[first + 1]),
        score=float(rise.sum()),
        evidence={
            "metric": metric,
            "rise": float(rise.sum()),
            "count": float(counts.values[metric][-1, row, device]),
            "window": [float(counts.ticks[0]), float(counts.ticks[-1])],
            "charts": [{"metric": metric, "node": node, "device": device}],
        },
    )
