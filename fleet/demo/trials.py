"""The demo's trial: the retail-vision team's bake-off of Trainium2 against p5."""

from datetime import datetime

from fleet.models import Run, Trial
from fleet.trials.keeping import begin
from telemetry.compare.verdicts import DEFAULT_STEPS

NAME = "vit-bakeoff"
BASELINE, CANDIDATE = "vit-bakeoff-p5", "vit-bakeoff-trn2"


def ensure_trial(*, now: datetime) -> Trial | None:
    """Begin the trial if its runs are there and it is not; returns it if this call did."""
    arms = Run.objects.simulated().filter(name__in=(BASELINE, CANDIDATE))
    if arms.count() != 2 or Trial.objects.filter(name=NAME).exists():
        return None
    return begin(
        NAME,
        "Does the ViT move to Trainium2: dollars, pace, all-reduce-heavy steps?",
        baseline=BASELINE,
        candidates=[CANDIDATE],
        team="retail vision",
        planned_steps=DEFAULT_STEPS,
        by="the demo",
        now=now,
    )
