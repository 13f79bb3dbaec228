"""The verdict on a recorded trace: which cause, and whether a machine is to blame."""

from dataclasses import dataclass

from telemetry.detect.whatif.explain import Explained, Worker
from telemetry.steps import StepBatch

# The paper calls a job straggling from here on.
STRAGGLING_RATIO = 1.10
# Below this, steps differ by noise; from here to STRAGGLING, a cause must explain most of it.
SLOW_RATIO = 1.05
MOST_RATIO = 0.5
LARGEST_RATIO = 0.3
# Forward and backward passes that follow each other so closely differ by their sequences.
CORRELATED_RATIO = 0.9
# A machine is only blamed where it explains clearly more than the work it was given does.
CLEARLY_RATIO = 0.1
EXPOSED_RATIO = 0.25

# Of two causes that explain about as much, the earlier is believed: work before machines.
CAUSES = ("sequence_imbalance", "stage_imbalance", "communication", "one_worker")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a recorded run was slow.

    Parameters
    ----------
    cause : one of CAUSES, or ``none``
    culprits : the workers to blame, the worst first; empty where no machine is
    stage : the stage that is too heavy, where stages are uneven
    share_ratio : share of the slowdown that the cause explains; None where that says nothing
    """

    cause: str
    culprits: tuple[Worker, ...] = ()
    stage: int | None = None
    share_ratio: float | None = None


def verdict(found: Explained, steps: StepBatch) -> Verdict:
    """Name the cause that explains most, and a machine only where one is to blame."""
    slowdown = found.slowdown_ratio
    if slowdown < SLOW_RATIO:
        is_exposed = steps.transfer_ratio.mean() > EXPOSED_RATIO
        return Verdict("communication" if is_exposed else "none")
    cause, share = _largest(found)
    needed = LARGEST_RATIO if slowdown >= STRAGGLING_RATIO else MOST_RATIO
    if share < (MOST_RATIO if cause == "one_worker" else needed):
        return Verdict("none", share_ratio=share)
    if cause == "one_worker":
        return Verdict(cause, culprits=tuple(found.suspects), share_ratio=share)
    stage = int(found.stage_slowdown.argmax()) if cause == "stage_imbalance" else None
    return Verdict(cause, stage=stage, share_ratio=share)


def _largest(found: Explained) -> tuple[str, float]:
    """Return the cause that explains most; of those about equal, the one that blames least."""
    possible = {
        cause: found.shares.get(cause, 0.0)
        for cause in CAUSES
        if cause != "sequence_imbalance" or found.correlation >= CORRELATED_RATIO
    }
    most = max(possible.values())
    return next(
        (cause, share) for cause, share in possible.items() if share >= most - CLEARLY_RATIO
    )
