"""Sick cores, accelerators and memories, by what all nodes of a run report of themselves."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from telemetry.blocks import FloatArray, Span
from telemetry.detect.look import Look
from telemetry.detect.parts.apart import CORES, ENOUGH_NODES, MEMORY, Apart, Kind, apart, course
from telemetry.detect.peers import lower_median
from telemetry.detect.readings import lasts, measured
from telemetry.detect.rules import RULES
from telemetry.detect.sighting import Sighting, remembered, since
from telemetry.detect.standstill.standstill import training_nodes
from telemetry.detect.vitals import Standing, Vitals, reported

# Seconds that are looked at; in how many a part must stand away, and in the newest of all.
RECENT_S, PERSISTS_S, NEWEST_S = 8, 5, 2
# A second counts where the part stands away by this share of its mean; an open alert ends where
# it does not even by this share of the least.
HALF = 0.5
# What a part was like before: single seconds of so long ago, oldest first.
PAST_AGES_S = (120, 90, 60, 48, 36, 24)
# By how much a part must stand away from its peers alone where it always did, or nobody knows.
BLATANT = RULES["core_slow"].limits["blatant_ratio"]
# A part that was like this before has not changed: of the excess over its peers at least so much
# must be new.
NEW_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Part:
    """One suspect: its node's row and its own number, and how far away it stands."""

    row: int
    part: int
    ratio: float


def silicon(vitals: Vitals) -> list[Sighting]:
    """Find slow cores, throttled accelerators and slow memories: at most one of each per node.

    An accelerator whose memory is slow paces its node too, so that its cores stand out as if
    it were throttled: the memory explains them, but no others of the node.
    """
    memory = _sick(vitals, MEMORY)
    starved = {(s.look.node, s.look.device) for s in memory}
    cores = _sick(vitals, CORES, explained=starved)
    per_device = vitals.cores_per_device
    return memory + [s for s in cores if (s.look.node, _device(s, per_device)) not in starved]


def _device(sighting: Sighting, per_device: int) -> int:
    """Return the accelerator a sighting of cores is of."""
    part = sighting.look.device or 0
    return part if sighting.look.cause == "throttle" else part // max(1, per_device)


def _sick(
    vitals: Vitals, kind: Kind, *, explained: Collection[tuple[str | None, int | None]] = ()
) -> list[Sighting]:
    """Find the worst part of each node that stands away, does so persistently, and newly.

    Cores of accelerators that are ``explained`` do not count.
    """
    seen = apart(vitals.hardware([kind.metric], RECENT_S), kind)
    if seen is None:
        return []
    held = _held(vitals, kind, seen)
    worst = np.where(seen.suspects, seen.ratio, 0.0)
    per_device = max(1, vitals.cores_per_device)
    for node, device in explained:
        if node in seen.span.nodes and device is not None:
            first = device * per_device
            worst[seen.span.nodes.index(node), first : first + per_device] = 0.0
    rows = {int(row) for row in np.flatnonzero(worst.any(axis=1))} | set(held)
    found, past = [], None
    for row in sorted(rows):
        recent = course(seen.span, kind, row)
        if row in held and (kept := _kept(vitals, seen, held[row], recent, row)):
            found.append(kept)
            continue
        part = Part(row, int(np.argmax(worst[row])), float(worst[row].max()))
        reports = np.asarray(measured(seen.span.values[kind.metric][:, row]).any(axis=1))
        if not worst[row].any() or not _persists(recent[:, part.part], part.ratio, reports):
            continue
        if past is None and vitals.moments is not None:
            past = vitals.moments([kind.metric], PAST_AGES_S)
        if _is_new(past, seen, part):
            found.append(_sighting(vitals, seen, part, recent))
    return found


def _persists(recent: FloatArray, ratio: float, reports: NDArray[np.bool_]) -> bool:
    """Tell whether a part stands away report by report, and still does."""
    above, known = recent >= 1.0 + HALF * (ratio - 1.0), np.isfinite(recent)
    is_long = lasts(above[known], reports[known], least=PERSISTS_S)
    return bool(is_long) and bool(above[known][-NEWEST_S:].all())


