"""The phase of a reported run, its counts and its end, by what its workers report."""

import math
from datetime import UTC, datetime

from fleet.ingest.assembly import OVER, TOTALS, overdue, store_assembled
from fleet.models import Node, Run
from fleet.runs.annotations import annotate_phase
from fleet.runs.state import (
    RunState,
    members_of,
    recently_reporting_runs,
    sessions_key,
    state_of,
    watching_s,
)
from telemetry.store.hot import HotStore

UPDATED_FIELDS = (
    "session",
    "step_shift",
    "starts",
    "n_workers",
    "heard_at",
    "phase",
    "phase_progress_ratio",
    "phase_since",
    "end_reason",
    "finished_at",
    "paid_until",
    "last_step",
    "n_tokens",
)
# Counts change with every step; pages read them from the steps, so the row may lag.
COUNT_EVERY_S = 10
# A silent job counts as failed after this time; a compiling one may be silent for longer.
LOST_S = 30 * 60.0
LOST_COMPILING_S = 6 * 3600.0
# After the first worker has ended, the others have this long to report their end.
END_GRACE_S = 60.0
LOOK_BACK_S = LOST_COMPILING_S + 3600.0
BASES = "steps-in:tokens"
# Redis that knows reports only up to this long before the row's newest is an older copy.
OLDER_S = 60.0


def update_reported_runs(hot: HotStore, *, now: datetime, watcher: int = 0, of: int = 1) -> None:
    """Assemble overdue steps and update the rows of a watcher's reported runs."""
    now_s = now.timestamp()
    names = recently_reporting_runs(hot, since_s=now_s - LOOK_BACK_S)
    if not names:
        return
    reported = list(Run.objects.filter(name__in=names).exclude(session=""))
    runs = [run for run in reported if run.pk % of == watcher]
    others = {run.name for run in reported} - {run.name for run in runs}
    waited_for = [step for step in overdue(hot, now_s=now_s) if step[0] not in others]
    if waited_for:
        store_assembled(hot, waited_for, now_s=now_s, rows={run.name: run for run in runs})
    is_count_due = int(now_s) % COUNT_EVERY_S == 0
    changed = []
    listened_s = watching_s(hot, now_s=now_s)
    for run in runs:
        state = state_of(hot, run.name)
        if state is None:
            continue
        was, since, counted = run.phase, run.phase_since, (run.last_step, run.n_tokens)
        update_run(run, state, now=now, listened_s=math.inf if listened_s is None else listened_s)
        # The first start of a job is not annotated; a restart is.
        if run.phase != was and (counted[0] or run.phase in OVER):
            # Who was silent and goes on has trained since long before.
            at = run.phase_since if run.phase_since >= since else run.heard_at
            annotate_phase(run, was=was, at=at or now)
        is_other = (run.phase, run.phase_since) != (was, since)
        if is_other and run.phase == Run.Phase.TRAINING:
            release_nodes(hot, run, state)
        if is_other or is_count_due:
            total, stored = hot.execute_all(
                [("HGET", TOTALS, run.name), ("HGET", BASES, run.name)]
            )
            count, base = float(total or 0.0), float(stored or 0.0)
            if stored is None or count + base < run.n_tokens:
                # Redis was emptied, or is older than the row: what it counts comes after that.
                base = run.n_tokens - (0.0 if stored is None else count)
                hot.execute("HSET", BASES, run.name, base)
            run.n_tokens = int(count + base)
            is_active = run.finished_at is None
            if is_other or is_active or counted != (run.last_step, run.n_tokens):
                changed.append(run)
    if changed:
        Run.objects.bulk_update(changed, UPDATED_FIELDS)


def release_nodes(hot: HotStore, run: Run, state: RunState) -> None:
    """Let go of the nodes of the start before that have no part in this one."""
    here = {member.node for member in state.members.values()}
    for session in hot.execute("ZREVRANGE", sessions_key(run.name), 1, 1):
        before = {each.node for each in members_of(hot, run.name, session.decode()).values()}
        Node.objects.filter(run=run, name__in=before - here).update(run=None)


def update_run(run: Run, state: RunState, *, now: datetime, listened_s: float = math.inf) -> None:
    """Update a run from its workers' state; counts never decrease.

    Silence counts for as long as we have ``listened_s``. Who reports after it has gone on.
    """
    if run.heard_at is not None and state.heard_s < run.heard_at.timestamp() - OLDER_S:
        # Redis is an older copy, and knows nothing of the job since.
        state = RunState(run.session, {}, run.heard_at.timestamp())
    heard_at = datetime.fromtimestamp(state.heard_s, UTC)
    run.heard_at = heard_at
    # If it falls silent, it is paid up to now.
    run.paid_until = max(run.paid_until or heard_at, heard_at)
    # A start may have fewer workers than the one before.
    is_other = state.session != run.session and any(m.n_workers for m in state.members.values())
    run.n_workers = max(0 if is_other else run.n_workers, state.n_workers)
    if state.shift is not None and state.shift != run.step_shift:
        # A start whose step numbers have another offset than those of the previous start.
        before = {"first_step": 0, "shift": run.step_shift, "began_s": run.started_at.timestamp()}
        first = run.last_step + 1 if state.first_step is None else state.first_step
        began_s = state.heard_s if state.began_s is None else state.began_s
        start = {"first_step": first, "shift": state.shift, "began_s": began_s}
        run.starts = [*(run.starts or [before]), start]
        run.step_shift = state.shift
    run.last_step = max(run.last_step, state.last_step)
    if state.session != run.session:
        run.session, run.finished_at = state.session, None
        _enter(run, Run.Phase.COMPILING, heard_at)
    if run.finished_at is not None:
        if heard_at <= run.finished_at or _end_of(run, state, 0.0) is not None:
            return
        run.finished_at = None
        _enter(run, Run.Phase.COMPILING, heard_at)
    if run.phase not in (Run.Phase.TRAINING, *OVER) and state.shift is not None:
        began_s = state.began_s or state.heard_s
        _enter(run, Run.Phase.TRAINING, datetime.fromtimestamp(began_s, UTC))
    end = _end_of(run, state, min(now.timestamp() - state.heard_s, listened_s))
    if end is not None:
        _enter(run, end, heard_at)
        run.finished_at = heard_at
        if end == Run.Phase.FAILED:
            run.end_reason = _reason_of(state)[: Run.MAX_REASON_CHARS]


def _enter(run: Run, phase: Run.Phase, at: datetime) -> None:
    run.phase, run.phase_since, run.end_reason = phase, max(at, run.started_at), ""
    run.phase_progress_ratio = 0.0


def _reason_of(state: RunState) -> str:
    """Return why a run failed: by the first worker that said so, else by its silence."""
    failed = [member for member in state.members.values() if member.ended == 2]
    first = min(failed, key=lambda member: member.heard_s, default=None)
    if first is None:
        return "its reports stopped"
    return f"{first.reason or 'no reason given'} (rank {first.rank} on {first.node})"


def _end_of(run: Run, state: RunState, quiet_s: float) -> Run.Phase | None:
    """Return the final phase of a run, None while it is running.

    One failed worker fails the run. A silent job fails after ``LOST_S``.
    """
    ends = [member.ended for member in state.members.values()]
    if any(end == 2 for end in ends):
        return Run.Phase.FAILED
    n_done = sum(end == 1 for end in ends)
    if n_done and (n_done >= state.n_workers or quiet_s > END_GRACE_S):
        return Run.Phase.FINISHED
    lost_s = LOST_COMPILING_S if run.phase == Run.Phase.COMPILING else LOST_S
    return Run.Phase.FAILED if quiet_s > lost_s else None
