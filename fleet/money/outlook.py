"""What a run costs from here on: per million tokens, per epoch, and by its planned end."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.models import Run
from fleet.money.paying import usd_between
from fleet.money.spending import Account
from fleet.summaries import TOKENS_PER_MTOK, RunNow

# Beyond this nobody plans, and dates end.
LONGEST = timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class Outlook:
    """A run's dollars per yield, and its end; None where nobody can tell.

    ``usd_per_mtok`` is over the last minute, ``settled_usd_per_mtok`` over all steps after the
    warm-up, ``whole_usd_per_mtok`` all that was paid over the tokens that were not lost.
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

    Notes
    -----
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
        usd_at_end=usd_between(run, run.started_at, ends_at) if ends_at and spent.usd else None,
    )


def trained_tokens(run: Run, spent: Account) -> float:
    """Return the tokens that a run has trained on, each once: what was lost does not count."""
    return max(0.0, run.n_tokens - spent.repeated_tokens)


def planned_end(
    run: Run, trained: float, tokens_per_s: float | None, *, at: datetime
) -> datetime | None:
    """Return when a run will have trained the tokens that it plans; None where nobody can tell."""
    if run.finished_at is not None or not run.planned_tokens or not tokens_per_s:
        return None
    left_s = max(0.0, run.planned_tokens - trained) / tokens_per_s
    return at + timedelta(seconds=left_s) if left_s < LONGEST.total_seconds() else None
