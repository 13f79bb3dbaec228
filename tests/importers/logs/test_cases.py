"""Logs as real senders write them, with figures of our own: each gives its right values."""

from pathlib import Path

import numpy as np
import pytest

from importers.logs import LogContext, complete_steps, ended_by, read_logs

DATA = Path(__file__).parent / "data"
NAN = float("nan")
# Steps, the last one, its usual duration, the last finite loss, sequences per second.
EXPECTED = {
    "01-litgpt-first-generation.log": (40, 59, 2.151, NAN, NAN),
    "03-hf-ray.log": (8, 120, 4.0, 2.8, NAN),
    "05-hf-sagemaker.log": (6, 150, 3.0, 2.5, NAN),
    "06-hf-cloudwatch-tail.log": (8, 120, 4.0, 2.8, NAN),
    "07-hf-docker-json.log": (8, 120, 4.0, 2.8, NAN),
    "09-titan-compose.log": (20, 200, 5.5, 5.0, NAN),
    "10-titan-nan.log": (30, 300, 5.5, 5.6, NAN),
    "13-nxd-running-average.log": (30, 30, 30.0, 7.5, 17.0667),
    "15-dlllogger.log": (60, 60, 1.8, 6.0, NAN),
    "16-mmengine-epochs.json": (24, 2400, 0.62, 2.6, NAN),
    "18-nanogpt.log": (20, 290, 0.415, 2.0333, NAN),
    "20-speedrun.log": (20, 1000, 0.061, 4.8889, NAN),
    "21-aws-fsdp-srun.log": (40, 39, 6.4, 7.1, 20.1),
    "23-torch-xla.log": (20, 400, 0.9, 1.2, NAN),
    "25-nemo-automodel.log": (40, 44, 2.6, 0.56, NAN),
    "26-nemo-bar-without-rate.log": (20, 1380, 2.1, 6.62, 384 / 2.1),
    "27-ends-in-errors.log": (5, 50, 4.0, 3.0, 64.0),
    "29-utf16.log": (5, 50, 4.0, 3.0, 64.0),
    "30-step-time-only.log": (20, 20, 15.5, NAN, NAN),
    "31-hf-batch-announced.log": (8, 120, 4.0, 2.8, 384.0),
}


def median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else NAN


@pytest.mark.parametrize("name", EXPECTED)
def test_each_case_has_its_right_values(name: str) -> None:
    n_steps, last_step, step_s, loss, seq_per_s = EXPECTED[name]
    log = read_logs([DATA / name], LogContext(year=2026))
    steps = complete_steps(log.steps, global_batch=log.totals.global_batch, seq_len=4096)
    losses = steps.loss[np.isfinite(steps.loss)]

    assert (len(steps), int(steps.step[-1])) == (n_steps, last_step)
    np.testing.assert_allclose(median(steps.step_s), step_s, rtol=0.002)
    np.testing.assert_allclose(losses[-1] if len(losses) else NAN, loss, rtol=1e-4)
    np.testing.assert_allclose(median(steps.seq_per_s), seq_per_s, rtol=1e-3)


def test_a_running_average_is_not_taken_for_tokens() -> None:
    log = read_logs([DATA / "13-nxd-running-average.log"], LogContext(year=2026))
    steps = complete_steps(log.steps, global_batch=NAN, seq_len=4096)

    assert steps.tokens.sum() == 62_914_560


def test_a_loss_that_is_nan_is_data() -> None:
    log = read_logs([DATA / "10-titan-nan.log"], LogContext(year=2026))
    (found,) = complete_steps(log.steps, global_batch=NAN, seq_len=NAN).not_finite

    assert (found.name, found.value, found.since) == ("loss", "NaN", 150)
    assert (found.last_finite, found.finite_step) == (5.6, 140)


def test_errors_end_a_job_with_their_lines() -> None:
    log = read_logs([DATA / "27-ends-in-errors.log"], LogContext(year=2026))
    last = ended_by(log.final)

    assert [(each.name, each.number, each.rank) for each in log.failures.values()] == [
        ("NRT_EXEC_HW_ERR_HBM_UE", 6, None),
        ("COLLECTIVE_TIMEOUT", 7, 7),
        ("CUDA_OUT_OF_MEMORY", 8, None),
    ]
    assert [each.detail for each in log.failures.values()] == ["", "ALLREDUCE 812", ""]
    assert last is not None
    assert last.name == "NRT_EXEC_HW_ERR_HBM_UE"
    assert log.n_other == 0
