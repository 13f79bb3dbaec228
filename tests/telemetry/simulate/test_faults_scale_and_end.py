"""Stronger faults slow a step more; ended faults leave no effect."""

import numpy as np
import pytest

from tests.telemetry.simulate.played import (
    END_S,
    START_S,
    steps,
    values,
    with_fault,
)

BEFORE = (40.0, START_S)
DEVICE = 5


@pytest.mark.parametrize(
    ("kind", "weak", "strong"),
    [
        ("efa_latency", 1.2, 4),
        ("efa_loss", 0.001, 0.02),
        ("slow_core", 1.02, 1.3),
        ("throttle", 1.02, 1.3),
        ("hbm_slow", 0.95, 0.6),
        ("input_stall", 0.01, 0.2),
        ("seq_imbalance", 0.05, 0.5),
    ],
)
def test_the_stronger_the_fault_the_longer_the_step(kind: str, weak: float, strong: float) -> None:
    whole_run = kind == "seq_imbalance"
    healthy, mild, severe = (
        steps(with_fault(kind, magnitude, whole_run=whole_run)).step_s.mean()
        if magnitude
        else steps(with_fault("node_silent")).step_s.mean()
        for magnitude in (None, weak, strong)
    )

    assert healthy < mild < severe


@pytest.mark.parametrize("kind", ["efa_latency", "slow_core", "hbm_slow", "efa_loss", "throttle"])
def test_all_is_well_again_afterwards(kind: str) -> None:
    result = with_fault(kind, 0.05 if kind == "efa_loss" else 3, device=DEVICE)
    settled = (END_S + 5, 240)

    for name in ("core_utilization_ratio", "efa_latency_s", "hbm_bandwidth_bytes_per_s"):
        before = values(result, name, *BEFORE).mean(axis=0)
        np.testing.assert_allclose(values(result, name, *settled).mean(axis=0), before, rtol=0.1)
    assert steps(result, *settled).step_s.mean() == pytest.approx(
        steps(result, *BEFORE).step_s.mean(), rel=0.02
    )
