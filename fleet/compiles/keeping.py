"""Compile events on their way into the database: judged by what was there before, kept once."""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from fleet.compiles.history import elsewhere, history_of
from fleet.compiles.judging import judged
from fleet.models import CompileEvent, Run
from telemetry.compiles import HIT, MISS, Compile

BATCH = 2_000
FAR_PAST = datetime(1970, 1, 1, tzinfo=UTC)


def keep_compiles(
    run: Run,
    events: Iterable[Compile],
    *,
    moved_s: float = 0.0,
    now: datetime | None = None,
    trained_from: datetime | None = None,
) -> Sequence[CompileEvent]:
    """Keep compile events of a run; one that is kept already stays as it is.

    ``moved_s`` is added to their times; ``now`` is when they came in, None for a log of the past;
    ``trained_from`` since when the run trains. Returns those that nobody had announced.
    """
    told = sorted((_moved(each, moved_s) for each in events), key=_when)
    if not told:
        return []
    first = _moment(told[0].at_s)
    history = history_of(run, before=first)
    graphs = {each.graph for each in told if each.outcome == MISS and each.graph}
    others = elsewhere(run, graphs, before=first or now or FAR_PAST)
    trained_from_s = None if trained_from is None else trained_from.timestamp()
    rows = []
    for each in told:
        found = judged(each, history, trained_from_s=trained_from_s, others=others)
        rows.append(_row(run, each, noted_at=now, verdict=found.verdict, change=found.change))
        history.add(each)
    CompileEvent.objects.bulk_create(rows, batch_size=BATCH, ignore_conflicts=True)
    _learn(run, told)
    unannounced = (CompileEvent.Verdict.AGAIN, CompileEvent.Verdict.AMID)
    return [row for row in rows if row.verdict in unannounced]


def _moved(event: Compile, moved_s: float) -> Compile:
    """Return an event at the time it is placed at."""
    fields = {name: getattr(event, name) for name in Compile.__slots__}
    return Compile(**fields | {"at_s": event.at_s + moved_s})


def _when(event: Compile) -> float:
    return event.at_s if math.isfinite(event.at_s) else -math.inf


def _moment(at_s: float) -> datetime | None:
    return datetime.fromtimestamp(at_s, UTC) if math.isfinite(at_s) else None


def _row(run: Run, event: Compile, **judgement: Any) -> CompileEvent:
    has_length = math.isfinite(event.seconds) and event.outcome != HIT
    return CompileEvent(
        run=run,
        module=event.module[:120],
        outcome=event.outcome,
        rank=event.rank,
        process=event.process[-160:],
        at=_moment(event.at_s),
        seconds=event.seconds if has_length else None,
        compiler=event.compiler[:60],
        flags=event.flags[:500],
        cache=event.cache[:500],
        shape=event.shape[:200],
        **judgement,
    )


def _learn(run: Run, told: Sequence[Compile]) -> None:
    """Let the run say what its newest compile was called with, where that is told."""
    newest = {
        "compiler_flags": next((each.flags for each in reversed(told) if each.flags), "")[:500],
        "compiler_version": next((e.compiler for e in reversed(told) if e.compiler), "")[:60],
    }
    news = {name: said for name, said in newest.items() if said and getattr(run, name) != said}
    if news:
        Run.objects.filter(pk=run.pk).update(**news)
        for name, said in news.items():
            setattr(run, name, said)
