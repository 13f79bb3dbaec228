"""A complete preflight of simulated nodes."""

from dataclasses import replace

from telemetry.checks.preflight_measurements import Measured
from telemetry.simulate import preflight
from telemetry.simulate.preflight import ProbedNodes, ProbeFault

SIXTEEN = tuple(f"n-{i:02d}" for i in range(16))


def bed_of(
    *faults: ProbeFault, n: int = 16, kind: str = "trn2.48xlarge", seed: int = 1
) -> ProbedNodes:
    return ProbedNodes(tuple(f"n-{i:02d}" for i in range(n)), kind, seed, faults)


def measured(bed: ProbedNodes) -> Measured:
    """Measure all that a preflight measures, but for the collectives."""
    n_devices, n_efa = preflight.counts(bed)
    ecc, errors = preflight.errors(bed)
    device_s, loss = preflight.devices(bed)
    found = replace(
        Measured.blank(bed.nodes, n_efa=bed.instance.n_efa),
        n_devices=n_devices,
        n_efa_seen=n_efa,
        ecc_uncorrected=ecc,
        hardware_errors=errors,
        device_s=device_s,
        device_loss_ratio=loss,
        rest=preflight.at_rest(bed),
        rest_s=preflight.REST_S,
    )
    for rows, columns in preflight.rounds(len(bed.nodes)):
        found = found.with_pairs(rows, columns, preflight.pairs(bed, rows, columns))
    return found
