"""What healthy EFA devices report: the gradients they carry, and how soon a probe comes back."""

import numpy as np

from telemetry.simulate.hardware import exchanged, nature
from telemetry.simulate.noise import Floats, TickNoise
from telemetry.simulate.occupancy import Occupancy
from telemetry.simulate.script import Script

# Probes take 15 to 17 µs one way on this fabric; each device has its own place in the racks.
PROBE_S, PROBE_SPREAD_S = 16.0e-6, 0.35e-6
LOAD_COST = 0.10  # a busy link answers that much later
PACKET_BYTES = 8192.0
IDLE_BYTES_PER_S = 2.0e3
RETRANSMIT_RATIO = 2.0e-6


def efa_values(
    script: Script, spent: Occupancy, noise: TickNoise, nodes: slice
) -> dict[str, Floats]:
    """Return latency, traffic and troubles of every EFA device: (n_ticks, n_nodes, n_efa).

    Notes
    -----
    Gradients are striped over all devices of a node. What computing hides of the exchange
    flows while it computes, the rest while it transfers.
    """
    n, of = script.instance.n_efa, nature(script).efa[nodes]
    sent = (script.step_plan.efa_bytes / n * exchanged(script, spent) + IDLE_BYTES_PER_S).astype(
        np.float32
    )[..., None]
    tx = sent * (1 + 0.01 * noise.normal(n))
    rx = sent * (1 + 0.01 * noise.normal(n))
    packets = tx * np.float32(1 / PACKET_BYTES)
    # Packets are whole: a second has none of these, or now and then one.
    retransmits = np.floor(packets * np.float32(RETRANSMIT_RATIO) + noise.uniform(n))
    base = (PROBE_S + PROBE_SPREAD_S * of).astype(np.float32)
    load = (1 + LOAD_COST * spent.transfer).astype(np.float32)
    latency = noise.latency(n)
    latency *= base
    latency *= load[..., None]
    none = np.zeros(tx.shape, np.float32)
    return {
        "efa_latency_s": latency,
        "efa_tx_bytes_per_s": tx,
        "efa_rx_bytes_per_s": rx,
        "efa_tx_packets_per_s": packets,
        "efa_retransmits_per_s": retransmits,
        "efa_drops_per_s": none,
        "efa_impaired_per_s": none.copy(),
        "efa_unresponsive_per_s": none.copy(),
    }
