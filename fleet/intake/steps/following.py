"""Runs that report, as they live: phase, counts and end, followed from what their workers say."""

from datetime import UTC, datetime

from fleet.annotating import annotate_phase
from fleet.intake.steps.pieces import hand_on, overdue
from fleet.intake.steps.state import State, heard_runs, state_of
from fleet.models import Run
from telemetry.store.hot import HotStore

FOLLOWED = (
    "session",
    "step_shift",
    "starts",
    "n_workers",
    "heard_at",
    "phase",
    "phase_progress_ratio",
    "phase_since",
    "finished_at",
    "paid_until",
    "last_step",
    "n_tokens",
)
# Counts move with every step; a page reads them from the steps, so the row may lag a little.
COUNT_EVERY_S = 10
# A job of which nothing is heard for so long is over; one that compiles may be quiet for longer.
LOST_S = 30 * 60.0
LOST_COMPILING_S = 6 * 3600.0
# Once one worker is done, the others have this long to say so too.
LAST_WORDS_S = 60.0
LOOK_BACK_S = LOST_COMPILING_S + 3600.0
BASES, TOTALS = "steps-in:tokens", "totals:tokens"
OVER = (Run.Phase.FINISHED, Run.Phase.FAILED)


def follow_reported(hot: HotStore, *, now: datetime) -> None:
    """Hand on steps that wait for nobody any more, and write down how their runs are."""
    now_s = now.timestamp()
    names = heard_runs(hot, since_s=now_s - LOOK_BACK_S)
    if not names:
        return
    runs = list(Run.objects.filter(name__in=names).exclude(session=""))
    waited_for = overdue(hot, now_s=now_s)
    if waited_for:
        hand_on(hot, waited_for, now_s=now_s, rows={run.name: run for run in runs})
    is_count_due = int(now_s) % COUNT_EVERY_S == 0
    changed = []
    for run in runs:
        state = state_of(hot, run.name)
        if state is None:
            continue
        was, counted = run.phase, (run.last_step, run.n_tokens)
        follow(run, state, now=now)
        # That a job begins is no news; that it does so again is.
        if run.phase != was and (counted[0] or run.phase in OVER):
            annotate_phase(run, was=was, at=run.phase_since)
        if run.phase != was or is_count_due:
            _count(hot, run)
            is_active = run.finished_at is None
            if run.phase != was or is_active or counted != (run.last_step, run.n_tokens):
                changed.append(run)
    if changed:
        Run.objects.bulk_update(changed, FOLLOWED)


def follow(run: Run, state: State, *, now: datetime) -> None:
    """Make a run say what its workers say; counts never go back."""
    heard_at = datetime.fromtimestamp(state.heard_s, UTC)
    run.heard_at = heard_at
    # Should it fall silent, it is over as of now: nothing is told beyond that.
    run.paid_until = max(run.paid_until or heard_at, heard_at)
    run.n_workers = max(run.n_workers, state.n_workers)
    _begin_anew(run, state)
    run.last_step = max(run.last_step, state.last_step)
    if state.session != run.session:
        run.session, run.finished_at = state.session, None
        _enter(run, Run.Phase.COMPILING, heard_at)
    if run.finished_at is not None:
        return
    if run.phase not in (Run.Phase.TRAINING, *OVER) and state.shift is not None:
        began_s = state.began_s or state.heard_s
        _enter(run, Run.Phase.TRAINING, datetime.fromtimestamp(began_s, UTC))
    end = _end_of(run, state, now.timestamp())
    if end is not None:
        _enter(run, end, heard_at)
        run.finished_at = heard_at


def _begin_anew(run: Run, state: State) -> None:
    """Note where a start's own count is another than that of the start before."""
    if state.shift is None or state.shift == run.step_shift:
        return
    before = {"first_step": 0, "shift": run.step_shift, "began_s": run.started_at.timestamp()}
    first = run.last_step + 1 if state.first_step is None else state.first_step
    began_s = state.heard_s if state.began_s is None else state.began_s
    start = {"first_step": first, "shift": state.shift, "began_s": began_s}
    run.starts = [*(run.starts or [before]), start]
    run.step_shift = state.shift


def _enter(run: Run, phase: Run.Phase, at: datetime) -> None:
    run.phase, run.phase_since = phase, max(at, run.started_at)
    run.phase_progress_ratio = 0.0


def _end_of(run: Run, state: State, now_s: float) -> Run.Phase | None:
    """Return how a run has ended; None while it goes on.

    One worker that failed takes all down. A job that falls silent is given up in the end.
    """
    ends = [member.ended for member in state.members.values()]
    quiet_s = now_s - state.heard_s
    if any(end == 2 for end in ends):
        return Run.Phase.FAILED
    n_done = sum(end == 1 for end in ends)
    if n_done and (n_done >= state.n_workers or quiet_s > LAST_WORDS_S):
        return Run.Phase.FINISHED
    lost_s = LOST_COMPILING_S if run.phase == Run.Phase.COMPILING else LOST_S
    return Run.Phase.FAILED if quiet_s > lost_s else None


def _count(hot: HotStore, run: Run) -> None:
    """Count a run's tokens on from where its row stands, should Redis have begun anew."""
    total, held = hot.ask_all([("HGET", TOTALS, run.name), ("HGET", BASES, run.name)])
    # Redis counts from nought since it began: what the row has then came before.
    base = float(run.n_tokens if held is None else held)
    if held is None:
        hot.ask("HSET", BASES, run.name, base)
    run.n_tokens = max(run.n_tokens, int(float(total or 0.0) + base))
