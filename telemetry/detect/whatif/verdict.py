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
# Of many that are slow by chance, the worst few always explain some: several take more proof.
SEVERAL_RATIO = 0.7
# Forward and backward passes that follow each other so closely differ by their sequences. The
# paper asks for 0.9 of all workers' passes together, where slow stages help; this is of each.
CORRELATED_RATIO = 0.8
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
    if found.slowdown_ratio < SLOW_RATIO:
        is_exposed = steps.transfer_ratio.mean() > EXPOSED_RATIO
        return Verdict("communication" if is_exposed else "none")
    cause, share = _largest(found)
    if share < _needed(found, cause):
        return Verdict("none", share_ratio=share)
    if cause == "one_worker":
        return Verdict(cause, culprits=tuple(found.suspects), share_ratio=share)
    stage = int(found.stage_slowdown.argmax()) if cause == "stage_imbalance" else None
    return Verdict(cause, stage=stage, share_ratio=share)


def _needed(found: Explained, cause: str) -> float:
    """Return the share from which a cause is believed: blaming machines takes most."""
    if cause == "one_worker":
        return MOST_RATIO if len(found.suspects) == 1 else SEVERAL_RATIO
    return LARGEST_RATIO if found.slowdown_ratio >= STRAGGLING_RATIO else MOST_RATIO


def _largest(found: Explained) -> tuple[str, float]:
    """Return the cause that explains most; of those about equal, the one that blames least."""
    possible = {
        cause: min(1.0, found.shares.get(cause, 0.0))
        for cause in CAUSES
        if cause != "sequence_imbalance" or found.correlation >= CORRELATED_RATIO
    }
    most = max(possible.values())
    return next(
        (cause, share) for cause, share in possible.items() if share >= most - CLEARLY_RATIO
    )
