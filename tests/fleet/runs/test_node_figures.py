"""Latest values of nodes, from blocks; missing values are never zero."""

import numpy as np
import pytest

from fleet.runs.summaries import latest_figures
from telemetry.blocks import Block
from tests.helpers import block


def test_each_node_is_summed_up_over_its_own_parts() -> None:
    cores = np.random.default_rng(1).random((2, 32))
    hbm = np.arange(32.0).reshape(2, 16)
    figures = latest_figures([block(core_utilization_ratio=cores, hbm_bandwidth_bytes_per_s=hbm)])

    for i, name in enumerate(("steady", "limping")):
        found = figures["llama/0", name]
        assert found["utilization_mean"] == pytest.approx(cores[i].mean())
        assert (found["utilization_min"], found["utilization_max"]) == (
            cores[i].min(),
            cores[i].max(),
        )
        assert found["hbm_bytes_per_s"] == hbm[i].sum()


def test_parts_without_a_reading_are_left_out() -> None:
    cores = np.full((2, 32), np.nan)
    cores[0, :2] = 0.2, 0.4
    figures = latest_figures([block(core_utilization_ratio=cores)])

    assert figures["llama/0", "steady"]["utilization_mean"] == pytest.approx(0.3)
    assert figures["llama/0", "limping"]["utilization_mean"] is None
    assert figures["llama/0", "limping"]["utilization_max"] is None


def test_a_block_without_metrics_has_no_values() -> None:
    found = latest_figures([Block("a/0", 1, ("a",), {})])

    assert set(found["a/0", "a"].values()) == {None}


def test_errors_of_both_kinds_are_counted_together() -> None:
    memory = np.zeros((2, 16))
    memory[1, 3] = 2
    figures = latest_figures([block(mem_ecc_uncorrected=memory, sram_ecc_uncorrected=memory)])

    assert figures["llama/0", "steady"]["ecc_uncorrected"] == 0
    assert figures["llama/0", "limping"]["ecc_uncorrected"] == 4
