"""The cost of a run by use of time: summed once a minute, and extended to now where shown."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
from django.conf import settings
from django.db.models import Q

from fleet.models import Alert, CompileEvent, Run
from fleet.runs.summaries import RunNow
from telemetry import catalog
from telemetry.blocks import FloatArray
from telemetry.statistics.time_use import (
    AGAIN,
    SETTLED,
    SORTS,
    WARM,
    TimeSlice,
    TimeUse,
    merged,
    spent,
)
from telemetry.statistics.verdicts import settled_from
from telemetry.steps import StepBatch
from telemetry.store.history import run_steps
from telemetry.store.reading import Source
from telemetry.units import DAY_S, TOKENS_PER_MTOK

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
        planned_s, known = run.plan.get("compile_s"), catalog.models().get(run.model)
        if planned_s is None:
            planned_s = known.default_compile_s if known else 0.0
        spans.append((began_s, began_s + float(planned_s)))
    elif run.is_reported and not is_begun and not spans:
        # By default a job is assumed to compile until its first step.
        first = (
            float(steps.ended_at_s[0] - np.nan_to_num(steps.step_s[0])) if len(steps) else end_s
        )
        spans.append((began_s, first))
    return [span for span in spans if span[1] > since_s]


TINY_S = 1e-3
# Reports may be this late. Sums are never changed afterwards.
LATE_S = 60.0
# The warm-up is looked for in the first steps; until they are there, nothing is settled.
HEAD_STEPS, LEAST_HEAD, HEAD_S = 200, 20, 900.0
MOST_RUNS = 20
SETTLED_AFTER = timedelta(minutes=5)
# Uses of time that advance the training: the settled cost per token counts only these.
AT_WORK = ("training", "communication", "input", "saving")


@dataclass(frozen=True, slots=True)
class Account:
    """What a run's time went into up to a moment: seconds and dollars by sort.

    ``usd`` is None without a price; its values add up to ``total_usd``. ``settled_tokens`` are
    those of steps after the warm-up that were not lost.
    """

    until: datetime
    seconds: Mapping[str, float]
    usd: Mapping[str, float] | None
    total_usd: float
    settled_tokens: float
    repeated_tokens: float
    warm_tokens: float

    @property
    def settled_tokens_per_s(self) -> float | None:
        """Tokens per second since the warm-up; None where they are not reported."""
        at_work_s = sum(self.seconds[sort] for sort in AT_WORK)
        return self.settled_tokens / at_work_s if at_work_s and self.settled_tokens else None

    @property
    def usd_per_mtok(self) -> float | None:
        """Dollars per million tokens of a settled run: no compiling, no warm-up, no idling."""
        if self.usd is None or self.settled_tokens <= 0:
            return None
        return sum(self.usd[sort] for sort in AT_WORK) / self.settled_tokens * 1e6


@dataclass(frozen=True, slots=True)
class SpendingState:
    """The running sums, by rate in SORTS and by kind of tokens, and the time they cover."""

    until_s: float
    shift: int
    seen_step: int
    last_step: int | None = None
    warm_step: int | None = None
    again: tuple[tuple[float, float], ...] = ()
    seconds: Mapping[str, list[float]] | None = None
    tokens: tuple[float, ...] = (0.0, 0.0, 0.0)
    # What drift is measured against where no estimate is: fleet/costs/drift.py.
    own: Mapping[str, float] | None = None

    def with_spent(self, more: TimeUse, edges_s: FloatArray) -> dict[str, list[float]]:
        """Return the seconds by rate, with those of ``more`` added."""
        seconds = {key: list(each) for key, each in (self.seconds or {}).items()}
        for edge, row in zip(edges_s, more.seconds, strict=True):
            if row.any():
                key = repr(float(edge))
                seconds[key] = list(np.add(seconds.get(key, np.zeros(len(SORTS))), row))
        return seconds


def state_of(run: Run) -> SpendingState:
    """Read the stored state of a run's account, or start one."""
    kept = run.spending or {}
    if not kept:
        return SpendingState(run.started_at.timestamp(), run.step_shift, run.last_step)
    again = tuple((low, high) for low, high in kept["again"])
    state = SpendingState(**kept | {"again": again, "tokens": tuple(kept["tokens"])})
    # A restart since the last look trains these steps again.
    lost, again = run.step_shift - state.shift, state.again
    if lost > 0:
        begin = max([state.seen_step, *(high for _, high in again)])
        again = (*again, (float(begin), float(begin + lost)))
    return replace(
        state,
        shift=max(state.shift, run.step_shift),
        seen_step=max(state.seen_step, run.last_step),
        again=again,
    )


