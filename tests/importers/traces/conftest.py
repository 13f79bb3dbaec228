"""Jobs in trouble, each of one kind, and one in none."""

import numpy as np
import pytest

from importers.traces.trace import Trace
from importers.traces.what_if import Analysis, analyse_trace
from tests.importers.made_traces import Factor, Job

LENGTHS = np.random.default_rng(5).lognormal(0.0, 0.5, (16, 16, 64))
PAUSES = np.random.default_rng(9).random((16, 16, 16, 64)) < 0.03


def one_slow(worker: tuple[int, int], by: float = 2.0) -> Factor:
    return lambda _step, dp, stage, _micro: by if (dp, stage) == worker else 1.0


def heavy_stage(heavy: int, by: float = 1.5) -> Factor:
    return lambda _step, _dp, stage, _micro: by if stage == heavy else 1.0


def uneven_sequences(step: int, dp: int, _stage: int, micro: int) -> float:
    return float(LENGTHS[step, dp, micro])


def now_and_then(step: int, dp: int, stage: int, micro: int) -> float:
    """Pauses of single workers, as garbage collection causes them."""
    return 6.0 if PAUSES[step, dp, stage, micro] else 1.0


def congested(step: int, _dp: int, stage: int, _micro: int) -> float:
    return 40.0 if (step + stage) % 3 == 0 else 1.0


def analysed(job: Job) -> Analysis:
    return analyse_trace(job.trace(), run="recorded")


@pytest.fixture(scope="session")
def limping() -> Trace:
    """Replica 1's stage 2 takes twice as long; all take a little more or less."""
    return Job(work=one_slow((1, 2)), noise=0.02).trace()
