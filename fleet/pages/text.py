"""Headlines of nodes and runs."""

from datetime import datetime
from typing import Any

from django.utils.safestring import SafeString

from fleet.formatting import render_line
from fleet.runs.summaries import NodeNow, RunNow
from telemetry.store.refused import RefusedReports

# Training jobs report at least every ten seconds.
QUIET_S = 60.0
OWN_PAUSE = "trnwatch's own workers have been stopped"


def node_headline(
    now: NodeNow,
    *,
    n_alerts: int,
    at: datetime,
    pause_s: float | None = None,
    refused: RefusedReports | None = None,
    of_run: RunNow | None = None,
) -> SafeString:
    """Write how a node and its run are; ``pause_s``: trnwatch itself has stood still so long."""
    seen_s = now.last_seen_s
    return render_line(
        "nodes/_headline.html#now",
        now=now,
        node=now.node,
        age_s=None if seen_s is None else at.timestamp() - seen_s,
        of_run=of_run,
        n_alerts=n_alerts,
        refused=refused,
        **_own_pause(pause_s),
    )


def _own_pause(pause_s: float | None) -> dict[str, Any]:
    return {"own_pause": OWN_PAUSE if pause_s is not None else "", "pause_s": pause_s}


def run_headline(
    now: RunNow,
    *,
    at: datetime,
    pause_s: float | None = None,
    refused: RefusedReports | None = None,
    saves_since_s: float | None = None,
    tokens_apart: tuple[float, float] | None = None,
) -> SafeString:
    """Write how a run is; ``pause_s`` is how long trnwatch itself has stood still.

    ``tokens_apart`` are the fewest and the most that workers report for one step.
    """
    run, finished_at = now.run, now.run.finished_at
    heard_s = (at - run.heard_at).total_seconds() if run.heard_at else 0.0
    is_late = now.is_stale and now.last_step_at_s is not None
    return render_line(
        "runs/_headline.html#now",
        now=now,
        run=run,
        phase_s=at - run.phase_since,
        quiet_s=heard_s if heard_s > QUIET_S else None,
        left_s=run.remaining_s(at),
        age_s=at.timestamp() - now.last_step_at_s if is_late and now.last_step_at_s else None,
        stood_s=at - now.stands_since if now.stands_since else None,
        over_s=at - finished_at if finished_at else None,
        lasted_s=finished_at - run.started_at if finished_at else None,
        refused=refused,
        saving_s=None if saves_since_s is None else at.timestamp() - saves_since_s,
        tokens_apart=tokens_apart,
        **_own_pause(pause_s),
    )
