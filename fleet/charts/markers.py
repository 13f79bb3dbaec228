"""Markers of charts: the alerts, drills, checkpoints, deploys and recompiles of a time range."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import numpy as np
from django.db.models import Q

from fleet.charts.figures import Chart, Event, Heat
from fleet.charts.windows import Window
from fleet.formatting import counted, seconds
from fleet.models import AlertEvent, Annotation, CompileEvent, InjectedFault, Node, Run
from fleet.models.annotation import moment_of
from fleet.models.node import address
from fleet.runs.compiles import LOST
from telemetry.blocks import mean
from telemetry.detect import RULES
from telemetry.simulate.faults import FAULTS
from telemetry.steps import StepBatch

# Of each kind, the newest.
MOST, MOST_GRAPHS = 40, 400
FIRED = (AlertEvent.Kind.FIRED, AlertEvent.Kind.REFIRED)
OF_FLEET = Q(run=None, node=None)
# Graphs that begin to compile in the same minute are one recompile.
TOGETHER_S = 60
# A step that spends less of its time on a checkpoint does not write one.
LEAST_CHECKPOINT_RATIO = 0.05
# What more steps have than this is no event.
MOST_CHECKPOINTS_RATIO = 0.5

Drawn = TypeVar("Drawn", Chart, Chart | Heat, bytes | Chart | Heat)


def marked(
    drawn: Drawn,
    window: Window,
    *,
    run: int | None = None,
    node: int | None = None,
    without: int | None = None,
) -> Drawn:
    """Return a chart with the markers of its run and node, by key, and of the fleet.

    The firings of the alert ``without`` are left out, because its own charts show them.

    Bars and heat maps have none. A chart frozen as JSON gets later annotations too.
    """
    if isinstance(drawn, Heat) or (isinstance(drawn, Chart) and drawn.labels):
        return drawn
    events: list[Event] = markers_of(window, run=run, node=node, without=without)
    if isinstance(drawn, Chart):
        return replace(drawn, events=in_order([*drawn.events, *events]))
    frozen: dict[str, Any] = msgspec.json.decode(drawn)
    if not events or frozen.get("labels") or "series" not in frozen:
        return drawn
    known: list[Event] = [Event(*event) for event in frozen.get("events", ())]
    return msgspec.json.encode(frozen | {"events": in_order([*known, *events])})


def in_order(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=lambda event: event.at_s)


def markers_of(
    window: Window, *, run: int | None = None, node: int | None = None, without: int | None = None
) -> list[Event]:
    """Return what happened to a run, a node and the fleet, as known at the window's end."""
    on_node = Q(node=node) if node is not None else Q(pk__in=[])
    alerts = Q(alert__node=node) if node is not None else Q(pk__in=[])
    faults = Q(run=run) if node is None else Q(node=node) | Q(run=run, node=None)
    if run is not None:
        alerts |= Q(alert__run=run)
    about = Q(run=run) if run is not None else Q(pk__in=[])
    return in_order(
        [
            *_annotations(window, about | on_node | OF_FLEET),
            *_alerts(window, alerts & ~Q(alert=without) if without else alerts),
            *_drills(window, faults if run is not None else on_node),
            *_recompiles(window, about),
        ]
    )


def markers_of_fleet(window: Window, runs: Collection[Run]) -> list[Event]:
    """Return what happened to these runs, their nodes and the fleet; each names its subject."""
    of_runs = Q(run__in=runs)
    return in_order(
        [
            *_annotations(window, of_runs | Q(node__run__in=runs) | OF_FLEET, is_named=True),
            *_alerts(window, Q()),
            *_drills(window, of_runs, is_named=True),
            *_recompiles(window, of_runs, is_named=True),
        ]
    )


def _annotations(window: Window, about: Q, *, is_named: bool = False) -> list[Event]:
    within = Annotation.objects.within(moment_of(window.start), moment_of(window.end))
    notes = within.filter(about).select_related("run", "node").order_by("-at", "-pk")[:MOST]
    return [
        Event(
            note.at.timestamp(),
            f"{note.kind}: {_name(note.node or note.run) if is_named else ''}{note.text}",
            note.kind,
            _until(note.ends_at, window),
        )
        for note in reversed(notes)
    ]


def _alerts(window: Window, about: Q) -> list[Event]:
    start, end = moment_of(window.start), moment_of(window.end)
    lasted = Q(alert__resolved_at=None) | Q(alert__resolved_at__gte=start)
    fired = AlertEvent.objects.filter(about, lasted, kind__in=FIRED, at__gte=start, at__lte=end)
    events = fired.select_related("alert").order_by("-at", "-pk")[:MOST]
    return [
        Event(
            event.at.timestamp(),
            f"alert: {_title(event.alert.rule)}, {event.alert.subject.partition(':')[2]}",
            "alert",
            url=event.alert.get_absolute_url(),
        )
        for event in events
    ]


def _title(rule: str) -> str:
    return RULES[rule].title if rule in RULES else rule


def _drills(window: Window, about: Q, *, is_named: bool = False) -> list[Event]:
    """Return the faults that users injected; not the demo's, which play real ones."""
    start, end = moment_of(window.start), moment_of(window.end)
    faults = InjectedFault.objects.filter(about, starts_at__lte=end, ends_at__gte=start)
    faults = faults.exclude(injected_by="")
    return [
        Event(
            fault.starts_at.timestamp(),
            f"drill: {_name(fault.run) if is_named else ''}{FAULTS[fault.kind].title}"
            + (f" on {fault.node}" if fault.node else ""),
            "drill",
            _until(fault.ends_at, window),
            address("drill-detail", fault.pk),
        )
        for fault in faults.select_related("run", "node").order_by("-starts_at")[:MOST]
        if fault.kind in FAULTS
    ]


def _recompiles(window: Window, about: Q, *, is_named: bool = False) -> list[Event]:
    """Return unplanned compiles, one marker for those that began together."""
    start, end = moment_of(window.start), moment_of(window.end)
    compiles = CompileEvent.objects.filter(about, verdict__in=LOST, at__gte=start, at__lte=end)
    newest = compiles.select_related("run").order_by("-at", "-pk")[:MOST_GRAPHS]
    began: dict[tuple[Run, int], list[float]] = {}
    for each in newest:
        if each.at is not None:
            at_s = each.at.timestamp()
            began.setdefault((each.run, int(at_s // TOGETHER_S)), []).append(at_s)
    return [
        Event(
            min(times),
            f"recompile: {_name(run) if is_named else ''}{counted(len(times), 'graph')}",
            "compile",
        )
        for (run, _), times in began.items()
    ]


def checkpoints(steps: StepBatch, *, name: str = "") -> list[Event]:
    """Return the steps that wrote a checkpoint, the newest; none if most steps do."""
    if not len(steps):
        return []
    spent_s = mean(steps.phases["checkpoint_s"], 1)
    wrote = np.flatnonzero(spent_s > LEAST_CHECKPOINT_RATIO * steps.step_s)
    if len(wrote) > MOST_CHECKPOINTS_RATIO * len(steps):
        return []
    return [
        Event(
            float(steps.ended_at_s[i]),
            f"checkpoint: {f'{name}, ' if name else ''}{seconds(spent_s[i])}",
            "checkpoint",
        )
        for i in wrote[-MOST:]
    ]


def _name(subject: Run | Node | None) -> str:
    return f"{subject}, " if subject else ""


def _until(ends_at: datetime | None, window: Window) -> float | None:
    """Return when something ended; None if that was after the window, when it may change."""
    return ends_at.timestamp() if ends_at and ends_at.timestamp() <= window.end else None
