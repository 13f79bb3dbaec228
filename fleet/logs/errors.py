"""Hardware errors of a log as annotations of its run, a device's repeated ones as one."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from fleet.models import Annotation, Node, Run
from telemetry.ingest.logs import HardwareError

BY = "import_log"
MOST = 200
LONGEST = 300


def annotate_errors(run: Run, errors: Mapping[HardwareError, int], *, moved_s: float) -> None:
    """Keep what broke, where and when; what an earlier reading kept is replaced."""
    run.annotations.filter(by=BY).delete()
    groups: dict[tuple[str, str, int | None, int | None], list[HardwareError]] = {}
    for error in errors:
        groups.setdefault((error.kind, error.node, error.device, error.core), []).append(error)
    names = {error.node for error in errors}
    nodes = {node.name: node for node in Node.objects.filter(name__in=names)}
    Annotation.objects.bulk_create(
        [
            _annotation(run, nodes.get(group[0].node), group, errors, moved_s=moved_s)
            for group in list(groups.values())[:MOST]
        ]
    )


def _annotation(
    run: Run,
    node: Node | None,
    group: list[HardwareError],
    counts: Mapping[HardwareError, int],
    *,
    moved_s: float,
) -> Annotation:
    moments = sorted(e.at_s + moved_s for e in group if not math.isnan(e.at_s))
    end = run.finished_at or run.started_at
    at = datetime.fromtimestamp(moments[0], UTC) if moments else end
    last = datetime.fromtimestamp(moments[-1], UTC) if moments else None
    text = in_words(group[0], n=sum(counts[error] for error in group))
    if not moments:
        text = f"{text}; the line has no time"
    return Annotation(
        at=at,
        ends_at=last if last is not None and last > at else None,
        kind=Annotation.Kind.NOTE,
        run=run,
        node=node,
        text=text[:LONGEST],
        by=BY,
    )


def in_words(error: HardwareError, *, n: int) -> str:
    """Say what broke, where, how often, and what its driver asks for."""
    where = [error.node or error.instance or "an unnamed node"]
    where += [f"device {error.device}"] if error.device is not None else []
    where += [f"core {error.core}"] if error.core is not None else []
    times = f", {n} times" if n > 1 else ""
    action = (
        f"; the driver asks to {error.action.lower().replace('_', ' ')}" if error.action else ""
    )
    serial = f" (serial {error.serial})" if error.serial else ""
    return f"{error.kind} on {' '.join(where)}{serial}{times}{action}"
