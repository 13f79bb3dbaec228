"""The compile cache of a run and of the fleet: hits, compiles, failures, reasons and cost."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fleet.models import CompileEvent, Run
from telemetry.compiles import FAIL, HIT, MISS, Compile, key_changes
from telemetry.units import DAY_S

# Only the newest of a very long history are read.
MOST_EVENTS = 5_000
FIELDS = ("module", "outcome", "at", "seconds", "process", "compiler", "flags", "cache", "shape")


def compile_of(row: CompileEvent) -> Compile:
    return Compile(
        module=row.module,
        outcome=row.outcome,
        at_s=math.nan if row.at is None else row.at.timestamp(),
        seconds=math.nan if row.seconds is None else row.seconds,
        process=row.process,
        compiler=row.compiler,
        flags=row.flags,
        cache=row.cache,
        shape=row.shape,
    )


class History:
    """Compiles of one run in the order in which they came, by graph."""

    def __init__(self, events: Iterable[Compile] = ()) -> None:
        self._by_graph: dict[str, list[Compile]] = {}
        self._last: Compile | None = None
        self._flags: dict[str, str] = {}
        for event in events:
            self.add(event)

    def add(self, event: Compile) -> None:
        if event.flags and event.flags_hash:
            self._flags.setdefault(event.flags_hash, event.flags)
        if event.outcome != FAIL and event.graph:
            self._by_graph.setdefault(event.graph, []).append(event)
            self._last = event

    def last(self) -> Compile | None:
        """Find the newest compile of any graph, preferring one with known flags."""
        return None if self._last is None else self._with_flags(self._last)

    def of(self, event: Compile) -> Iterator[Compile]:
        """Yield the earlier events of the same graph, the newest first."""
        return map(self._with_flags, reversed(self._by_graph.get(event.graph, ())))

    def _with_flags(self, event: Compile) -> Compile:
        """Add the flags to an event with only their hash, such as a hit."""
        if event.flags or event.flags_hash not in self._flags:
            return event
        return Compile(
            **{name: getattr(event, name) for name in Compile.__slots__}
            | {"flags": self._flags[event.flags_hash]}
        )


def history_of(run: Run, *, before: datetime | None) -> History:
    """Read a run's events before a time; all events where the time is unknown."""
    rows = run.compiles.exclude(outcome=CompileEvent.Outcome.FAIL)
    rows = rows.filter(at__lt=before) if before else rows
    newest = rows.only(*FIELDS).order_by("-at", "-pk")[:MOST_EVENTS]
    return History(compile_of(row) for row in reversed(newest))


def compiles_of_other_runs(
    run: Run, graphs: Collection[str], *, before: datetime
) -> dict[str, CompileEvent]:
    """Find the last compile or hit of these graphs in another run of the same team."""
    if not graphs:
        return {}
    since = datetime.fromtimestamp(before.timestamp() - 90 * DAY_S, UTC)
    rows = (
        CompileEvent.objects.filter(run__team=run.team, at__lt=before, at__gte=since)
        .filter(run__instance_type=run.instance_type)
        .exclude(run=run)
        .exclude(outcome=CompileEvent.Outcome.FAIL)
        .select_related("run")
        .order_by("-at", "-pk")[:MOST_EVENTS]
    )
    by_graph: dict[str, CompileEvent] = {}
    for row in rows:
        graph = compile_of(row).graph
        if graph in graphs:
            by_graph.setdefault(graph, row)
    return by_graph


Outcome, Verdict = CompileEvent.Outcome, CompileEvent.Verdict
LOST = (Verdict.AGAIN, Verdict.AMID)
# Processes of one start request a graph at about the same time.
SAME_START_S = 600.0
# In its first steps a job compiles its graphs; later compiles are unexpected.
FIRST_STEPS = 10


@dataclass(frozen=True, slots=True)
class CompileVerdict:
    """A verdict and, for an unplanned compile, what changed since which event."""

    verdict: str = ""
    change: Mapping[str, Any] | None = None


