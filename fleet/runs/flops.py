"""FLOPs that a run's tokens need, and its nodes' peak; None where unknown."""

import math

from fleet.models import Run
from telemetry import catalog


def flops_per_token(run: Run) -> float | None:
    """Return the FLOPs of training on one token.

    For a model that the catalog lacks: ``6 · params``, and ``12 · layers · hidden · seq_len`` for
    attention if the run reports its shape.
    """
    known = catalog.models().get(run.model)
    shape = run.shape or {}
    if "params" not in shape:
        return known.flops_per_token(run.seq_len) if known and run.seq_len else None
    attention = 12 * shape.get("layers", 0) * shape.get("hidden", 0) * run.seq_len
    return float(6 * shape["params"] + attention)


def peak_flops(run: Run) -> float | None:
    """Return the dense FLOPs per second of all its nodes at its precision."""
    instance = catalog.instances().get(run.instance_type)
    if instance is None or run.precision not in instance.chip.peak_flops:
        return None
    return run.n_nodes * instance.peak_flops(run.precision)


def mfu_ratio(run: Run, tokens_per_s: float | None) -> float | None:
    """Return model FLOPs utilization: the share of the peak that training uses."""
    per_token, peak = flops_per_token(run), peak_flops(run)
    if not per_token or not peak or tokens_per_s is None or not math.isfinite(tokens_per_s):
        return None
    return tokens_per_s * per_token / peak
