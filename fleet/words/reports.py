"""How a run reports: who, when last, and what was lost on the way."""

from datetime import datetime

from fleet.intake.steps.state import state_of
from fleet.models import Run
from fleet.templatetags.units import duration
from fleet.words import wording
from telemetry.store.hot import HotStore


def reports_of(hot: HotStore, run: Run, *, now: datetime) -> list[tuple[str, str]]:
    """Return lines about a run's own reports; none where the job reports nothing."""
    state = state_of(hot, run.name) if run.is_reported else None
    if state is None:
        return []
    who = wording.counted(state.n_workers, "worker")
    heard = f"{who}, last heard {duration(max(0.0, now.timestamp() - state.heard_s))} ago"
    lines = [("Reports", heard)]
    n_missing = state.n_workers - len(state.members)
    if n_missing:
        lines.append(("Missing", f"{wording.counted(n_missing, 'worker')} never reported"))
    if state.n_dropped:
        lines.append(("Lost", f"{wording.counted(state.n_dropped, 'report')} on the way here"))
    if run.step_shift:
        lines.append(("Steps", f"{run.step_shift:,} ahead of the job's own count: trained again"))
    reasons = sorted({member.reason for member in state.members.values() if member.reason})
    return lines + [("Failed", reason) for reason in reasons]
