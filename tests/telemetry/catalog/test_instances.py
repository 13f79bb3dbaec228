"""Instance types compared with the published totals."""

import pytest

from telemetry.catalog import instance, instances
from telemetry.errors import FieldError

GIB = 2**30

# cores as counted, physical cores, HBM GiB, HBM TB/s, BF16 PFLOPS, EFA devices, Gbit/s
PUBLISHED = {
    "trn1.2xlarge": (2, 2, 32, 0.82, 0.19, 0, 25),
    "trn1.32xlarge": (32, 32, 512, 13.12, 3.04, 8, 800),
    "trn1n.32xlarge": (32, 32, 512, 13.12, 3.04, 16, 1600),
    "trn2.3xlarge": (4, 8, 96, 2.9, 0.667, 1, 200),
    "trn2.48xlarge": (64, 128, 1536, 46.4, 10.7, 16, 3200),
    "trn2u.48xlarge": (64, 128, 1536, 46.4, 10.7, 16, 3200),
    "inf2.48xlarge": (24, 24, 384, 9.84, 2.28, 0, 100),
    "p4d.24xlarge": (8, 8, 320, 12.4, 2.5, 4, 400),
    "p5.48xlarge": (8, 8, 640, 26.8, 7.9, 32, 3200),
    "p5en.48xlarge": (8, 8, 1128, 38.4, 7.9, 16, 3200),
}


def test_all_ten_are_there() -> None:
    assert instances().keys() == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_whole_is_the_sum_of_its_chips(name: str) -> None:
    cores, physical, hbm_gib, hbm_tb_per_s, pflops, n_efa, gbit_per_s = PUBLISHED[name]
    found = instance(name)

    assert (found.n_cores, found.n_cores_physical, found.n_efa) == (cores, physical, n_efa)
    assert found.hbm_bytes == hbm_gib * GIB
    assert found.hbm_bytes_per_s == pytest.approx(hbm_tb_per_s * 1e12, rel=0.01)
    assert found.peak_flops("bf16") == pytest.approx(pflops * 1e15, rel=0.02)
    assert found.network_bytes_per_s == pytest.approx(gbit_per_s * 1e9 / 8)


def test_trn2_is_priced_by_capacity_block_for_nothing_else_is_published() -> None:
    prices = instance("trn2.48xlarge").prices

    assert {price.basis for price in prices} == {"capacity block"}
    assert instance("trn2.48xlarge").price.usd_per_hour == 35.7608


def test_trn1_is_priced_on_demand_unless_configured_otherwise() -> None:
    price = instance("trn1.32xlarge").price

    assert (price.usd_per_hour, price.basis, price.region) == (21.50, "on demand", "us-east-1")
    assert price.date == "2026-07-20"


def test_a_type_without_a_published_price_states_it() -> None:
    with pytest.raises(FieldError, match=r"trn2u\.48xlarge.*no published price"):
        _ = instance("trn2u.48xlarge").price


def test_a_small_trn1_has_ethernet_that_slows_down() -> None:
    small = instance("trn1.2xlarge")

    assert not small.has_efa
    assert small.network_baseline_bytes_per_s is not None
    assert small.network_baseline_bytes_per_s < small.network_bytes_per_s


def test_a100_has_no_fp8() -> None:
    assert "fp8" not in instance("p4d.24xlarge").chip.peak_flops
