"""What a log's charts draw, kept beside the run: every step, or the means of neighbours."""

from collections.abc import Mapping
from io import BytesIO

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.ingest.logs import LoggedSteps

COLUMNS = ("step_s", "tokens_per_s", "seq_per_s", "loss", "grad_norm", "learning_rate")
MOST_POINTS = 20_000
Curves = Mapping[str, FloatArray]


def curves_of(steps: LoggedSteps, ended_at_s: FloatArray) -> dict[str, FloatArray]:
    """Return ``step``, ``ended_at_s`` and COLUMNS, (n,) each; NaN where the log is silent."""
    rate = np.full(len(steps), np.nan)
    np.divide(steps.tokens, steps.step_s, out=rate, where=steps.step_s > 0)
    told = {name: getattr(steps, name) for name in COLUMNS if name != "tokens_per_s"}
    columns = {"step": steps.step.astype("f8"), "ended_at_s": ended_at_s, "tokens_per_s": rate}
    return _thinned(columns | told)


def _thinned(columns: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Average neighbours until few enough points are left; step and end are the last one's."""
    n = len(columns["step"])
    every = -(-n // MOST_POINTS)
    if every <= 1:
        return columns
    first = np.arange(0, n, every)
    last = np.append(first[1:], n) - 1
    thin = {}
    for name, values in columns.items():
        known = np.isfinite(values)
        total = np.add.reduceat(np.where(known, values, 0.0), first)
        count = np.add.reduceat(known.astype("i8"), first)
        mean = np.where(count > 0, total, np.nan) / np.maximum(count, 1)
        thin[name] = values[last] if name in ("step", "ended_at_s") else mean
    return thin


def packed(curves: Curves) -> bytes:
    """Return curves as bytes to keep."""
    file = BytesIO()
    np.savez_compressed(file, allow_pickle=False, **curves)
    return file.getvalue()


def unpacked(data: bytes) -> dict[str, FloatArray]:
    """Return curves that were packed; none from no bytes."""
    names = ("step", "ended_at_s", *COLUMNS)
    if not data:
        return {name: np.zeros(0) for name in names}
    with np.load(BytesIO(data), allow_pickle=False) as kept:
        return {name: kept[name] for name in names}
