"""Every figure of the catalogue has a source and a date."""

import re

from telemetry.catalog import Source, instances, models

DATE = re.compile(r"20\d\d-\d\d(-\d\d)?")
FIGURES_OF_A_CHIP = {"cores_physical", "cores_logical", "hbm_bytes", "hbm_bytes_per_s"}
FIGURES_OF_AN_INSTANCE = {
    "n_devices",
    "vcpus",
    "host_memory_bytes",
    "n_efa",
    "network_bytes_per_s",
    "link_bytes_per_s",
}


def is_valid(source: Source) -> bool:
    return bool(source.title) and DATE.fullmatch(source.date) is not None


def test_instances_their_chips_and_prices() -> None:
    for name, found in instances().items():
        chip = found.chip
        peaks = {f"peak_flops.{precision}" for precision in chip.peak_flops}

        assert found.sources.keys() >= FIGURES_OF_AN_INSTANCE, name
        assert chip.sources.keys() == FIGURES_OF_A_CHIP | peaks, name
        prices = [price.source for price in found.prices]
        assert all(map(is_valid, [*found.sources.values(), *chip.sources.values(), *prices])), name
        assert all(price.basis and price.region for price in found.prices), name


def test_models() -> None:
    for name, found in models().items():
        assert found.source, name
        assert DATE.fullmatch(found.date), name
