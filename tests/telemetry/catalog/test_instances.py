"""Instance types compared with the published totals."""

from datetime import date

import pytest

from telemetry.catalog import age_note, instance, instances
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
    "trn3.48xlarge": (64, 128, 2304, 78.4, 10.736, 16, 3200),
    "inf2.48xlarge": (24, 24, 384, 9.84, 2.28, 0, 100),
    "p4d.24xlarge": (8, 8, 320, 12.4, 2.5, 4, 400),
    "p4de.24xlarge": (8, 8, 640, 16, 2.5, 4, 400),
    "p5.48xlarge": (8, 8, 640, 26.8, 7.9, 32, 3200),
    "p5e.48xlarge": (8, 8, 1128, 38.4, 7.9, 32, 3200),
    "p5en.48xlarge": (8, 8, 1128, 38.4, 7.9, 16, 3200),
    "p6-b200.48xlarge": (8, 8, 1432, 64, 18, 8, 3200),
}


def test_all_fourteen_are_there() -> None:
    assert instances().keys() == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_whole_is_the_sum_of_its_chips(name: str) -> None:
    cores, physical, hbm_gib, hbm_tb_per_s, pflops, n_efa, gbit_per_s = PUBLISHED[name]
    found = instance(name)

    n_physical = found.n_devices * found.chip.cores_physical
    assert (found.n_cores, n_physical, found.n_efa) == (cores, physical, n_efa)
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

    assert (price.usd_per_hour, price.basis, price.date) == (21.50, "on demand", "2026-08-26")
    assert price.regions == ("us-east-1", "us-east-2", "us-west-2")


def test_a_type_without_a_published_price_states_it() -> None:
    with pytest.raises(FieldError, match=r"trn2u\.48xlarge.*no published price"):
        _ = instance("trn2u.48xlarge").price


def test_four_servers_are_a_trn3_ultraserver() -> None:
    server = instance("trn3.48xlarge")

    assert (4 * server.n_devices, 4 * server.vcpus) == (64, 768)
    assert 4 * server.peak_flops("bf16") == pytest.approx(42_944e12)
    assert 4 * server.peak_flops("fp8") == pytest.approx(161_088e12)
    assert 4 * server.hbm_bytes == 9216 * GIB
    assert server.prices == ()


def test_a_capacity_block_is_eight_times_the_rate_of_a_gpu() -> None:
    rates = {"p4d.24": 1.696, "p4de.24": 2.546, "p5.48": 5.970, "p5e.48": 6.866, "p5en.48": 7.895}
    for name, per_gpu in (rates | {"p6-b200.48": 14.208}).items():
        blocks = [p for p in instance(f"{name}xlarge").prices if p.basis == "capacity block"]
        assert [block.usd_per_hour for block in blocks] == [pytest.approx(8 * per_gpu)]


def test_the_age_of_a_price_is_marked_after_90_days() -> None:
    assert age_note("2026-08-25", date(2026, 11, 23)) == ""
    assert age_note("2026-08-24", date(2026, 11, 23)) == "as of 2026-08-24, 91 days old"
    # A month counts from its first day.
    assert age_note("2026-08", date(2026, 11, 23)) == "as of 2026-08, 114 days old"


def test_a_small_trn1_has_ethernet_that_slows_down() -> None:
    small = instance("trn1.2xlarge")

    assert not small.has_efa
    assert small.network_baseline_bytes_per_s is not None
    assert small.network_baseline_bytes_per_s < small.network_bytes_per_s


def test_a100_has_no_fp8() -> None:
    assert "fp8" not in instance("p4d.24xlarge").chip.peak_flops
