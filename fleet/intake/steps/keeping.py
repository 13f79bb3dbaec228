"""Steps into the store: the hot tier as long as it takes them, the durable one beyond."""

import numpy as np

from telemetry.steps import StepBatch
from telemetry.store import durable
from telemetry.store.hot import HotStore
from telemetry.store.step_records import steps_where

# What ended longer ago than this the regular roll-up may have passed already.
ROLLED_UP_S = 240.0
# The hot tier's own clock is the data's: keep clear of its edge.
EDGE_S = 60.0


def keep_steps(
    hot: HotStore | None, batch: StepBatch, *, now_s: float, amends: bool = False
) -> int:
    """Keep a run's steps, each once, and return how many of them were new to the hot tier.

    With ``amends`` steps that the hot tier holds are told anew: some of their workers were late.

    Without a hot store (a finished log, say) they go straight to the durable tier, as do those
    that are too old for the hot one.
    """
    age_s = now_s - batch.ended_at_s
    n_new = 0
    if hot is not None:
        is_recent = age_s < hot.keep_s - EDGE_S
        n_new = hot.append_steps(steps_where(batch, is_recent), amends=amends)
        batch = steps_where(batch, age_s > ROLLED_UP_S)
    if len(batch):
        durable.write_steps(steps_where(batch, np.isfinite(batch.ended_at_s)))
    return n_new
