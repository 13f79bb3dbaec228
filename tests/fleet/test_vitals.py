"""Nodes summed up a block at a time: the same as one by one, and absent is never zero."""

import numpy as np
import pytest

from fleet.runs.node_figures import NO_FIGURES, latest_figures
from telemetry.blocks import Block
from tests.parts import block


def test_each_node_is_summed_up_over_its_own_parts() -> None:
    cores = np.random.default_rng(1).random((2, 32))
    hbm = np.arange(32.0).reshape(2, 16)
    vitals = latest_figures([block(core_utilization_ratio=cores, hbm_bandwidth_bytes_per_s=hbm)])

    for i, name in enumerate(("steady", "limping")):
        told = vitals["llama/0", name]
        assert told.utilization_mean == pytest.approx(cores[i].mean())
        assert (told.utilization_min, told.utilization_max) == (cores[i].min(), cores[i].max())
        assert told.hbm_bytes_per_s == hbm[i].sum()


def test_parts_without_a_reading_are_left_out() -> None:
    cores = np.full((2, 32), np.nan)
    cores[0, :2] = 0.2, 0.4
    vitals = latest_figures([block(core_utilization_ratio=cores)])

    assert vitals["llama/0", "steady"].utilization_mean == pytest.approx(0.3)
    assert vitals["llama/0", "limping"].utilization_mean is None
    assert vitals["llama/0", "limping"].utilization_max is None


def test_a_block_that_lacks_everything_says_nothing() -> None:
    assert latest_figures([Block("a/0", 1, ("a",), {})]) == {("a/0", "a"): NO_FIGURES}


def test_errors_of_both_kinds_are_counted_together() -> None:
    memory = np.zeros((2, 16))
    memory[1, 3] = 2
    vitals = latest_figures([block(mem_ecc_uncorrected=memory, sram_ecc_uncorrected=memory)])

    assert vitals["llama/0", "steady"].ecc_uncorrected == 0
    assert vitals["llama/0", "limping"].ecc_uncorrected == 4