def account(source: Source, run: Run, *, now: datetime) -> Account:
    """Return what a run's time and dollars went into up to now.

    Every second has one sort, at the rate that held, so that the parts are the whole.
    """
    state, until = state_of(run), run.paid_by(now)
    steps, stretch = _stretch(source, run, state, until.timestamp(), now=now)
    edges_s = run.rates.from_s
    more = spent(steps, stretch, edges_s=edges_s)
    return _build_account(run, state.with_spent(more, edges_s), more.tokens + state.tokens, until)


def stored_account(run: Run) -> Account | None:
    """Return a run's account as last added up, up to its last step then; None before that."""
    state = state_of(run)
    if not state.seconds:
        return None
    until = datetime.fromtimestamp(state.until_s, UTC)
    return _build_account(run, state.seconds, np.array(state.tokens), until)


def _build_account(
    run: Run, seconds: Mapping[str, list[float]], tokens: FloatArray, until: datetime
) -> Account:
    by_rate = np.array(list(seconds.values())).reshape(-1, len(SORTS))
    rates = np.array([run.rates.rate_at(float(edge)) for edge in seconds])
    usd = (by_rate * rates[:, None]).sum(axis=0)
    total_usd = run.rates.usd(run.started_at.timestamp(), until.timestamp())
    return Account(
        until=until,
        seconds=dict(zip(SORTS, by_rate.sum(axis=0).tolist(), strict=True)),
        usd=dict(zip(SORTS, usd.tolist(), strict=True)) if not math.isnan(total_usd) else None,
        total_usd=total_usd,
        settled_tokens=float(tokens[SETTLED]),
        repeated_tokens=float(tokens[AGAIN]),
        warm_tokens=float(tokens[WARM]),
    )


def _stretch(
    source: Source, run: Run, state: SpendingState, end_s: float, *, now: datetime
) -> tuple[StepBatch, TimeSlice]:
    """Read a run's steps since the account was last updated, with the facts around them."""
    start_s = min(state.until_s, end_s)
    steps = run_steps(source, run.name, start_s=start_s + TINY_S, end_s=end_s + TINY_S)
    warm_step = state.warm_step
    if warm_step is None:
        # The first step after the warm-up, from the first steps.
        head = steps[:HEAD_STEPS] if state.last_step is None else steps[:0]
        warm_step = int(head.step[settled_from(head.step_s)]) if len(head) else 0
    forgotten_s = now.timestamp() - settings.DURABLE_KEEP_DAYS * DAY_S
    return steps, TimeSlice(
        start_s=start_s,
        end_s=end_s,
        compiled=merged(
            compiled_spans(
                run,
                steps,
                since_s=state.until_s,
                end_s=end_s,
                is_begun=state.last_step is not None,
            )
        ),
        last_step=state.last_step,
        warm_step=warm_step,
        again=merged(list(state.again)),
        stored_from_s=forgotten_s if state.last_step is None else -math.inf,
        goes_on=run.finished_at is None,
    )


def update_spending(source: Source, *, now: datetime) -> int:
    """Update the accounts of active and recently ended runs; return how many are active."""
    over = Q(finished_at__isnull=False)
    unread = over & Q(spending__isnull=True) & Q(finished_at__lt=now - SETTLED_AFTER)
    recent = over & Q(finished_at__gte=now - 6 * SETTLED_AFTER)
    active = list(Run.objects.active())
    for run in [*active, *Run.objects.filter(unread | recent)[:MOST_RUNS]]:
        keep(source, run, now=now)
    return len(active)


