"""Fixtures of trial tests: two runs with simple figures."""

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pytest

from fleet.models import Run, Trial
from fleet.trials.services import begin
from telemetry.steps import StepBatch
from telemetry.store import durable
from tests.helpers import NOON, NOON_S, steps

LATER = NOON + timedelta(days=1)


def made(name: str, instance: str, usd_per_node_hour: float, **other: object) -> Run:
    """Make a run of four nodes that began at noon."""
    fields: dict[str, object] = {
        "model": "vit-huge",
        "n_nodes": 4,
        "seq_len": 250,
        "global_batch": 4000,
        "price_basis": "on demand",
        "phase": Run.Phase.TRAINING,
        "phase_since": NOON,
        "started_at": NOON,
    }
    return Run.objects.create(
        name=name,
        instance_type=instance,
        usd_per_node_hour=usd_per_node_hour,
        **(fields | other),
    )


def train(
    run: str,
    step_s: Sequence[float],
    *,
    share: float | Sequence[float] = 0.25,
    began_s: float = 0.0,
    loss: Sequence[float] | None = None,
    tokens: float | Sequence[float] = 1e6,
) -> None:
    """Store consecutive steps of a run, the first one ``began_s`` seconds after noon."""
    lasting, share_ratio = np.array(step_s), np.asarray(share)
    reported = steps(run, n_steps=len(step_s), tokens=1e6)
    reported.phases["compute_s"][:] = (lasting * (1 - share_ratio))[:, None]
    reported.phases["transfer_s"][:] = (lasting * share_ratio)[:, None]
    ended_at_s = NOON_S + began_s + np.cumsum(lasting)
    durable.write_steps(
        StepBatch(
            run,
            reported.workers,
            reported.step,
            ended_at_s,
            reported.phases,
            np.broadcast_to(np.asarray(tokens, float), len(step_s)).copy(),
            None if loss is None else np.array(loss, float),
        )
    )


@pytest.fixture
def p5(db: None) -> Run:
    """Give the baseline: $90 per node and hour, which is $0.10 a second for all four."""
    return made("vit-p5", "p5.48xlarge", 90.0)


@pytest.fixture
def trn2(db: None) -> Run:
    """Give the candidate: $72 per node and hour, which is $0.08 a second."""
    return made("vit-trn2", "trn2.48xlarge", 72.0)


@pytest.fixture
def trial(p5: Run, trn2: Run) -> Trial:
    """Start a trial of the two."""
    return begin(
        "bakeoff",
        "Do we move?",
        baseline=p5.name,
        candidates=[trn2.name],
        team="vision",
        planned_steps=200,
        by="ada",
        now=NOON,
    )
