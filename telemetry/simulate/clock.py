"""The run's clock: the little that is carried from one tick to the next."""

import msgspec
import numpy as np

from telemetry.blocks import FloatArray
from telemetry.simulate.plan import Plan

# Every duration is a multiple of this, about a microsecond. Unix seconds on such a grid add up
# in doubles without rounding, so it does not matter where an interval is cut.
GRAIN_S = 2.0**-20

# Life before training: the nodes boot, the graphs compile, the weights are loaded.
BOOT_S = 5.0
WARM_UP_S = 15.0


class RunClock(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands at the end of a tick.

    ``tick`` is the last Unix second simulated. ``step`` counts the steps done, and
    ``step_started_s`` is when the one under way began. A phase that will end says when:
    ``phase_ends_s``, which training does not. ``n_tokens`` counts tokens processed, those of
    ``n_steps_lost`` steps, gone with a crash, included. Events that began by ``due_until_s``
    and ``gaps_until_s`` have had their turn.
    """

    tick: int
    phase: str = "pending"
    phase_since_s: float
    phase_ends_s: float | None = None
    phase_progress_ratio: float = 0.0
    step: int = 0
    step_started_s: float
    n_tokens: int = 0
    checkpoint_step: int = 0
    n_restarts: int = 0
    n_steps_lost: int = 0
    due_until_s: float
    gaps_until_s: float


def grain(seconds: float) -> float:
    """Put seconds on the grid that adds up without rounding."""
    return round(seconds / GRAIN_S) * GRAIN_S


def grains(seconds: FloatArray) -> FloatArray:
    """Put an array of seconds (...) on the grid that adds up without rounding."""
    return np.rint(np.asarray(seconds, np.float64) * (1 / GRAIN_S)) * GRAIN_S


def start_clock(plan: Plan) -> RunClock:
    """Return the clock of a run that is about to begin, just before its epoch."""
    start_s = plan.epoch_s - 1.0
    return RunClock(
        tick=plan.epoch_s - 1,
        phase_since_s=start_s,
        phase_ends_s=start_s + BOOT_S,
        step_started_s=start_s,
        due_until_s=start_s,
        gaps_until_s=start_s,
    )


def resume(clock: RunClock, tick: int) -> RunClock:
    """Return the clock after an outage of the simulator: time moved on, the run did not.

    Steps and tokens stay; the step or phase that was under way is as far along as it was.
    """
    gap_s = float(tick - clock.tick)
    ends_s = None if clock.phase_ends_s is None else clock.phase_ends_s + gap_s
    return msgspec.structs.replace(
        clock,
        tick=tick,
        phase_since_s=clock.phase_since_s + (gap_s if ends_s is not None else 0),
        phase_ends_s=ends_s,
        step_started_s=clock.step_started_s + gap_s,
        due_until_s=clock.due_until_s + gap_s,
        gaps_until_s=clock.gaps_until_s + gap_s,
    )
