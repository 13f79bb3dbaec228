"""How faults change what the hardware reports."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from telemetry.blocks import IntArray
from telemetry.simulate.faults import slowdown
from telemetry.simulate.hardware import PACKET_BYTES, Ticks
from telemetry.simulate.noise import Floats
from telemetry.simulate.script import Act, Script, core_factor, window_of

LOSS_DELAY = 4.0  # the median probe is delayed by so many times the share of packets lost
# A device that fails breaks its connections at once; afterwards peers retry from time to time.
BREAKS_PER_S, BREAKS_FOR_S, RETRIES_PER_S = 8.0, 5.0, 0.2
SILENT = ("node_silent", "node_crash", "node_joins")


@dataclass(frozen=True, slots=True)
class MarkedRows:
    """Values that an event changes.

    ``values`` are (n_ticks, n_nodes, n_parts) each, ``rows`` the affected nodes, ``when`` the
    ticks that end during the event.
    """

    values: dict[str, Floats]
    ticks: Ticks
    when: slice
    rows: IntArray

    def __getitem__(self, name: str) -> Floats:
        return self.values[name][self.when]


def mark(script: Script, values: dict[str, Floats], ticks: Ticks, nodes: slice) -> None:
    """Apply the effects of all events on values, in place.

    Parameters
    ----------
    values : (n_ticks, n_nodes, n_parts) each
    ticks : (n_ticks,) Unix seconds
    nodes : which of the run's nodes the values are of
    """
    for act in sorted(script.acts, key=lambda act: act.kind in SILENT):
        rows = act.rows[(act.rows >= nodes.start) & (act.rows < nodes.stop)] - nodes.start
        when = window_of(act, ticks)
        is_seen = when.start < when.stop or act.kind == "ecc_uncorrected"
        if act.kind in MARKS and len(rows) and is_seen:
            MARKS[act.kind](script, act, MarkedRows(values, ticks, when, rows))


def _blank(_script: Script, _act: Act, here: MarkedRows) -> None:
    for name in here.values:
        here[name][:, here.rows] = np.nan


def _slow_part(script: Script, act: Act, here: MarkedRows) -> None:
    """Slow cores stay busy while the others of the node wait."""
    if isinstance(act.parts, slice) or script.plan.inputs.busy_while_waiting:
        return
    n_cores = 1 if act.kind == "slow_core" else script.instance.chip.cores_logical
    slow = slice(act.parts * n_cores, (act.parts + 1) * n_cores)
    busy = here["core_utilization_ratio"]
    kept = busy[:, here.rows, slow]
    busy[:, here.rows] *= np.float32(1 / core_factor(script, act))
    busy[:, here.rows, slow] = kept


def _slow_memory(script: Script, act: Act, here: MarkedRows) -> None:
    """Let the accelerator move fewer bytes and slow down its node."""
    left = np.float32(1 / slowdown(act.magnitude))
    here["hbm_bandwidth_bytes_per_s"][:, here.rows, act.parts] *= left
    _slow_part(script, act, here)


def _slow_link(_script: Script, act: Act, here: MarkedRows) -> None:
    here["efa_latency_s"][:, here.rows, act.parts] *= np.float32(act.magnitude)


def _lossy_link(_script: Script, act: Act, here: MarkedRows) -> None:
    """Let the link retransmit many packets and answer probes slightly later."""
    at = (slice(None), here.rows, act.parts)
    again = here["efa_tx_packets_per_s"][at] * np.float32(act.magnitude / (1 - act.magnitude))
    here["efa_retransmits_per_s"][at] += again
    here["efa_tx_packets_per_s"][at] += again
    here["efa_tx_bytes_per_s"][at] += again * np.float32(PACKET_BYTES)
    here["efa_latency_s"][at] *= np.float32(1 + LOSS_DELAY * act.magnitude)


def _dead_link(script: Script, act: Act, here: MarkedRows) -> None:
    """Stop the device; its neighbour carries twice as much, and peers report it as impaired."""
    dead, n_efa = act.parts, script.instance.n_efa
    at = (slice(None), here.rows, dead)
    for name in ("efa_tx_bytes_per_s", "efa_rx_bytes_per_s", "efa_tx_packets_per_s"):
        if n_efa > 1 and isinstance(dead, int):
            here[name][:, here.rows, (dead + 1) % n_efa] += here[name][at]
        here[name][at] = 0
    here["efa_retransmits_per_s"][at] = 0
    here["efa_latency_s"][at] = np.nan
    is_breaking = here.ticks[here.when] <= act.start_s + BREAKS_FOR_S
    events = np.where(is_breaking, BREAKS_PER_S, RETRIES_PER_S)[:, None]
    here["efa_impaired_per_s"][at] += events.astype(np.float32)
    here["efa_unresponsive_per_s"][at] += (events / 2).astype(np.float32)


def _bad_memory(_script: Script, act: Act, here: MarkedRows) -> None:
    """Error counts rise and never fall; executions fail during that time."""
    # The first error is at the onset.
    lasted_s = np.minimum(here.ticks, act.end_s) - act.start_s
    so_far = np.where(lasted_s > 0, 1 + np.floor(lasted_s * act.magnitude / 60), 0)
    counts = so_far.astype(np.float32)
    shaped = counts[:, None] if isinstance(act.parts, int) else counts[:, None, None]
    here.values["mem_ecc_uncorrected"][:, here.rows, act.parts] += shaped
    for name in ("executions_failed_per_s", "execution_errors_per_s"):
        here[name][:, here.rows] += np.float32(act.magnitude / 60)


Mark = Callable[[Script, Act, MarkedRows], None]
MARKS: Mapping[str, Mark] = {
    "efa_latency": _slow_link,
    "efa_loss": _lossy_link,
    "efa_down": _dead_link,
    "slow_core": _slow_part,
    "throttle": _slow_part,
    "hbm_slow": _slow_memory,
    "ecc_uncorrected": _bad_memory,
    "node_silent": _blank,
    "node_crash": _blank,
    "node_joins": _blank,
}
