"""The stages of a preflight: what is measured, in which order, and what each is called."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from telemetry.preflight.judging import judge
from telemetry.preflight.measured import Measured
from telemetry.simulate import probes
from telemetry.simulate.bed import Bed

# Rounds of pairs are told in so many stages, so that the heat map fills while one looks.
MOST_PAIR_STAGES = 6


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its words, and what it adds to what was measured."""

    words: str
    measure: Callable[[Bed, Measured, int | None], Measured]


def stages(n_nodes: int) -> list[Stage]:
    """Return the stages that so many nodes go through."""
    n_rounds = len(probes.rounds(n_nodes))
    n_stages = min(n_rounds, MOST_PAIR_STAGES)
    cuts = [n_rounds * i // n_stages for i in range(n_stages + 1)] if n_stages else []
    return [
        Stage("counting accelerators and EFA devices", _count),
        Stage("reading health and counters at rest", _read),
        Stage("probing each EFA device", _probe_devices),
        *(
            Stage(
                f"probing pairs, round {first + 1} to {last} of {n_rounds}",
                partial(_pairs, slice(first, last)),
            )
            for first, last in pairwise(cuts)
        ),
        Stage("running the collective over all nodes", _collective),
        Stage("running the collective over the nodes to take", _collective_of_chosen),
    ]


def _count(bed: Bed, measured: Measured, take: int | None) -> Measured:
    n_devices, n_efa = probes.counts(bed)
    return replace(measured, n_devices=n_devices, n_efa_seen=n_efa)


def _read(bed: Bed, measured: Measured, take: int | None) -> Measured:
    ecc, errors = probes.errors(bed)
    return replace(
        measured,
        ecc_uncorrected=ecc,
        hardware_errors=errors,
        rest=probes.at_rest(bed),
        rest_s=probes.REST_S,
    )


def _probe_devices(bed: Bed, measured: Measured, take: int | None) -> Measured:
    device_s, loss = probes.devices(bed)
    return replace(measured, device_s=device_s, device_loss_ratio=loss)


def _pairs(rounds: slice, bed: Bed, measured: Measured, take: int | None) -> Measured:
    for rows, columns in probes.rounds(len(bed.nodes))[rounds]:
        measured = measured.with_pairs(rows, columns, probes.pairs(bed, rows, columns))
    return measured


def _collective(bed: Bed, measured: Measured, take: int | None) -> Measured:
    return replace(measured, collectives=(probes.collective(bed, bed.nodes),))


def _collective_of_chosen(bed: Bed, measured: Measured, take: int | None) -> Measured:
    chosen = judge(measured, bed.instance, take=take).chosen
    if not chosen or chosen == bed.nodes:
        return measured
    also = probes.collective(bed, chosen)
    return replace(measured, collectives=(*measured.collectives, also))