def keep(source: Source, run: Run, *, now: datetime) -> None:
    """Update a run's account, up to its last step that can no longer change."""
    state = state_of(run)
    late_s = 0.0 if run.finished_at else LATE_S
    steps, stretch = _stretch(source, run, state, run.paid_by(now).timestamp() - late_s, now=now)
    # Enough steps to detect the warm-up.
    lasted_s = float(steps.ended_at_s[-1] - steps.ended_at_s[0]) if len(steps) else 0.0
    has_head = len(steps) >= HEAD_STEPS or (len(steps) >= LEAST_HEAD and lasted_s >= HEAD_S)
    if len(steps) and (state.warm_step is not None or run.finished_at or has_head):
        edges_s, until_s = run.rates.from_s, float(steps.ended_at_s[-1])
        up_to = replace(stretch, end_s=until_s, goes_on=False)
        more = spent(steps, up_to, edges_s=edges_s)
        last_step = int(steps.step[-1])
        state = replace(
            state,
            until_s=until_s,
            last_step=last_step,
            warm_step=stretch.warm_step,
            again=tuple(span for span in state.again if span[1] > last_step),
            seconds=state.with_spent(more, edges_s),
            tokens=tuple((more.tokens + state.tokens).tolist()),
        )
    # As JSON gives it back, so that what has not changed is not written.
    kept = json.loads(json.dumps(asdict(state)))
    if kept != run.spending:
        Run.objects.filter(pk=run.pk).update(spending=kept)


# Beyond this, dates overflow.
LONGEST = timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class Outlook:
    """A run's cost per result, and its end; None where unknown.

    ``usd_per_mtok`` is over the last minute, ``settled_usd_per_mtok`` over all steps after the
    warm-up, ``whole_usd_per_mtok`` the total cost over the tokens that were not lost.
    """

    usd_per_mtok: float | None
    settled_usd_per_mtok: float | None
    whole_usd_per_mtok: float | None
    usd_per_epoch: float | None
    n_epochs: float | None
    ends_at: datetime | None
    usd_at_end: float | None


def outlook(now: RunNow, spent: Account, *, at: datetime) -> Outlook:
    """Return what a run costs per yield, and will have cost at its planned end.

    ``usd_per_epoch`` is tokens per epoch times the settled dollars per token: an epoch from here
    on. The planned end is the tokens yet to train over the tokens per second of the last minute.
    """
    run, trained = now.run, trained_tokens(now.run, spent)
    settled = spent.usd_per_mtok
    per_epoch = run.tokens_per_epoch
    ends_at = planned_end(run, trained, now.tokens_per_s, at=at)
    return Outlook(
        usd_per_mtok=now.usd_per_mtok,
        settled_usd_per_mtok=settled,
        whole_usd_per_mtok=spent.total_usd / trained * TOKENS_PER_MTOK
        if spent.usd and trained
        else None,
        usd_per_epoch=settled * per_epoch / TOKENS_PER_MTOK if settled and per_epoch else None,
        n_epochs=trained / per_epoch if per_epoch else None,
        ends_at=ends_at,
        usd_at_end=run.usd_between(run.started_at, ends_at) if ends_at and spent.usd else None,
    )


def trained_tokens(run: Run, spent: Account) -> float:
    return max(0.0, run.n_tokens - spent.repeated_tokens)


def planned_end(
    run: Run, trained: float, tokens_per_s: float | None, *, at: datetime
) -> datetime | None:
    """Forecast when a run has trained its planned tokens; None where unknown."""
    if run.finished_at is not None or not run.planned_tokens or not tokens_per_s:
        return None
    left_s = max(0.0, run.planned_tokens - trained) / tokens_per_s
    return at + timedelta(seconds=left_s) if left_s < LONGEST.total_seconds() else None