def judge_compile(
    event: Compile,
    history: History,
    *,
    trained_from_s: float | None,
    others: Mapping[str, CompileEvent],
) -> CompileVerdict:
    """Judge why a graph was compiled.

    Parameters
    ----------
    event : the compile or hit
    history : earlier requests of the run
    trained_from_s : start of training in Unix seconds; None before that
    others : the last event of another run of the team, by graph

    Notes
    -----
    The same key compiled by another process within ten minutes is one start whose processes do
    not share a cache. A graph that the run had compiled before is compiled ``again``.
    """
    if event.outcome != MISS or event.is_planned:
        return CompileVerdict(Verdict.PLANNED if event.outcome == MISS else "")
    before = next(history.of(event), None) if event.graph else None
    if before is not None:
        # Another process compiled the same graph just before, or still does.
        ended_s = before.at_s + (0.0 if math.isnan(before.seconds) else before.seconds)
        is_other = before.outcome != HIT and before.process != event.process
        if is_other and before.module == event.module and not event.at_s - ended_s > SAME_START_S:
            return CompileVerdict(Verdict.BESIDE)
        return CompileVerdict(Verdict.AGAIN, change_of(before, event))
    if trained_from_s is not None and event.at_s >= trained_from_s:
        last = history.last()
        return CompileVerdict(Verdict.AMID, change_of(last, event) if last else {"parts": []})
    if (other := others.get(event.graph)) is not None and event.graph:
        return CompileVerdict(
            Verdict.AGAIN, change_of(compile_of(other), event, run=other.run.name)
        )
    return CompileVerdict(Verdict.FIRST)


def change_of(before: Compile, after: Compile, *, run: str = "") -> dict[str, Any]:
    """Describe what changed as plain JSON."""
    return {
        "parts": [
            {"what": part.what, "before": part.before[:500], "after": part.after[:500]}
            for part in key_changes(before, after)
        ],
        "before_s": None if math.isnan(before.at_s) else before.at_s,
        "before": before.outcome,
        "run": run,
    }


BATCH = 2_000
FAR_PAST = datetime(1970, 1, 1, tzinfo=UTC)


def store_compiles(
    run: Run,
    events: Iterable[Compile],
    *,
    moved_s: float = 0.0,
    now: datetime | None = None,
    trained_from: datetime | None = None,
) -> Sequence[CompileEvent]:
    """Store compile events of a run; stored ones do not change.

    ``moved_s`` is added to their times; ``now`` is when they arrived, None for a log of the past;
    ``trained_from`` is the start of training. Returns the unplanned ones.
    """
    sorted_events = sorted(
        (
            Compile(
                **{name: getattr(each, name) for name in Compile.__slots__}
                | {"at_s": each.at_s + moved_s}
            )
            for each in events
        ),
        key=lambda event: event.at_s if math.isfinite(event.at_s) else -math.inf,
    )
    if not sorted_events:
        return []
    first = _moment(sorted_events[0].at_s)
    history = history_of(run, before=first)
    graphs = {each.graph for each in sorted_events if each.outcome == MISS and each.graph}
    others = compiles_of_other_runs(run, graphs, before=first or now or FAR_PAST)
    trained_from_s = None if trained_from is None else trained_from.timestamp()
    rows = []
    for each in sorted_events:
        judgement = judge_compile(each, history, trained_from_s=trained_from_s, others=others)
        verdict, change = judgement.verdict, judgement.change
        rows.append(_row(run, each, noted_at=now, verdict=verdict, change=change))
        history.add(each)
    CompileEvent.objects.bulk_create(rows, batch_size=BATCH, ignore_conflicts=True)
    # The run shows the flags and version of its newest compile.
    flags = next((each.flags for each in reversed(sorted_events) if each.flags), "")
    compiler = next((each.compiler for each in reversed(sorted_events) if each.compiler), "")
    newest = {"compiler_flags": flags[:500], "compiler_version": compiler[:60]}
    changed = {
        name: value for name, value in newest.items() if value and getattr(run, name) != value
    }
    if changed:
        Run.objects.filter(pk=run.pk).update(**changed)
        for name, value in changed.items():
            setattr(run, name, value)
    return [row for row in rows if row.verdict in LOST]


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
