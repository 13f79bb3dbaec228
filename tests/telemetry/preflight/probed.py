"""A preflight of simulated nodes, measured from beginning to end."""

from dataclasses import replace

from telemetry.preflight.measured import Measured
from telemetry.simulate import probes
from telemetry.simulate.bed import Bed, ProbeFault

SIXTEEN = tuple(f"n-{i:02d}" for i in range(16))


def bed_of(*faults: ProbeFault, n: int = 16, kind: str = "trn2.48xlarge", seed: int = 1) -> Bed:
    return Bed(tuple(f"n-{i:02d}" for i in range(n)), kind, seed, faults)


def measured(bed: Bed) -> Measured:
    """Measure all that a preflight measures, but for the collectives."""
    n_devices, n_efa = probes.counts(bed)
    ecc, errors = probes.errors(bed)
    device_s, loss = probes.devices(bed)
    found = replace(
        Measured.nothing_of(bed.nodes, n_efa=bed.instance.n_efa),
        n_devices=n_devices,
        n_efa_seen=n_efa,
        ecc_uncorrected=ecc,
        hardware_errors=errors,
        device_s=device_s,
        device_loss_ratio=loss,
        rest=probes.at_rest(bed),
        rest_s=probes.REST_S,
    )
    for rows, columns in probes.rounds(len(bed.nodes)):
        found = found.with_pairs(rows, columns, probes.pairs(bed, rows, columns))
    return found
