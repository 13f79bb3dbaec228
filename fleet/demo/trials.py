"""The demo's trials: a 13B model on Trainium2 or p5, and the vision team's bake-off."""

from dataclasses import dataclass
from datetime import datetime

from fleet.models import Run, Trial
from fleet.trials.keeping import begin
from telemetry.compare.verdicts import DEFAULT_STEPS


@dataclass(frozen=True, slots=True)
class DemoTrial:
    """One question of a team, and the two runs that answer it."""

    name: str
    question: str
    team: str
    baseline: str
    candidate: str
    planned_tokens: int | None = None


TRIALS = (
    DemoTrial(
        name="vit-bakeoff",
        question="Does the ViT move to Trainium2: dollars, pace, all-reduce-heavy steps?",
        team="retail vision",
        baseline="vit-bakeoff-p5",
        candidate="vit-bakeoff-trn2",
    ),
    # Twenty tokens per parameter, as J. Hoffmann et al., arXiv:2203.15556, would spend on it.
    DemoTrial(
        name="trn2-or-p5",
        question="Does the 13B model train on Trainium2: dollars per epoch, compile, throughput?",
        team="LLM",
        baseline="trial-13b-p5",
        candidate="trial-13b-trn2",
        planned_tokens=260_000_000_000,
    ),
)


def ensure_trials(*, now: datetime) -> list[Trial]:
    """Begin the trials whose runs are there, unless they have begun; returns those that did."""
    arms = {name for each in TRIALS for name in (each.baseline, each.candidate)}
    there = Run.objects.simulated().filter(name__in=arms).values_list("name", flat=True)
    known = Trial.objects.filter(name__in=[each.name for each in TRIALS])
    begun, runs = set(known.values_list("name", flat=True)), set(there)
    return [
        begin(
            each.name,
            each.question,
            baseline=each.baseline,
            candidates=[each.candidate],
            team=each.team,
            planned_steps=DEFAULT_STEPS,
            planned_tokens=each.planned_tokens,
            by="the demo",
            now=now,
        )
        for each in TRIALS
        if each.name not in begun and {each.baseline, each.candidate} <= runs
    ]
