"""Readings of a span that may lack them: one figure of each node, and the most of its parts."""

import numpy as np

from telemetry.blocks import FloatArray, Span


def of_node(span: Span, metric: str) -> FloatArray:
    """Return a figure that a node has one of: (n_ticks, n_nodes), NaN where nothing was said."""
    values = span.values.get(metric)
    if values is None or values.shape[2] == 0:
        return np.full((len(span.ticks), len(span.nodes)), np.nan)
    return np.asarray(values[..., 0], dtype=float)


def parts_of(span: Span, metric: str) -> FloatArray:
    """Return a figure of all parts: (n_ticks, n_nodes, n_parts), one NaN where there is none."""
    values = span.values.get(metric)
    if values is None or values.shape[2] == 0:
        return np.full((len(span.ticks), len(span.nodes), 1), np.nan)
    return values


def peak(span: Span, metric: str) -> FloatArray:
    """Return the most of any part: (n_ticks, n_nodes), NaN where nothing was said."""
    values = parts_of(span, metric)
    known = np.isfinite(values)
    most = np.where(known, values, -np.inf).max(axis=2)
    return np.where(known.any(axis=2), most, np.nan)
