"""The chart of a preflight: its collectives over sizes, beside what they should take."""

import numpy as np

from fleet.charts.figures import Figure, Line
from fleet.templatetags.units import NBSP
from telemetry.preflight.measured import Measured

UNITS = ("B", "KiB", "MiB", "GiB")


def size_name(n_bytes: float) -> str:
    """Write a size in binary units: 1024 is 1 KiB."""
    power = min(int(np.log2(max(n_bytes, 1))) // 10, len(UNITS) - 1)
    return f"{n_bytes / 1024**power:g}{NBSP}{UNITS[power]}"


def collective_figure(measured: Measured) -> Figure:
    """Draw the collectives of a preflight, and the curve of the last one's group."""
    if not measured.collectives:
        return Figure("s", scale="log")
    last = measured.collectives[-1]
    lines = [Line(f"expected of {len(last.nodes)} nodes", last.expected_s, "idle")]
    for each in measured.collectives:
        same = np.array_equal(each.size_bytes, last.size_bytes)
        label = f"measured, {'all ' if each is not last else ''}{len(each.nodes)} nodes"
        if same:
            lines.append(Line(label, np.where(np.isfinite(each.time_s), each.time_s, np.nan)))
    labels = [size_name(size) for size in last.size_bytes]
    return Figure("s", lines, np.arange(len(labels)), labels=labels, scale="log")
