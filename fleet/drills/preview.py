"""What a fault would do to a run, before anybody puts it there: the same physics, alone."""

from functools import lru_cache

import msgspec

from fleet.drills.truth import Truth, truth_of
from telemetry.simulate.plan import Fault, Plan, RunSpec

# The run has warmed up by then; its own checkpoints are not due yet.
BEGINS_S = 60.0


@lru_cache(maxsize=2048)
def previewed(spec: RunSpec, fault: Fault) -> Truth:
    """Play a fault in a run that has just begun to train, and return what it costs."""
    calm = msgspec.structs.replace(
        spec, compile_s=0.0, checkpoint_every_s=None, evaluate_every_s=None, max_steps=None
    )
    placed = msgspec.structs.replace(fault, start_s=BEGINS_S)
    return truth_of(Plan(run=calm, seed=0, epoch_s=0, faults=(placed,)))
