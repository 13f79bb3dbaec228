"""Accelerators and instance types, as published by vendors."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Annotated

import msgspec

from telemetry.errors import FieldError


def unknown(field: str, value: str, known: Collection[str]) -> FieldError:
    """FieldError for an unknown name; proposes similar names."""
    close = get_close_matches(value.lower(), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    names = ", ".join(sorted(known))
    return FieldError(field, f"{value!r} is not known; {hint}known are {names}")


Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[float, msgspec.Meta(gt=0)]


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where and when a figure was read (ISO date, or year and month)."""

    title: str
    date: str


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The price of an hour and its terms; ``usd_per_hour_high`` where a range is published."""

    usd_per_hour: Amount
    basis: str
    region: str
    source: Source
    usd_per_hour_high: float | None = None

    @property
    def date(self) -> str:
        return self.source.date


class Chip(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One accelerator. ``peak_flops`` is dense FLOPs per second by precision.

    A logical core is what the runtime counts: two physical ones on trn2. A GPU is one core.
    ``sources`` says for each figure where it comes from.
    """

    name: str
    vendor: str
    cores_physical: Count
    cores_logical: Count
    hbm_bytes: Count
    hbm_bytes_per_s: Amount
    peak_flops: Mapping[str, Amount]
    sources: Mapping[str, Source]


class Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One instance type.

    ``network_bytes_per_s`` is the line rate of all its network devices together, one way;
    ``network_baseline_bytes_per_s`` what it may use for long where that is less.
    ``link_bytes_per_s`` is NeuronLink or NVLink per chip, both ways together.
    """

    name: str
    chip: Chip
    can_train: bool
    n_devices: Count
    vcpus: Count
    host_memory_bytes: Count
    n_efa: Annotated[int, msgspec.Meta(ge=0)]
    network_bytes_per_s: Amount
    network_baseline_bytes_per_s: float | None = None
    link_bytes_per_s: Amount
    prices: tuple[Price, ...] = ()
    sources: Mapping[str, Source]

    @property
    def n_cores(self) -> int:
        """Cores as the runtime counts them: each runs one worker process (rank)."""
        return self.n_devices * self.chip.cores_logical

    @property
    def n_cores_physical(self) -> int:
        return self.n_devices * self.chip.cores_physical

    @property
    def hbm_bytes(self) -> int:
        return self.n_devices * self.chip.hbm_bytes

    @property
    def hbm_bytes_per_s(self) -> float:
        return self.n_devices * self.chip.hbm_bytes_per_s

    @property
    def has_efa(self) -> bool:
        """Whether nodes communicate over EFA; otherwise over TCP."""
        return self.n_efa > 0

    @property
    def price(self) -> Price:
        """The default price; FieldError if none is published."""
        if not self.prices:
            raise FieldError("instance", f"{self.name!r} has no published price; state your own")
        return self.prices[0]

    def peak_flops(self, precision: str) -> float:
        """Dense FLOPs per second of the whole node; KeyError if the precision is unknown."""
        return self.n_devices * self.chip.peak_flops[precision]
