"""When a run compiled, as far as anybody says so: events, alerts, and the simulator's plan."""

import numpy as np
from django.db.models import Q

from fleet.models import Alert, CompileEvent, Run
from telemetry import catalog
from telemetry.steps import StepBatch

RECOMPILED = Q(rule="recompile") | Q(cause="recompile")


def compiled_spans(
    run: Run, steps: StepBatch, *, since_s: float, end_s: float, is_begun: bool
) -> list[tuple[float, float]]:
    """Return when a run compiled between two moments: (from, to) in Unix seconds.

    ``steps`` are those since then; ``is_begun`` whether there were any before.
    """
    spans: list[tuple[float, float]] = []
    # Pages ask along with the run whether it has any: most have none.
    if getattr(run, "has_compiles", True):
        timed = CompileEvent.objects.filter(run=run, at__isnull=False, seconds__isnull=False)
        events = timed.values_list("at", "seconds")
        spans += [(at.timestamp(), at.timestamp() + s) for at, s in events if at and s]
    if getattr(run, "has_recompiled", True):
        alerts = Alert.objects.filter(RECOMPILED, run=run)
        spans += [
            (onset.timestamp(), over.timestamp() if over else end_s)
            for onset, over in alerts.values_list("onset_at", "resolved_at")
        ]
    began_s = run.started_at.timestamp()
    if run.is_simulated:
        spans.append((began_s, began_s + _planned_s(run)))
    elif run.is_reported and not is_begun and not spans:
        # A job that does not say otherwise compiles until its first step.
        first = (
            float(steps.ended_at_s[0] - np.nan_to_num(steps.step_s[0])) if len(steps) else end_s
        )
        spans.append((began_s, first))
    return [span for span in spans if span[1] > since_s]


def _planned_s(run: Run) -> float:
    """Return how long the simulator compiles before a run's first step."""
    planned = run.plan.get("compile_s")
    known = catalog.models().get(run.model)
    return float(planned if planned is not None else known.default_compile_s if known else 0.0)
