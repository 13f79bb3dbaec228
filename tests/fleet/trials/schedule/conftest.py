"""Fixtures of schedule tests: a trial one day after its arms trained."""

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pytest

from fleet.models import Alert, Run, Trial
from telemetry.steps import StepBatch
from telemetry.store import durable
from tests.fleet.trials.conftest import made
from tests.helpers import NOON, NOON_S, steps

LATER = NOON + timedelta(days=1)


def train(
    run: str,
    step_s: Sequence[float],
    *,
    checkpoint_s: float = 0.0,
    every: int = 0,
    began_s: float = 0.0,
) -> None:
    """Keep steps of a million tokens; every so many save for so long on top of the step."""
    reported = steps(run, n_steps=len(step_s), tokens=1e6)
    reported.phases["compute_s"][:] = np.array(step_s)[:, None]
    if every:
        reported.phases["checkpoint_s"][every - 1 :: every] = checkpoint_s
    lasting = sum(values.mean(axis=1) for values in reported.phases.values())
    ended_at_s = NOON_S + began_s + np.cumsum(lasting)
    durable.write_steps(
        StepBatch(
            run, reported.workers, reported.step, ended_at_s, reported.phases, reported.tokens
        )
    )


def failed(run: Run, *, after: timedelta, rule: str = "hang", **other: object) -> Alert:
    """Fire an alert this long after the start of the run."""
    at = run.started_at + after
    fields: dict[str, object] = {
        "rule": rule,
        "severity": Alert.Severity.PAGE,
        "subject": f"run:{run.name}",
        "run": run,
        "score": 2.0,
        "onset_at": at,
        "fired_at": at,
        "last_seen_at": at,
        "resolved_at": at + timedelta(minutes=5),
    }
    return Alert.objects.create(**fields | other)


@pytest.fixture
def trn2(db: None) -> Run:
    """Give the candidate: $216 an hour for all four nodes."""
    return made("vit-trn2", "trn2.48xlarge", 54.0)


@pytest.fixture
def trained(trial: Trial) -> Trial:
    """Let both arms train: p5 at once, trn2 after half an hour of setup."""
    rng = np.random.default_rng(6)
    train("vit-p5", list(2.0 * (1 + 0.01 * rng.standard_normal(2_000))))
    train("vit-trn2", list(2.2 * (1 + 0.01 * rng.standard_normal(2_000))), began_s=1_800.0)
    return trial
