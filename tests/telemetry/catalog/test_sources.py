"""Every figure of the catalogue has a source and a date."""

import re

import pytest

from telemetry.catalog import Instance, Model, Source, instances, models

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

every_instance = pytest.mark.parametrize("found", instances().values(), ids=instances().keys())


def is_valid(source: Source) -> bool:
    return bool(source.title) and DATE.fullmatch(source.date) is not None


@every_instance
def test_an_instance(found: Instance) -> None:
    assert found.sources.keys() >= FIGURES_OF_AN_INSTANCE
    assert all(is_valid(source) for source in found.sources.values())


@every_instance
def test_its_chip(found: Instance) -> None:
    peaks = {f"peak_flops.{precision}" for precision in found.chip.peak_flops}

    assert found.chip.sources.keys() == FIGURES_OF_A_CHIP | peaks
    assert all(is_valid(source) for source in found.chip.sources.values())


@every_instance
def test_its_prices(found: Instance) -> None:
    assert all(is_valid(price.source) and price.basis and price.region for price in found.prices)


@pytest.mark.parametrize("found", models().values(), ids=models().keys())
def test_a_model(found: Model) -> None:
    assert found.source
    assert DATE.fullmatch(found.date)
