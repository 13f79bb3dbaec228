"""A trial of two arms with their steps, for pages of schedules."""

from fleet.models import Trial
from fleet.trials.services import begin
from tests.fleet.trials.conftest import made, train
from tests.helpers import NOON


def trial_of_two() -> Trial:
    """Start a trial: p5 for $0.10 a second against trn2 for $0.08."""
    for name, instance, usd in (
        ("vit-p5", "p5.48xlarge", 90.0),
        ("vit-trn2", "trn2.48xlarge", 72.0),
    ):
        made(name, instance, usd)
    return begin(
        "bakeoff",
        "Do we move?",
        baseline="vit-p5",
        candidates=["vit-trn2"],
        planned_steps=200,
        by="ada",
        now=NOON,
    )


def let_train() -> None:
    """Let p5 take 2 s a step, and trn2 1.25 s after half an hour of getting ready."""
    train("vit-p5", [2.0, 2.02] * 500)
    train("vit-trn2", [1.25, 1.26] * 500, began_s=1_800.0)
