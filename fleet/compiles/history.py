"""What a run had asked the compile cache for before: the compiles that a new one is held to."""

import math
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime

from fleet.models import CompileEvent, Run
from telemetry.compiles import FAIL, Compile

# Of very long histories only the newest are looked at: a key changes between two neighbours.
MOST_EVENTS = 5_000
FIELDS = ("module", "outcome", "at", "seconds", "process", "compiler", "flags", "cache", "shape")


def compile_of(row: CompileEvent) -> Compile:
    """Return a kept event as telemetry knows it."""
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
        """Know these; failed ones left nothing behind that could be found again."""
        self._by_graph: dict[str, list[Compile]] = {}
        self._last: Compile | None = None
        self._flags: dict[str, str] = {}
        for event in events:
            self.add(event)

    def add(self, event: Compile) -> None:
        """Take one more."""
        if event.flags and event.flags_hash:
            self._flags.setdefault(event.flags_hash, event.flags)
        if event.outcome != FAIL and event.graph:
            self._by_graph.setdefault(event.graph, []).append(event)
            self._last = event

    def last(self) -> Compile | None:
        """Return the newest compile of any graph, its flags told if anybody told them."""
        return None if self._last is None else self._told(self._last)

    def of(self, event: Compile) -> Iterator[Compile]:
        """Yield what came of the same graph before, the newest first."""
        return map(self._told, reversed(self._by_graph.get(event.graph, ())))

    def _told(self, event: Compile) -> Compile:
        """Add the flags to an event that only has their hash: a hit's line does not say them."""
        if event.flags or event.flags_hash not in self._flags:
            return event
        return Compile(
            **{name: getattr(event, name) for name in Compile.__slots__}
            | {"flags": self._flags[event.flags_hash]}
        )


def history_of(run: Run, *, before: datetime | None) -> History:
    """Return what a run had asked for before a moment; all that is kept where it is unknown."""
    rows = run.compiles.exclude(outcome=CompileEvent.Outcome.FAIL)
    rows = rows.filter(at__lt=before) if before else rows
    newest = rows.only(*FIELDS).order_by("-at", "-pk")[:MOST_EVENTS]
    return History(compile_of(row) for row in reversed(newest))


def elsewhere(run: Run, graphs: Collection[str], *, before: datetime) -> dict[str, CompileEvent]:
    """Return the last compile or hit of these graphs in another run of the same team."""
    if not graphs:
        return {}
    since = datetime.fromtimestamp(before.timestamp() - 90 * 86_400, UTC)
    rows = (
        CompileEvent.objects.filter(run__team=run.team, at__lt=before, at__gte=since)
        .filter(run__instance_type=run.instance_type)
        .exclude(run=run)
        .exclude(outcome=CompileEvent.Outcome.FAIL)
        .select_related("run")
        .order_by("-at", "-pk")[:MOST_EVENTS]
    )
    found: dict[str, CompileEvent] = {}
    for row in rows:
        graph = compile_of(row).graph
        if graph in graphs:
            found.setdefault(graph, row)
    return found