def _is_new(past: Span | None, seen: Apart, part: Part) -> bool:
    """Tell whether a part was like its peers before, as far as anybody knows.

    A core that holds other work than its peers does so for good. Where that is not known, or a
    fault is older than what is remembered, only peers in the same role on several nodes will do.
    """
    enough = len(seen.span.nodes) >= ENOUGH_NODES
    before = np.nan
    if past is not None and len(past.nodes):
        before = float(lower_median(course(past, seen.kind, part.row)[:, part.part]))
    excess = part.ratio - 1.0
    if np.isfinite(before) and part.ratio / before - 1.0 >= NEW_SHARE * excess:
        return True
    return enough and excess >= BLATANT


def _sighting(vitals: Vitals, seen: Apart, part: Part, recent: FloatArray) -> Sighting:
    """Name a suspect, and since when it stands away."""
    above = recent[:, part.part] >= 1.0 + HALF * (part.ratio - 1.0)
    first = int(np.argmax(above))
    cause, device = _named(vitals, seen, part)
    return Sighting(_look(vitals, seen, part, cause, device), float(seen.span.ticks[first]) - 1.0)


def _named(vitals: Vitals, seen: Apart, part: Part) -> tuple[str, int]:
    """Tell a slow core from a throttled accelerator: then all its cores stand away alike."""
    if seen.kind is MEMORY:
        return "hbm_slow", part.part
    per_device = vitals.cores_per_device
    n_cores = seen.ratio.shape[1]
    if per_device == 1:
        # An accelerator of one core: nobody can tell them apart, and it is what gets replaced.
        return "throttle", part.part
    if n_cores % per_device:
        return "slow_core", part.part
    device = part.part // per_device
    cores = seen.ratio[part.row, device * per_device : (device + 1) * per_device]
    if np.nanmin(cores) - 1.0 >= HALF * (part.ratio - 1.0):
        return "throttle", device
    return "slow_core", part.part


def _look(vitals: Vitals, seen: Apart, part: Part, cause: str, device: int) -> Look:
    """Put a suspect's figure beside that of its node's other parts."""
    level = seen.level[part.row]
    value = level[part.part]
    if cause == "throttle":
        per_device = vitals.cores_per_device
        value = float(np.nanmean(level[device * per_device : (device + 1) * per_device]))
    return Look(
        cause=cause,
        strength=(part.ratio - 1.0) / float(seen.least[part.row]),
        metric=seen.kind.metric,
        value=float(value),
        peers_median=float(lower_median(level)),
        n_peers=int(np.isfinite(level).sum()) - 1,
        unit="ratio" if seen.kind is CORES else "bytes_per_s",
        node=seen.span.nodes[part.row],
        device=device,
    )


def _held(vitals: Vitals, kind: Kind, seen: Apart) -> dict[int, Standing]:
    """Return the open alerts that this kind of evidence can end, by the row of their node."""
    causes = ("hbm_slow",) if kind is MEMORY else ("slow_core", "throttle")
    places = {name: row for row, name in enumerate(seen.span.nodes)}
    return {
        places[each.node]: each
        for each in vitals.standing
        if each.cause in causes and each.node in places and each.device is not None
    }


def _kept(
    vitals: Vitals, seen: Apart, alert: Standing, recent: FloatArray, row: int
) -> Sighting | None:
    """Keep what an open alert says while it is so, or while nothing says that it is not."""
    per_device = vitals.cores_per_device if alert.cause == "throttle" else 1
    first = (alert.device or 0) * per_device
    parts = np.arange(first, first + per_device)
    parts = parts[parts < recent.shape[1]]
    away = lower_median(recent[:, parts]) if parts.size else np.full(1, np.nan)
    known = away[np.isfinite(away)]
    if known.size >= PERSISTS_S:
        if float(known[-PERSISTS_S:].max()) < 1.0 + HALF * seen.kind.least:
            return None
        ratio = float(max(known.mean(), 1.0))
        part = Part(row, int(parts[0]), ratio)
        look = _look(vitals, seen, part, alert.cause, int(alert.device or 0))
        return Sighting(look, since(alert, seen.span))
    if _has_left(vitals, seen.span.nodes[row]):
        return None
    return Sighting(remembered(alert), since(alert, seen.span))


def _has_left(vitals: Vitals, node: str) -> bool:
    """Tell whether the run goes on without a node: its newest step was made without it."""
    steps = reported(vitals.steps)
    return bool(len(steps)) and node not in training_nodes(vitals, steps)
