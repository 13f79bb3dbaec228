"""The marks that faults leave on what hardware reports, tick by tick."""

import numpy as np

from telemetry.blocks import IntArray
from telemetry.simulate.conditions import memory_bound_ratio
from telemetry.simulate.kinds import slowdown
from telemetry.simulate.noise import Floats
from telemetry.simulate.script import Act, Script, window_of


def mark(script: Script, values: dict[str, Floats], ticks: IntArray, nodes: slice) -> None:
    """Leave the marks of everything in the script on the values of some nodes, in place."""
    for act in script.acts:
        mask = (act.rows >= nodes.start) & (act.rows < nodes.stop)
        rows = act.rows[mask] - nodes.start
        if act.kind in {"node_silent", "node_crash"} and len(rows):
            when = window_of(act, ticks)
            for value in values.values():
                value[when, rows] = np.nan
